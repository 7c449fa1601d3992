"""A training step of a small model, dumped three times; under torchrun with DDP and gloo.

    ddp_dump.py FOLDER

`parts`: each rank has its part of the batch; `same`: each has the whole; `perturbed`: and on the last rank a weight is
another once the ranks agreed on them. Each rank holds some of three experts, which DDP leaves alone.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import graphprobe

WORLD, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)
        self.register_buffer("shift", torch.linspace(0, 1, 8))
        self.expert = torch.nn.Linear(8, len(range(RANK, 3, WORLD)), bias=False)
        torch.nn.init.constant_(self.expert.weight, 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x).relu()) + self.shift
        return self.second(x).sum(dim=1) + self.expert(x).mean(dim=1)


def step(case: str) -> None:
    torch.manual_seed(0)
    inner = model = Model()
    if WORLD > 1:
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, ["expert.weight"])
        model = DistributedDataParallel(inner)
    if case == "perturbed" and RANK == 1:
        inner.second.weight.data[1, 3] += 1e-2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    if case == "parts":
        x = x.chunk(WORLD)[RANK].clone()
    with graphprobe.dump(f"{sys.argv[1]}/{case}", data="tensor"):
        model(x).square().mean().backward()
        optimizer.step()


if WORLD > 1:
    dist.init_process_group("gloo")
for case in ("parts", "same", "perturbed")[: 3 if WORLD > 1 else 1]:
    step(case)
if WORLD > 1:
    dist.barrier()
    dist.destroy_process_group()
