"""Rotary embeddings in bfloat16, as in pytorch/pytorch#159239: fused, the products are added as they are, not rounded,
and where they nearly cancel that shows."""

import torch


def rotated(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def program(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotated(q) * sin, k * cos + rotated(k) * sin


def make():
    angle = torch.randn(1, 16, 32).repeat(1, 1, 2)
    q, k = torch.randn(1, 4, 16, 64).bfloat16(), torch.randn(1, 4, 16, 64).bfloat16()
    return program, (q, k, angle.cos().bfloat16(), angle.sin().bfloat16()), {}
