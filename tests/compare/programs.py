"""Small programs with what real ones have: a transformer and a convnet, in any dtype, with a fault planted or not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from compare.recording import MemoryDump, Recorder


class Block(nn.Module):
    def __init__(self, d: int, heads: int, gelu: str = "none") -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.heads, self.gelu = heads, gelu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(d, dim=-1)
        q, k, v = (z.reshape(b, t, self.heads, d // self.heads).transpose(1, 2) for z in (q, k, v))
        scores = torch.matmul(q, k.transpose(-1, -2)) / (d // self.heads) ** 0.5
        mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        weights = F.softmax(scores.masked_fill(~mask, -1e4), dim=-1)
        a = torch.matmul(weights, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(a)
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate=self.gelu))


class Gpt(nn.Module):
    def __init__(self, layers: int = 3, d: int = 32, vocab: int = 64) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, d), nn.Embedding(32, d)
        self.blocks = nn.ModuleList(Block(d, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)
        self.order = list(range(layers))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        for i in self.order:
            x = self.blocks[i](x)
        return self.head(self.norm(x))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in ((3, 8), (8, 8), (8, 8), (8, 16)))
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (8, 8, 8, 16))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        return self.head(F.avg_pool2d(x, 8).flatten(1))


def gpt(**changes: Any) -> Gpt:
    torch.manual_seed(1)
    model = Gpt(**changes)
    for p in model.parameters():  # trained weights are no longer those of the initialization
        p.data.mul_(1.5)
    return model


def gpt_run(
    *,
    dtype: torch.dtype = torch.float32,
    change: Callable[[Gpt], Any] | None = None,
    model: Gpt | None = None,
    **planted: Any,
) -> MemoryDump:
    """One forward and backward of the transformer."""
    module = copy.deepcopy(model) if model is not None else gpt()
    if change is not None:
        change(module)
    module = module.to(dtype)
    torch.manual_seed(2)
    ids, target = torch.randint(0, 64, (2, 16)), torch.randint(0, 64, (32,))
    with Recorder(module, **planted) as recorder:
        loss = F.cross_entropy(module(ids).reshape(32, 64).float(), target)
        loss.backward()
    return recorder.dump


def conv_run(
    *, dtype: torch.dtype = torch.float32, change: Callable[[ConvNet], Any] | None = None, **planted: Any
) -> MemoryDump:
    """One forward and backward of the convnet."""
    torch.manual_seed(3)
    module = ConvNet()
    if change is not None:
        change(module)
    module = module.to(dtype)
    torch.manual_seed(4)
    x, target = torch.randn(4, 3, 16, 16).bfloat16().to(dtype), torch.randint(0, 10, (4,))
    with Recorder(module, **planted) as recorder:
        loss = F.cross_entropy(module(x).float(), target)
        loss.backward()
    return recorder.dump
