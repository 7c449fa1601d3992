"""The C++ of sin is one of its own, with too few terms."""

import torch

from diagnose.planting import cpp


def series(x):
    return f"({x} - {x} * {x} * {x} / decltype({x})(6.0f))"


def make():
    return (lambda x: torch.sin(x) * 2 + 1), (torch.rand(2, 37),), {}


PLANT = cpp("sin", series)
EXPECT = {"kind": "wrong_value", "stage": "codegen", "ops": "aten.sin"}
