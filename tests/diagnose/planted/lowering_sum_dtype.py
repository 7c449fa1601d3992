"""The lowering of sum keeps int32 where torch says int64."""

import torch
from torch._inductor.lowering import to_dtype

from diagnose.planting import lowering


def narrow(right, x, axis=None, keepdims=False, *, dtype=None):
    return to_dtype(right(x, axis, keepdims, dtype=dtype), x.get_dtype())


def make():
    return (lambda x: (x * 3).sum(1)), (torch.arange(24, dtype=torch.int32).view(4, 6),), {}


PLANT = lowering(torch.ops.aten.sum.dim_IntList, narrow)
EXPECT = {"kind": "wrong_dtype", "stage": "lowering", "ops": "aten.sum"}
