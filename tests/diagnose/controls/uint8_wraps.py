"""Arithmetic of bytes that wraps around."""

import torch


def program(x, y):
    return x + y, x * y, (x - y).to(torch.int32), x // 3


def make():
    x, y = (torch.randint(0, 256, (70,), dtype=torch.uint8) for _ in range(2))
    return program, (x, y), {}
