"""The load of the last, incomplete vector of a loop reads one element too few and leaves a zero in its place."""

import torch
from torch._inductor.codegen.cpp import CppVecKernel

from diagnose.planting import attribute

right = CppVecKernel._get_vec_load_line


def short(self, var, index, dtype, load_mask=None):
    whole = self.num_elems
    if self.tail_size is not None:
        self.num_elems = whole - 1
    try:
        return right(self, var, index, dtype, load_mask)
    finally:
        self.num_elems = whole


def make():
    return (lambda x, y: torch.exp(x) * y), (torch.randn(61), torch.randn(61)), {}


PLANT = attribute(CppVecKernel, "_get_vec_load_line", short)
EXPECT = {"kind": "wrong_value", "stage": "codegen", "ops": "aten.exp aten.mul"}
