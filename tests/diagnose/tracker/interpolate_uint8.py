"""No issue known; found by comparing ops: bilinear interpolation of uint8 rounds otherwise."""

import torch


def program(x):
    return torch.nn.functional.interpolate(x, scale_factor=1.7, mode="bilinear")


def make():
    return program, (torch.randint(0, 255, (1, 1, 8, 8), dtype=torch.uint8),), {}


EXPECT = {"kind": "wrong_value", "stage": "decomposition aot", "ops": "aten.upsample_bilinear2d"}
