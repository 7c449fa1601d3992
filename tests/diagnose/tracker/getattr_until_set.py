"""`__getattr__` answers until the attribute is set. Found by differential testing."""

import torch


class Config:
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return len(name)


config = Config()


def program(x):
    return torch.cos(x) * config.width


def make():
    return program, (torch.ones(4),), {}


def extra_calls():
    return [((torch.ones(4),), {})]


def between(fn, i):
    config.width = 10


EXPECT = {"kind": "wrong_value", "stage": "dynamo", "ops": "config.width operator.mul", "lines": 60}
