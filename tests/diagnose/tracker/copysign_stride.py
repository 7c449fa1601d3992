"""pytorch/pytorch#198364: copysign of a transposed tensor comes back contiguous; eager keeps the layout."""

import torch


def make():
    return torch.copysign, (torch.rand(6, 5).mT, torch.rand(5, 6) - 0.5), {}


EXPECT = {"kind": "wrong_stride", "stage": "aot lowering", "ops": "aten.copysign torch.copysign"}
