"""`move_to_end` of an OrderedDict of the caller is lost. Found by differential testing."""

import collections

import torch


class Cache(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = collections.OrderedDict(a=1.0, b=2.0, c=3.0)

    def forward(self, x, name):
        self.seen.move_to_end(name)
        return torch.tanh(x) * self.seen[name]


def make():
    return Cache(), (torch.ones(4), "a"), {}


EXPECT = {"kind": "side_effect wrong_value", "stage": "dynamo", "ops": "self.seen.move_to_end"}
