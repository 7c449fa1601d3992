"""pytorch/pytorch#183763, see `sinh_overflow`: in a block of a transformer."""

import torch

from diagnose.hosts import transformer

FEW = 24 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 12
"""So many that Inductor makes vector code, and eager none yet."""


def warp(h):
    few = h.mean((0, 1))[:FEW].sign()
    return h + (torch.sinh(88.9 * few) * 1e-38).sum()


def make():
    return transformer(inner=warp, depth=4, at=2)


EXPECT = {"kind": "nonfinite wrong_value", "stage": "codegen", "ops": "aten.sinh"}
