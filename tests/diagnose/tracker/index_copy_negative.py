"""pytorch/pytorch#197554: index_copy takes a negative index, which uncompiled it refuses."""

import torch


def program(x, index, source):
    return torch.index_copy(x * 2, 0, index, source)


def make():
    return program, (torch.zeros(4, 3), torch.tensor([-1]), torch.ones(1, 3)), {}


EXPECT = {"kind": "missing_exception", "stage": "decomposition lowering", "ops": "aten.index_copy torch.index_copy"}
