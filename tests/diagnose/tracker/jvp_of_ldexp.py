"""pytorch/pytorch#197086: the derivative of `ldexp` ends the process while AOTAutograd's graph runs."""

import torch


def tangent(x, direction):
    return torch.func.jvp(lambda a: torch.ldexp(a.sin(), torch.tensor([1, 2, 3])) * 2, (x,), (direction,))


def program(x):
    y = torch.tanh(x)
    return tangent(y, torch.ones(3))


def make():
    return program, (torch.ones(3),), {}


EXPECT = {"kind": "segfault", "stage": "aot", "ops": "torch.ldexp", "lines": 40}
