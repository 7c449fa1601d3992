"""The C++ of cos is one of its own, with too few terms; the op runs inside of vmap, in training."""

import torch

from diagnose.planting import cpp


def cos(x):
    return f"(decltype({x})(1.0f) - {x} * {x} / decltype({x})(2.0f))"


class Rows(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(6, 4) / 4)

    def forward(self, x):
        hidden = torch.vmap(lambda row: torch.cos(row @ self.weight).softmax(0))(x)
        return (hidden * hidden).sum(1).mean()


def make():
    return Rows(), (torch.rand(5, 6),), {}


PLANT = cpp("cos", cos)
EXPECT = {"kind": "wrong_value", "stage": "codegen", "ops": "aten.cos"}
