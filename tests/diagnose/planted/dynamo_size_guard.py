"""Dynamo does not guard on the length of a list argument: a longer list is not summed to its end."""

import torch
from torch._dynamo.guards import GuardBuilder

from diagnose.planting import attribute


def none(self, guard, *args, **kwargs):
    pass


def total(parts):
    out = parts[0] * 0.5
    for part in parts[1:]:
        out = out + part
    return out


def make():
    return total, ([torch.randn(5) for _ in range(3)],), {}


def extra_calls():
    torch.manual_seed(1)
    return [(([torch.randn(5) for _ in range(4)],), {})]


PLANT = attribute(GuardBuilder, "SEQUENCE_LENGTH", none)
EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "aten.add operator.add _operator.add torch.add"}
