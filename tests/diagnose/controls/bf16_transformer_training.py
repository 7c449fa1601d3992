"""A bf16 transformer with its backward: rounding differs in every op."""

import torch

from diagnose.hosts import transformer

GRAD = True


def make():
    return transformer(torch.bfloat16, depth=2, at=1)
