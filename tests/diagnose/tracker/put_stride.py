"""pytorch/pytorch#198364: put into a transposed tensor comes back contiguous; eager keeps the layout."""

import torch


def program(x):
    return x.put(torch.tensor([0, 7]), torch.tensor([1.0, 2.0]))


def make():
    return program, (torch.rand(6, 5).mT,), {}


EXPECT = {"kind": "wrong_stride", "stage": "decomposition", "ops": "aten.put"}
