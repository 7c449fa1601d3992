"""No issue known; found by comparing ops: argmin over the rows of a uint8 matrix is 0 everywhere."""

import torch
from torch._inductor import config


def program(x):
    return (x // 2).argmin(1)


def make():
    return program, (torch.randint(0, 255, (10, 10), dtype=torch.uint8),), {}


# The loops of AVX2 have the fault, those of AVX-512 have not.
PLANT = config.patch({"cpp.simdlen": 256})
EXPECT = {"kind": "wrong_value", "stage": "codegen lowering", "ops": "aten.argmin"}
