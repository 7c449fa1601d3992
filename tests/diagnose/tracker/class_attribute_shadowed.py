"""A class attribute that hides the one of its base, set between two calls. Found by differential testing."""

import torch


class Defaults:
    gain = 2.0


class Tuned(Defaults):
    pass


tuned = Tuned()


def program(x):
    return torch.sin(x) * tuned.gain


def make():
    return program, (torch.ones(4),), {}


def extra_calls():
    return [((torch.ones(4),), {})]


def between(fn, i):
    Tuned.gain = 3.0


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "tuned.gain operator.mul", "lines": 60}
