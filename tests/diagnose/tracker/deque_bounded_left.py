"""A bounded deque that is extended on its left drops on its right. Found by differential testing."""

import collections

import torch


class Window(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = collections.deque([1.0, 2.0, 3.0], maxlen=3)

    def forward(self, x):
        self.last.extendleft([7.0, 8.0])
        return torch.tanh(x) * self.last[0] + len(self.last)


def make():
    return Window(), (torch.ones(4),), {}


EXPECT = {"kind": "wrong_value side_effect", "stage": "dynamo", "ops": "self.last.extendleft", "lines": 60}
