"""Two training steps of a small model under DDP with gloo; also runs alone. Every rank prints its losses."""

import os
import sys

if "--import" in sys.argv:
    import graphprobe  # noqa: F401  # under TORCH_COMPILE_DEBUG=1 this is all that is needed

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as collectives
from torch.nn.parallel import DistributedDataParallel


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 8), torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    inner = Model()
    inner.compile()
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for number in range(2):
        x = torch.full((4 + rank, 6), 0.1 * (rank + 1 + number))
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    @torch.compile
    def summed(value: torch.Tensor) -> torch.Tensor:
        return collectives.all_reduce(value * 2, "sum", dist.group.WORLD) + 1

    total = summed(torch.full((3,), float(rank + 1)))
    norm = sum(float(p.double().norm()) for p in model.parameters())
    line = f"RANK {rank} of {os.environ['WORLD_SIZE']} {losses} {norm} {total.tolist()}\n"
    sys.stdout.write(line)
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


main()
