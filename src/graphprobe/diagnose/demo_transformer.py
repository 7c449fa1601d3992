"""A small transformer, compiled by a healthy compiler and by one with a known fault: `graphprobe demo` copies it.

`graphprobe diagnose transformer.py:faulty` must blame the ReLU in the MLPs. `:healthy` is the same model.
The fault is Inductor's own, made for testing: the C++ that it generates for ReLU adds 1 to what it should compute.
"""

from __future__ import annotations

import torch
from torch import nn

from graphprobe.internals.compiler_settings import plant_relu_fault

WIDTH, HEADS, LAYERS = 16, 2, 2
BATCH, SEQUENCE = 2, 8


class Mlp(nn.Module):
    """Two linear layers with a ReLU between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.up(x))
        result: torch.Tensor = self.down(hidden)
        return result


class Block(nn.Module):
    """Attention and MLP, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.norm_mlp = nn.LayerNorm(WIDTH)
        self.project_in = nn.Linear(WIDTH, 3 * WIDTH)
        self.project_out = nn.Linear(WIDTH, WIDTH)
        self.mlp = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.project_in(self.norm_attention(x)).view(batch, length, 3, HEADS, width // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project_out(mixed.transpose(1, 2).reshape(batch, length, width))
        result: torch.Tensor = x + self.mlp(self.norm_mlp(x))
        return result


class Transformer(nn.Module):
    """Blocks, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def healthy() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The model and its arguments."""
    torch.manual_seed(0)
    return Transformer().eval(), (torch.randn(BATCH, SEQUENCE, WIDTH),)


def faulty() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The same, and the fault in the compiler."""
    plant_relu_fault()
    return healthy()
