"""The running sum of 4096 floats, whose rounding depends on the order of the additions."""

import torch


def program(x):
    return torch.cumsum(x * 1.5, -1)


def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, 4096),), {}


EXPECT = {"kind": "control", "stage": "none", "culprit_ops": [], "direction": "forward"}
