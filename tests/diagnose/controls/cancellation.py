"""A sum of what large numbers leave when they cancel: few digits are right, uncompiled and compiled."""

import torch


def program(x, y):
    shifted = (x * y + 1e6) - 1e6
    return shifted.sum(-1), (x.exp() - (x * 1.0000001).exp()).mean()


def make():
    return program, (torch.randn(3, 257), torch.randn(3, 257)), {}
