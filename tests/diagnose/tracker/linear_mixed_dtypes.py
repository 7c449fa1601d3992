"""pytorch/pytorch#141865: a linear layer of float32 takes float16 input, which uncompiled it refuses."""

import torch


def make():
    return torch.nn.Linear(1, 1), (torch.randn(1, 1, dtype=torch.float16),), {}


EXPECT = {
    "kind": "missing_exception",
    "stage": "aot decomposition lowering post_grad joint",
    "ops": "aten.addmm torch.nn.functional.linear aten.linear torch._C._nn.linear",
}
