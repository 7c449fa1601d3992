"""A branch on a value and a call that is not traced: three graphs."""

import torch
import torch._dynamo


@torch._dynamo.disable
def note(value):
    return float(value)


def program(x):
    y = torch.sin(x) * 2
    factor = note(y.mean())
    y = y * factor
    if y.sum().item() > 0:
        return torch.exp(-y)
    return torch.exp(y)


def make():
    return program, (torch.randn(4, 9),), {}
