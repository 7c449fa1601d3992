"""No issue known; found by comparing ops: nextafter of bfloat16 takes the step in float32, where rounding undoes it."""

import torch


def program(x, y):
    return torch.nextafter(x, y)


def make():
    return program, (torch.randn(64).to(torch.bfloat16), torch.randn(64).to(torch.bfloat16)), {}


EXPECT = {"kind": "wrong_value", "stage": "codegen lowering", "ops": "aten.nextafter"}
