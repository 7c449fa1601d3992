"""Nearest interpolation of an image without rows reads outside of it; uncompiled it raises (pytorch#197095)."""

import torch


def program(x):
    return torch.nn.functional.interpolate(x, size=(3, 2), mode="nearest")


def make():
    return program, (torch.zeros(1, 1, 0, 4),), {}


EXPECT = {"kind": "missing_exception", "stage": "decomposition", "ops": "aten.upsample_nearest2d", "lines": 40}
