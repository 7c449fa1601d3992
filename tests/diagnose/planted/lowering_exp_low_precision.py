"""The lowering of exp rounds its argument to multiples of 1/512."""

import torch
from torch._inductor.lowering import floor, lowerings

from diagnose.planting import lowering


def low(right, x):
    mul = lowerings[torch.ops.aten.mul.Tensor]
    return right(mul(floor(mul(x, 512.0)), 1 / 512))


def make():
    return (lambda x: torch.exp(x) - 1.0), (torch.randn(3, 20),), {}


PLANT = lowering(torch.ops.aten.exp.default, low)
EXPECT = {"kind": "wrong_value", "stage": "lowering", "ops": "aten.exp"}
