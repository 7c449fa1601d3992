"""pytorch/pytorch#191308: a product of int8 matrices of one row is int64."""

import torch


def program(a, b):
    return torch.bmm(a, b)


def make():
    return program, tuple(torch.randint(-5, 5, s, dtype=torch.int8) for s in ((2, 1, 4), (2, 4, 3))), {}


EXPECT = {"kind": "wrong_dtype", "stage": "lowering", "ops": "aten.bmm torch.bmm"}
