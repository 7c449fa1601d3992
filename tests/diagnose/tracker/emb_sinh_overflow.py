"""pytorch/pytorch#183763, see `sinh_overflow`: in a block of a transformer."""

import torch

from diagnose.hosts import transformer


def warp(h):
    few = h.mean((0, 1))[:24].sign()
    return h + (torch.sinh(88.9 * few) * 1e-38).sum()


def make():
    return transformer(inner=warp, depth=4, at=2)


EXPECT = {"kind": "nonfinite wrong_value", "stage": "codegen", "ops": "aten.sinh"}
