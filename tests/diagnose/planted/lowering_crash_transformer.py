"""The lowering of one op fails, in the middle of a transformer."""

import torch

from diagnose.hosts import transformer
from diagnose.planting import lowering


def failing(right, x):
    raise IndexError("list index out of range")


def squash(h):
    return h + torch.atan(h)


def make():
    return transformer(inner=squash, at=4)


PLANT = lowering(torch.ops.aten.atan.default, failing)
EXPECT = {"kind": "crash_compile", "stage": "lowering", "ops": "aten.atan"}
