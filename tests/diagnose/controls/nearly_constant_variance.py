"""Variance and norm of data that hardly vary: rounding decides most digits of the result."""

import torch
from torch.nn import functional


def program(x):
    return x.var(-1), x.std(-1), functional.layer_norm(x, (64,))


def make():
    return program, (100 + torch.randn(4, 64) * 1e-3,), {}
