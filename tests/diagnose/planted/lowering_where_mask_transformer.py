"""The lowering of where swaps its branches if one of them is a scalar: the causal mask of a transformer is inverted."""

import torch

from diagnose.hosts import transformer
from diagnose.planting import lowering


def swapped(right, condition, x, y):
    scalar = any(isinstance(v, float) or not v.get_size() for v in (x, y))
    return right(condition, y, x) if scalar else right(condition, x, y)


def make():
    return transformer(depth=3, at=1)


PLANT = lowering(torch.ops.aten.where.self, swapped)
EXPECT = {"kind": "wrong_value nonfinite", "stage": "lowering", "ops": "aten.where"}
