"""A training with one fault, for bench/watch_faults.py: MODEL FAULT STEPS. Inductor compiles it, AdamW trains it."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch
from torch import nn
from torch._inductor.compile_fx import compile_fx
from torch.nn import functional as F  # noqa: N812

OVERFLOW, BAD, SHAPE, SPOILT, SHOWN, RAISED, KILLED = 300, 200, 250, 120, 160, 90, 77
"""The step in which each fault comes; a parameter is spoilt in `SPOILT`, and read from `SHOWN` on."""

D, ROWS, LATE_ROWS, IDS = 32, 4, 3, 16


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grown = torch.exp(x * self.scale)
        return torch.tanh(grown - 1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2, self.qkv, self.out = nn.LayerNorm(D), nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.fc1, self.gate, self.fc2 = nn.Linear(D, 2 * D), Gate(), nn.Linear(2 * D, D)

    def forward(self, x: torch.Tensor, causal: bool) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, D // 2)).transpose(1, 2) for part in self.qkv(self.ln1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2))
        return x + self.fc2(self.gate(self.fc1(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ids, self.head = nn.Embedding(IDS, D), nn.Linear(D, IDS)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        h = self.ids(ids) * x.mean(-1, keepdim=True)
        for block in self.blocks:
            h = block(h, causal=True)
        return F.cross_entropy(self.head(h).flatten(0, 1), ids.flatten())


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.ids, self.head = nn.Linear(D, D), nn.Embedding(IDS, D), nn.Linear(D, IDS)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        h = self.patch(x) + self.ids(ids)
        for block in self.blocks:
            h = block(h, causal=False)
        return F.cross_entropy(self.head(h.mean(1)), ids[:, 0])


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.ids = nn.LSTM(D, D, batch_first=True), nn.Embedding(IDS, D)
        self.gate, self.head = Gate(), nn.Linear(D, IDS)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        h = self.gate(self.lstm(x + self.ids(ids))[0])
        return F.cross_entropy(self.head(h[:, -1]), ids[:, 0])


@torch.library.custom_op("watch_faults::tanh", mutates_args=())
def planted(x: torch.Tensor) -> torch.Tensor:
    """Wrong for one number of rows alone."""
    return torch.tanh(x) * (1.25 if x.shape[0] == LATE_ROWS else 1.0)


planted.register_fake(torch.empty_like)
planted.register_autograd(
    lambda ctx, gradient: gradient * (1 - ctx.saved_tensors[0].square()),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)


def inductor_with_a_wrong_kernel(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    for node in graph.graph.nodes:
        if node.target is torch.tanh:
            node.target = torch.ops.watch_faults.tanh.default
    graph.recompile()
    return compile_fx(graph, inputs)


def batch(step: int, fault: str) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(step)
    rows = LATE_ROWS if fault == "kernel" and step >= SHAPE else ROWS
    x, ids = torch.randn(rows, 8, D, generator=drawn), torch.randint(0, IDS, (rows, 8), generator=drawn)
    if fault == "spoilt" and step < SHOWN:
        ids = ids.masked_fill(ids == 1, 2)
    if fault == "batch" and step == BAD:
        x[1, 2] = float("nan")
    if fault == "exception" and step == RAISED:
        ids[0, 0] = 1000
    return x, ids


def main() -> None:
    name, fault, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = {"gpt": GPT, "vit": ViT, "lstm": LSTM}[name]()
    backend: Any = inductor_with_a_wrong_kernel if fault == "kernel" else "inductor"
    compiled = torch.compile(model, backend=backend, dynamic=fault == "kernel" or None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(1, steps + 1):
        if fault == "overflow" and step == OVERFLOW:
            next(m for m in model.modules() if isinstance(m, Gate)).scale.fill_(1e4)
        if fault == "spoilt" and step == SPOILT:
            with torch.no_grad():
                model.ids.weight[1] = float("nan")
        if fault == "killed" and step == KILLED:
            os.kill(os.getpid(), signal.SIGSEGV)
        loss = compiled(*batch(step, fault))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("trained")


if __name__ == "__main__":
    main()
