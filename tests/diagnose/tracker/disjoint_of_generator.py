"""`set.isdisjoint` of a generator is true although they share an item, so that a router takes the other branch, which
calls the same functions. Found by differential testing."""

import torch
import torch.nn as nn


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.short = nn.Linear(6, 6)
        self.long = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))
        self.need_long = {1, 2, 3}

    def forward(self, x, tags):
        if self.need_long.isdisjoint(t - 1 for t in tags):
            h = self.short(x)
        else:
            h = self.long(x)
        return x + h


def make():
    return Router().eval(), (torch.randn(2, 6), [9, 4]), {}


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "self.need_long", "lines": 60}
