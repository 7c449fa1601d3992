"""Exponentials that overflow, and the NaN that their difference is, uncompiled and compiled."""

import torch


def program(x):
    big = torch.exp(x * 10)
    return big, big - big.amax(-1, keepdim=True), torch.log(x)


def make():
    torch.manual_seed(0)
    return program, (torch.randn(4, 30) * 10,), {}


EXPECT = {"kind": "control", "stage": "none", "culprit_ops": [], "direction": "forward"}
