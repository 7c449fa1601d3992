"""No issue known; found by comparing ops: a sum of int8 that is to be int8 is another number."""

import torch
from torch._inductor import config


def program(x):
    return x.sum(dtype=torch.int8)


def make():
    return program, (torch.randint(-128, 127, (100,), dtype=torch.int8),), {}


# The loops of AVX2 have the fault, those of AVX-512 have not.
PLANT = config.patch({"cpp.simdlen": 256})
EXPECT = {"kind": "wrong_value", "stage": "codegen lowering", "ops": "aten.sum"}
