"""The forward of a part's class is replaced between two calls. Found by differential testing."""

import torch


class Part(torch.nn.Module):
    def forward(self, x):
        return x + 1


def make():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), Part()).eval(), (torch.ones(4),), {}


def extra_calls():
    return [((torch.ones(4),), {})]


def between(fn, i):
    Part.forward = lambda self, x: x * 4


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "operator.add aten.add", "lines": 60}
