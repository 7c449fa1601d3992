"""Attention under a mask of -inf, with one row that is masked as a whole: NaN, uncompiled and compiled."""

import torch


def program(q, k, v, mask):
    return torch.softmax(q @ k.mT / 4 + mask, -1) @ v


def make():
    mask = torch.full((6, 6), float("-inf")).triu(1)
    mask[2] = float("-inf")
    return program, (*(torch.randn(2, 6, 16) for _ in range(3)), mask), {}
