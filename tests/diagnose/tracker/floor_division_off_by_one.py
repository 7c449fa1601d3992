"""pytorch/pytorch#197895: a quotient just below an integer is rounded up to it before it is floored."""

import torch


def program(a, b):
    return torch.tanh(a // b)


def make():
    a = torch.tensor([1.0, 0.5, 6.0, 1.0]).repeat(8)
    return program, (a, torch.tensor([0.1, 0.1, 0.2, 1 / 3]).repeat(8)), {}


EXPECT = {"kind": "wrong_value", "stage": "lowering codegen", "ops": "aten.div aten.floor_divide operator.floordiv"}
