"""An equal key is found in a dict. Found by differential testing."""

import torch


class Key:
    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return self.name == other.name

    def __hash__(self):
        return hash(self.name)


class Lookup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gains = {Key("a"): 2.0, Key("b"): 4.0}
        self.lin = torch.nn.Linear(4, 4)

    def forward(self, x, name):
        return self.lin(x) * self.gains.get(Key(name), 9.0)


def make():
    return Lookup().eval(), (torch.ones(2, 4), "b"), {}


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "self.gains.get", "lines": 60}
