"""Whole numbers of what is 1 but for its roundings: they decide which elements are 0, compiled and uncompiled."""

import torch


def program(x):
    total = torch.softmax(x, -1).sum(-1)
    return torch.floor(total), total >= 1, (4 * total).long()


def make():
    return program, (torch.randn(64, 33),), {}
