"""The lowering of mul promotes an integer and a floating-point tensor to the integer type."""

import torch
from torch._inductor.lowering import to_dtype

from diagnose.hosts import mlp
from diagnose.planting import lowering


def truncating(right, a, b):
    if hasattr(a, "get_dtype") and hasattr(b, "get_dtype"):
        kinds = a.get_dtype().is_floating_point, b.get_dtype().is_floating_point
        if kinds == (True, False):
            return to_dtype(right(to_dtype(a, b.get_dtype()), b), a.get_dtype())
    return right(a, b)


def counted(h, counts):
    return h + torch.sigmoid(h * 3 * counts)


def make():
    model, args, kwargs = mlp(inner=counted, at=1)
    return model, (*args, torch.arange(6).view(6, 1) + 1), kwargs


PLANT = lowering(torch.ops.aten.mul.Tensor, truncating)
EXPECT = {"kind": "wrong_value", "stage": "lowering", "ops": "aten.mul"}
