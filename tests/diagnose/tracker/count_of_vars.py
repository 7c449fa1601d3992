"""The number of attributes of an object, which has one more later. Found by differential testing."""

import torch


class Bag:
    pass


bag = Bag()
bag.a = 1


def program(x):
    return torch.sin(x) * len(vars(bag))


def make():
    return program, (torch.ones(4),), {}


def extra_calls():
    return [((torch.ones(4),), {})]


def between(fn, i):
    bag.b = 2


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "vars len operator.mul", "lines": 60}
