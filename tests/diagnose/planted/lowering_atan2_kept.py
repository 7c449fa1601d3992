"""The lowering of atan2 swaps its arguments, and what it gives is only kept by an object among the arguments."""

import torch

from diagnose.planting import lowering


class State:
    def __init__(self):
        self.angle = torch.zeros(4, 6)


class Turn(torch.nn.Module):
    def forward(self, y, x, state):
        state.angle.add_(torch.atan2(y * 2, x))
        return x + y


def swapped(right, y, x):
    return right(x, y)


def make():
    return Turn(), (torch.randn(4, 6), torch.randn(4, 6), State()), {}


PLANT = lowering(torch.ops.aten.atan2.default, swapped)
EXPECT = {"kind": "wrong_value", "stage": "lowering", "ops": "aten.atan2"}
