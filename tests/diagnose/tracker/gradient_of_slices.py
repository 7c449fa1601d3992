"""Slices of one tensor returned beside its detached self: the compiled program gives no gradient (pytorch#194479)."""

import torch


def program(x):
    y = torch.sin(x)
    return y[:4], y[4:], y.detach()


def make():
    return program, (torch.randn(8).requires_grad_(),), {}


GRAD = True
EXPECT = {"kind": "wrong_gradient", "stage": "aot joint", "ops": "torch.Tensor.detach aten.detach", "lines": 40}
