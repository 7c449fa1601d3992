"""A module of the program's own."""

import torch

FACTOR = 3
LIMITS = {"low": 0.5, "high": [1.0, 2.0]}


class Base:
    scale = 2

    def __init__(self, name):
        self.name = name

    def judge(self, x):
        if (x * self.scale).sum() > 0:
            return x
        return -x


def pick(x, limit):
    y = x * FACTOR
    if y.sum() > limit:
        return y
    return -y


def unused(x):
    raise AssertionError(torch.is_tensor(x))
