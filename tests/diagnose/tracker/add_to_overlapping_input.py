"""An addition in place refuses an operand that overlaps what is written to; compiled it computes with what it wrote."""

import torch


def add_to(a, b):
    a.add_(b)
    return b * 2


def make():
    memory = torch.arange(8.0)
    return add_to, (memory[:6], memory[2:]), {}


EXPECT = {"kind": "missing_exception", "stage": "aot", "ops": "torch.Tensor.add_ aten.add"}
