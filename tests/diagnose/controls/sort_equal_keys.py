"""A stable sort, whose places are specified, and one that is not stable, of equal keys."""

import torch


def program(x):
    stable = torch.sort(x + 1, stable=True)
    loose = torch.sort(x * 2, descending=True)
    return stable.values, stable.indices, loose.values


def make():
    return program, (torch.randint(0, 4, (3, 50)).float(),), {}
