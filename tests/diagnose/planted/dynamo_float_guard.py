"""Dynamo does not guard on the value of a Python float: the one of the first call is baked in."""

import torch
from torch._dynamo.guards import GuardBuilder

from diagnose.planting import attribute

right = GuardBuilder.EQUALS_MATCH


def lax(self, guard, recompile_hint=None):
    if not isinstance(self.get(guard), float):
        right(self, guard, recompile_hint)


def scaled(x, scale):
    return torch.sin(x) * scale


def make():
    return scaled, (torch.randn(12), 2.0), {}


def extra_calls():
    torch.manual_seed(1)
    return [((torch.randn(12), 3.0), {})]


PLANT = attribute(GuardBuilder, "EQUALS_MATCH", lax)
EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "aten.mul torch.mul operator.mul _operator.mul"}
