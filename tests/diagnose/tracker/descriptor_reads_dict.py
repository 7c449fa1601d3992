"""A data descriptor keeps its value in the object's dict. Found by differential testing."""

import torch


class Stored:
    def __get__(self, owner, kind=None):
        return owner.__dict__.get("_level", 2) if owner is not None else self

    def __set__(self, owner, value):
        owner.__dict__["_level"] = value * 10


class Gate:
    level = Stored()


gate = Gate()


def program(x):
    y = x * gate.level
    gate.level = 3
    return y + gate.level


def make():
    return program, (torch.ones(4),), {}


def extra_calls():
    return [((torch.ones(4),), {})]


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "gate.level operator.mul", "lines": 60}
