"""No issue known; found by comparing ops: a bound that int8 cannot hold is refused uncompiled only."""

import torch


def program(x):
    return x.clamp(-5, 300)


def make():
    return program, (torch.randint(-128, 127, (100,), dtype=torch.int8),), {}


EXPECT = {"kind": "missing_exception", "stage": "lowering codegen", "ops": "aten.clamp"}
