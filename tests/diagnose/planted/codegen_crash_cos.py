"""Writing the C++ of cos raises, in a kernel that several ops share; cos runs inside of vmap."""

import torch

from diagnose.planting import cpp


def cos(x):
    raise NotImplementedError(f"no C++ for the cosine of {x}")


def make():
    return (lambda x: torch.vmap(lambda row: (row + 1).sin() * row.cos() - 2)(x).exp()), (torch.rand(5, 6),), {}


PLANT = cpp("cos", cos)
EXPECT = {"kind": "crash_compile", "stage": "codegen", "ops": "aten.cos"}
