"""The lowering of atan2 swaps its arguments."""

import torch

from diagnose.planting import lowering


def swapped(right, y, x):
    return right(x, y)


def make():
    return (lambda y, x: torch.atan2(y * 2, x)), (torch.randn(4, 6), torch.randn(4, 6)), {}


PLANT = lowering(torch.ops.aten.atan2.default, swapped)
EXPECT = {"kind": "wrong_value", "stage": "lowering", "ops": "aten.atan2"}
