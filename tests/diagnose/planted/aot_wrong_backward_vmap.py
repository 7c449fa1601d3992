"""AOTAutograd traces a negation in a backward as a copy; the op runs inside of vmap."""

import torch

from diagnose.planted.aot_wrong_traced_backward import plant

__all__ = ["plant"]

GRAD = True


def rows(row):
    return (torch.cos(row) * 2).softmax(0) + torch.sin(row).sum()


def make():
    return (lambda x: torch.vmap(rows)(x) * torch.exp(x)), (torch.randn(3, 6).requires_grad_(),), {}


EXPECT = {"kind": "wrong_gradient", "stage": "aot", "ops": "aten.neg aten.clone aten.cos"}
