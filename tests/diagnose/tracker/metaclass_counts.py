"""`__call__` of a metaclass is not called. Found by differential testing."""

import torch


class Counting(type):
    made = 0

    def __call__(cls, *args):
        Counting.made += 1
        return super().__call__(*args)


class Scale(metaclass=Counting):
    def __init__(self, by):
        self.by = by


def program(x):
    return x * Scale(3.0).by


def make():
    return program, (torch.ones(4),), {}


EXPECT = {"kind": "side_effect", "stage": "dynamo", "ops": "Scale", "lines": 60}
