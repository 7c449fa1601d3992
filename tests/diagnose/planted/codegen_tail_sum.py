"""The last, incomplete vector of a sum loses its last element, in the attention of a
transformer."""

from torch._inductor.codegen.cpp import CppVecKernel

from diagnose.hosts import transformer
from diagnose.planting import attribute

right = CppVecKernel.reduction_combine_vec


def short(self, reduction_type, *args, **kwargs):
    if self.tail_size is None or reduction_type != "sum":
        return right(self, reduction_type, *args, **kwargs)
    whole, self.tail_size = self.tail_size, self.tail_size - 1
    try:
        return right(self, reduction_type, *args, **kwargs)
    finally:
        self.tail_size = whole


def make():
    return transformer(depth=2, at=1)


PLANT = attribute(CppVecKernel, "reduction_combine_vec", short)
EXPECT = {"kind": "wrong_value", "stage": "codegen", "ops": "aten.sum aten._softmax"}
