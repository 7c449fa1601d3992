"""A class is registered with an abstract one between two calls. Found by differential testing."""

import abc

import torch


class Scaling(abc.ABC):  # noqa: B024
    pass


class Plain:
    pass


plain = Plain()


def program(x):
    if isinstance(plain, Scaling):
        return torch.sin(x) * 2
    return torch.sin(x)


def make():
    return program, (torch.ones(4),), {}


def extra_calls():
    return [((torch.ones(4),), {})]


def between(fn, i):
    Scaling.register(Plain)


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "isinstance operator.mul", "lines": 60}
