"""The lowering of atan2 swaps its arguments, and what it gives is returned inside of an object only."""

import torch

from diagnose.planting import lowering


class Polar:
    def __init__(self, angle, radius):
        self.angle, self.radius = angle, radius


def swapped(right, y, x):
    return right(x, y)


def make():
    return (
        (lambda y, x: Polar({"of": [torch.atan2(y * 2, x)]}, torch.hypot(x, y))),
        (torch.randn(4, 6), torch.randn(4, 6)),
        {},
    )


PLANT = lowering(torch.ops.aten.atan2.default, swapped)
EXPECT = {"kind": "wrong_value", "stage": "lowering", "ops": "aten.atan2"}
