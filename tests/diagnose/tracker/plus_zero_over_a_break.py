"""`x + zeros` becomes `x` itself, which a later change of the result then reaches. pytorch/pytorch#197893."""

import torch


def program(x):
    y = x + torch.zeros(6)
    torch._dynamo.graph_break()
    y.mul_(10)
    return x * 1.5, y * 2.0


def make():
    return program, (torch.arange(6.0),), {}


EXPECT = {"kind": "wrong_value", "stage": "joint", "ops": "aten.add", "lines": 40}
