"""`isinstance` asks the metaclass, compiled it does not. Found by differential testing."""

import torch


class Kind(type):
    def __instancecheck__(cls, value):
        return value == 5


class Five(metaclass=Kind):
    pass


def program(x, value):
    y = torch.cos(x)
    if isinstance(value, Five):
        return y * 2
    return y * 3


def make():
    return program, (torch.ones(4), 5), {}


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "isinstance", "lines": 60}
