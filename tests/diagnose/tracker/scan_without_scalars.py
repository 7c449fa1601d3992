"""A post-grad pass that makes `scan` a while_loop reads a number, which torch forbids by default."""

import torch
from torch._higher_order_ops.scan import scan


def program(x):
    return scan(lambda carry, row: (carry + row, carry * row), torch.zeros(3), x)


def make():
    return program, (torch.randn(5, 3),), {}


EXPECT = {"kind": "crash_compile", "stage": "post_grad", "ops": "higher_order.scan"}
