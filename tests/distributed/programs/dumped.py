"""Training steps, dumped as they are and with a weight that is another on one rank; each learns on its part of a batch.

    dumped.py FOLDER experts|ddp|fsdp2 CASE ...

`plain` is not dumped; `healthy` and `again` are as they are; in `same` and `perturbed` each rank has the whole batch.
On one rank a weight of the layer `second` is changed, mostly not by a call of torch: in `perturbed` once the ranks
agreed on them; in `lowest` and `highest` one bit of a fraction, in the second step; in `shard`, of fsdp2, the highest
in the part that the rank holds, before the second step; in `called` a call of torch changes that part. Of `experts`,
each rank holds some of three that DDP leaves alone.
What a rank has learnt is written as a digest to FOLDER/CASE.RANK.
"""

import contextlib
import ctypes
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import graphprobe

WORLD, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
FOLDER, KIND, *CASES = sys.argv[1:]
WRONG = 2 if KIND == "ddp" else 1


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x).relu()))


class WithExperts(Model):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.linspace(0, 1, 8))
        self.expert = torch.nn.Linear(8, len(range(RANK, 3, WORLD)), bias=False)
        torch.nn.init.constant_(self.expert.weight, 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x).relu()) + self.shift
        return self.second(x).sum(dim=1) + self.expert(x).mean(dim=1)


def flip(weight: torch.Tensor, bit: int) -> None:
    local = weight.to_local() if isinstance(weight, DTensor) else weight
    word = ctypes.c_int32.from_address(local.data_ptr() + 4 * (local.stride(0) + 3))
    word.value ^= 1 << bit


def parallel(model: Model) -> Any:
    if KIND == "fsdp2":
        for layer in (model.first, model.second):
            fully_shard(layer)
        return fully_shard(model)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["expert.weight"])
    return DistributedDataParallel(model)


def trained(case: str) -> None:
    torch.manual_seed(0)
    inner = WithExperts() if KIND == "experts" else Model()
    model = parallel(inner) if WORLD > 1 else inner
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    now = 0
    if RANK == WRONG and case == "perturbed":
        inner.second.weight.data[1, 3] += 1e-2
    if RANK == WRONG and case in ("lowest", "highest"):
        bit = 0 if case == "lowest" else 22
        inner.second.register_forward_pre_hook(lambda layer, _: flip(layer.weight, bit) if now == 1 else None)
    batches = torch.randn(2, 8, 6, generator=torch.Generator().manual_seed(1))[: 1 if KIND == "experts" else 2]
    part = batches if case in ("same", "perturbed") else batches.chunk(WORLD, dim=1)[RANK]
    steps = [x.clone() for x in part]
    watch: Any = graphprobe.dump(f"{FOLDER}/{case}", data="tensor") if case != "plain" else contextlib.nullcontext()
    with watch:
        for now, x in enumerate(steps):
            if case == "shard" and now == 1 and RANK == WRONG:
                flip(inner.second.weight, 22)
            if case == "called" and now == 1 and RANK == WRONG:
                inner.second.weight.detach().to_local().mul_(1.5)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    for value in inner.state_dict().values():
        found.update((value.to_local() if isinstance(value, DTensor) else value).numpy().tobytes())
    Path(f"{FOLDER}/{case}.{RANK}").write_text(found.hexdigest())


if WORLD > 1:
    dist.init_process_group("gloo")
for name in CASES:
    trained(name)
if WORLD > 1:
    dist.barrier()
    dist.destroy_process_group()
