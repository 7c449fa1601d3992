"""pytorch/pytorch#198101: what is computed from a dtype view of an input is computed after a later write to it."""

import torch


def program(x):
    y = x.view(torch.int32) * 2
    y.sub_(-4)
    x[:, 2:5] = 2
    return y.view(torch.int64)


def make():
    return program, (torch.arange(-12, 12).reshape(4, 6),), {}


EXPECT = {
    "kind": "wrong_value aliasing",
    "stage": "lowering codegen",
    "ops": "aten.view aten.copy_ aten.mul aten.sub aten.add",
}
