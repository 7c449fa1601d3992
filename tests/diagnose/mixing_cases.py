"""A transformer and its compiled graphs, with what mixing needs; for tests and for the bench."""

from pathlib import Path
from typing import Any

import torch

from graphprobe.diagnose.kernel_check import CompiledGraph
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.rungs import RungReport, Watch, kernel_rung, run_program
from graphprobe.diagnose.settings import Compilation


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.second(x)), approximate="tanh"))


class Transformer(torch.nn.Module):
    def __init__(self, layers: int, width: int = 16) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def transformer(layers: int = 6) -> tuple[Transformer, torch.Tensor]:
    torch.manual_seed(0)
    model = Transformer(layers)
    return model, torch.randn(2, 6, 16)


def compiled_graphs(fn: Any, args: Any, *, grad: bool = False, dynamic: bool | None = None) -> list[CompiledGraph]:
    watch = Watch()
    program = Program(fn, [(tuple(args), {})], grad=grad)
    compilation = Compilation("inductor", dynamic, Path())
    run_program(program, compilation, kernel_rung(watch, expose=False), RungReport())
    return watch.compiled
