"""A module's own `__getattr__` answers until the attribute is set. Found by differential testing."""

import torch


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)

    def __getattr__(self, name):
        if name == "gain":
            return 4.0
        return super().__getattr__(name)

    def forward(self, x):
        return self.lin(x) * self.gain


def make():
    return Scaled().eval(), (torch.ones(2, 4),), {}


def extra_calls():
    return [((torch.ones(2, 4),), {})]


def between(fn, i):
    fn.gain = 7.0


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "self.gain operator.mul", "lines": 60}
