"""A compiled function on each rank, without a process group. Of rank 1 it is `right`, `wrong`, or the rank `dies`."""

import os
import sys

import torch

RANK, HOW = os.environ["RANK"], sys.argv[1]
if RANK == "1" and HOW == "dies":
    os._exit(9)


def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]):
    off = 0.5 if RANK == "1" and HOW == "wrong" else 0.0
    return lambda *args: tuple(value + off for value in graph(*args))


@torch.compile(backend=backend)
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


print(f"RANK {RANK} {twice(torch.ones(3)).tolist()}", flush=True)
