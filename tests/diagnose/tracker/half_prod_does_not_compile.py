"""pytorch/pytorch#194706: the C++ for the Jacobian of a product of float16 values does not compile."""

import torch


def program(x):
    a, b, c = torch.prod(x) + x, torch.sum(x) + x, torch.sum(x) + x
    return torch.sum(torch.mm(torch.mm(a, b), c))


def make():
    x = (torch.arange(1, 10, dtype=torch.float16) / 10).reshape(3, 3)
    return torch.func.jacfwd(program), (x,), {}


EXPECT = {"kind": "crash_compile", "stage": "codegen", "ops": "aten.sum aten.prod aten.mul aten.where"}
