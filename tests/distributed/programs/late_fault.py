"""A training on two ranks that talk in each step; the batch of rank 1 is too large in step 5."""

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as collectives

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
layer = torch.nn.Linear(3, 3)
compiled = torch.compile(lambda x: torch.exp(layer(x)).mean(), backend="eager")
summed = torch.compile(lambda x: collectives.all_reduce(x, "sum", dist.group.WORLD) + 1, backend="eager")
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
for step in range(1, 8):
    x = torch.ones(2, 3) * (1e6 if rank == 1 and step == 5 else 1.0)
    loss = compiled(x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    together = summed(loss.detach())
print(f"RANK {rank} {float(together)} {float(layer.weight.sum())}", flush=True)
dist.destroy_process_group()
