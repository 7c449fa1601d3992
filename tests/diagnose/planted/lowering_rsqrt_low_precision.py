"""The lowering of rsqrt has eleven bits of precision: every RMS norm of an MLP is a little off."""

import torch
from torch._inductor.lowering import floor, lowerings

from diagnose.hosts import mlp
from diagnose.planting import lowering


def low(right, x):
    mul = lowerings[torch.ops.aten.mul.Tensor]
    return mul(floor(mul(right(x), 1024.0)), 1 / 1024)


def make():
    return mlp()


PLANT = lowering(torch.ops.aten.rsqrt.default, low)
EXPECT = {"kind": "wrong_value", "stage": "lowering", "ops": "aten.rsqrt"}
