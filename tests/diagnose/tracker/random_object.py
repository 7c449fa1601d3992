"""Numbers drawn from a `random.Random` of the program's own: the graph has that of its first call (pytorch#145445)."""

import random

import torch


def make():
    source = random.Random(7)

    def program(x):
        return x + source.randint(1, 1000)

    return program, (torch.zeros(2),), {}


def extra_calls():
    return [((torch.zeros(2),), {})] * 2


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "source.randint", "lines": 130}
