"""The gradient of a replicated padding of a channels-last input crashes: strides are not those of its fake kernel."""

import torch


class Padded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(4, 4, 3, padding="same", padding_mode="replicate", groups=4)

    def forward(self, x):
        return self.conv(x.to(memory_format=torch.channels_last))


def make():
    model = Padded().to(memory_format=torch.channels_last)
    return model, (torch.randn(1, 4, 5, 5, requires_grad=True),), {}


GRAD = True

EXPECT = {"kind": "crash_runtime", "stage": "lowering codegen", "ops": "aten.replication_pad2d_backward"}
