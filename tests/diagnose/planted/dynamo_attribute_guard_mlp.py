"""Dynamo does not guard on a float attribute of a module, which the program changes between two calls."""

import torch
from torch import nn
from torch._dynamo.guards import GuardBuilder

from diagnose.hosts import mlp
from diagnose.planting import attribute

right = GuardBuilder.EQUALS_MATCH


def lax(self, guard, recompile_hint=None):
    if not isinstance(self.get(guard), float):
        right(self, guard, recompile_hint)


class Tempered(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body, self.temperature = body, 1.0

    def forward(self, x):
        return torch.softmax(self.body(x) / self.temperature, -1)


def make():
    model, args, kwargs = mlp()
    return Tempered(model).eval(), args, kwargs


def extra_calls():
    return [(mlp()[1], {})]


def between(fn, i):
    fn.temperature = 0.25


PLANT = attribute(GuardBuilder, "EQUALS_MATCH", lax)
EXPECT = {
    "kind": "wrong_value",
    "stage": "dynamo",
    "ops": "aten.div operator.truediv _operator.truediv torch.div torch.true_divide",
}
