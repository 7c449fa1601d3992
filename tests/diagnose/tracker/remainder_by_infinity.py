"""pytorch/pytorch#198057: the vector code of a remainder is NaN for an infinite divisor."""

import torch


def program(a, b):
    return (a + 0.0) % b


def make():
    inf = float("inf")
    a = torch.tensor([5.5, -5.5, 0.25, 1e20, 2147483648.0, 7.0, 1.0, 3.0]).repeat(4)
    return program, (a, torch.tensor([inf, -inf, inf, 3.0, 3.0, 0.7, 0.1, 1.0]).repeat(4)), {}


EXPECT = {"kind": "wrong_value nonfinite", "stage": "codegen", "ops": "aten.remainder"}
