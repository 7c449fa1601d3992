"""Two training steps under torchrun with gloo, dumped as they are and with one bit of a weight changed on one rank.

    one_bit.py FOLDER ddp|fsdp2 RANK

`plain` is not dumped; `healthy` and `again` are as they are. `lowest` and `highest`: in the second step, when the rank
has the whole weight of the layer `second`, the lowest or the highest bit of a fraction in it is another one. `shard`,
of fsdp2: the highest in the part that the rank holds, before the second step. No call of torch changes it. Each rank
has its own part of the batch, and writes a digest of what it has learnt to FOLDER/CASE.RANK.
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

WORLD, RANK = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
FOLDER, KIND, WRONG = sys.argv[1], sys.argv[2], int(sys.argv[3])


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x).relu()))


def flip(weight: torch.Tensor, bit: int) -> None:
    local = weight.to_local() if isinstance(weight, DTensor) else weight
    word = ctypes.c_int32.from_address(local.data_ptr() + 4 * (local.stride(0) + 3))
    word.value ^= 1 << bit


def parallel(model: Model) -> Any:
    if KIND == "ddp":
        return DistributedDataParallel(model)
    for layer in (model.first, model.second):
        fully_shard(layer)
    return fully_shard(model)


def trained(case: str) -> None:
    torch.manual_seed(0)
    inner = Model()
    model = parallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    now = 0
    if case in ("lowest", "highest") and RANK == WRONG:
        bit = 0 if case == "lowest" else 22
        inner.second.register_forward_pre_hook(lambda layer, _: flip(layer.weight, bit) if now == 1 else None)
    batches = torch.randn(2, 8, 6, generator=torch.Generator().manual_seed(1)).chunk(WORLD, dim=1)[RANK]
    watch: Any = graphprobe.dump(f"{FOLDER}/{case}", data="tensor") if case != "plain" else contextlib.nullcontext()
    with watch:
        for now, x in enumerate(batches):
            if case == "shard" and now == 1 and RANK == WRONG:
                flip(inner.second.weight, 22)
            model(x.clone()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    for value in inner.state_dict().values():
        found.update((value.to_local() if isinstance(value, DTensor) else value).numpy().tobytes())
    Path(f"{FOLDER}/{case}.{RANK}").write_text(found.hexdigest())


dist.init_process_group("gloo")
CASES = "plain", "healthy", "again", "lowest", "highest", "shard"
for case in CASES[: 6 if KIND == "fsdp2" else 5]:
    trained(case)
dist.barrier()
dist.destroy_process_group()
