"""The decomposition of the exact gelu is the one of the tanh approximation, in every block of a transformer."""

import math

import torch

from diagnose.hosts import transformer
from diagnose.planting import decomposition


def tanh_gelu(x, approximate="none"):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def make():
    return transformer()


PLANT = decomposition(torch.ops.aten.gelu.default, tanh_gelu)
EXPECT = {"kind": "wrong_value", "stage": "decomposition", "ops": "aten.gelu"}
