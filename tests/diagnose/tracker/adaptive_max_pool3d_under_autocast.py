"""pytorch/pytorch#197888: the decomposition of `adaptive_max_pool3d` is laid out otherwise than the operation, and the
gradient is of other elements. Under bfloat16 autocast, where those of the group norms give other dtypes, too."""

import torch
from torch import nn
from torch.nn import functional


class Volume(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.conv = nn.Conv3d(3, 8, 3, padding=1), nn.Conv3d(8, 8, 1)
        self.norm, self.head = nn.GroupNorm(4, 8), nn.Linear(8, 10)

    def forward(self, x):
        h = functional.relu(self.stem(x))
        h = h + functional.silu(self.norm(self.conv(h)))
        pooled = functional.adaptive_max_pool3d(h.contiguous(memory_format=torch.channels_last_3d), (2, 2, 2))
        return self.head((h + pooled.mean((2, 3, 4), keepdim=True)).mean((2, 3, 4)))


def make():
    model = Volume()

    def step(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().mean()

    return step, (torch.randn(2, 3, 4, 4, 4),), {}


GRAD = True

EXPECT = {
    "kind": "wrong_gradient wrong_value",
    "stage": "decomposition lowering",
    "ops": "aten.adaptive_max_pool3d aten.adaptive_max_pool3d_backward",
    "lines": 60,
}
