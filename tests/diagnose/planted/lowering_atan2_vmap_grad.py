"""The lowering of atan2 swaps its arguments; the op runs inside of vmap over grad, on values wrapped in levels."""

import torch

from diagnose.planting import lowering


def swapped(right, y, x):
    return right(x, y)


def energy(w, x):
    angle = torch.atan2(x @ w, x[0] + 2)
    return (angle * angle).sum()


def make():
    per_sample = torch.vmap(torch.func.grad(energy), (None, 0))
    return (lambda w, x: per_sample(w, x).mean(0) * 2), (torch.randn(5, 3), torch.randn(7, 5)), {}


PLANT = lowering(torch.ops.aten.atan2.default, swapped)
EXPECT = {"kind": "wrong_value", "stage": "lowering", "ops": "aten.atan2"}
