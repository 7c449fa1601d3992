"""pytorch/pytorch#183888: an in-place operation on overlapping windows does not compile."""

import torch


def program(x):
    return torch.add(x, x).unfold(1, 4, 2).abs_()


def make():
    return program, (torch.linspace(-3, 3, 7).reshape(1, 7),), {}


EXPECT = {
    "kind": "crash_compile extra_exception crash_runtime",
    "stage": "aot",
    "ops": "torch.Tensor.unfold aten.unfold aten.abs_ torch.Tensor.abs_",
}
