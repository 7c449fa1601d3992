"""A handler of AttributeError; the class has the attribute later. Found by differential testing."""

import torch


class Options:
    pass


options = Options()


def program(x):
    try:
        return torch.exp(x) * options.gain
    except AttributeError:
        return torch.exp(x) * 3


def make():
    return program, (torch.ones(4),), {}


def extra_calls():
    return [((torch.ones(4),), {})]


def between(fn, i):
    Options.gain = 7.0


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "AttributeError options.gain", "lines": 60}
