"""A step in bfloat16 of operators none of which rounds: every bit is compared, gradients included."""

import torch
from torch.nn import functional


def program(x, y, index):
    kept = functional.pad(torch.maximum(x.relu(), y.abs()), (1, 1), value=-0.5)
    pooled = functional.max_pool1d(kept[None].clamp(-2, 2), 3, stride=3)[0]
    chosen = torch.where(pooled > 0.25, pooled, -1.0).sort(0, stable=True).values.float()
    return chosen.index_select(0, index).flip(1), x.copysign(y).sign(), kept.argmax(1)


def make():
    x, y = (torch.randn(16, 40).to(torch.bfloat16) for _ in range(2))
    return program, (x.requires_grad_(), y, torch.randperm(16)), {}
