"""`copy.deepcopy` in a compiled function ignores `__getstate__`, so that a return in between is missed. Found by
differential testing."""

import copy

import torch


class State:
    def __init__(self):
        self.scale = 2.0
        self.cache = [10.0]

    def __getstate__(self):
        return {"scale": self.scale, "cache": None}

    def __setstate__(self, kept):
        self.__dict__.update(kept)


def program(x, state):
    fresh = copy.deepcopy(state)
    if fresh.cache is None:
        return x * fresh.scale
    return x * fresh.scale + fresh.cache[0]


def make():
    return program, (torch.ones(3), State()), {}


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "copy.deepcopy", "lines": 60}
