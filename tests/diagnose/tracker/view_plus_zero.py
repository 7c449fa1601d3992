"""`x[0] + zeros` becomes `x[0]`, which a later change of `x` then reaches. A relative of pytorch/pytorch#197893."""

import torch


def program(x):
    before = x[0] + torch.zeros(6)
    x.add_(1)
    return before, before.sum()


def make():
    return program, (torch.arange(12.0).reshape(2, 6),), {}


EXPECT = {"kind": "wrong_value", "stage": "joint", "ops": "aten.add", "lines": 40}
