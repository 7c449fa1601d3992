"""Half of a tensor is never written: it holds what was in the memory before."""

import torch


def program(x):
    y = torch.empty(8)
    y[:4] = x[:4].sin()
    return y, y[:4] * 2


def make():
    torch.manual_seed(0)
    return program, (torch.randn(8),), {}


EXPECT = {"kind": "control", "stage": "none", "culprit_ops": [], "direction": "forward"}
