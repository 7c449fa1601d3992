"""pytorch/pytorch#197089: std becomes the root of a float32 variance, which overflows for 1e30; eager keeps
it in double."""

import torch


def program(x):
    return x.std(-1)


def make():
    return program, (torch.randn(4, 33) * 1e30,), {}


EXPECT = {"kind": "nonfinite wrong_value", "stage": "decomposition", "ops": "aten.std aten.var aten.sqrt"}
