"""Training on each rank: under DDP, under FSDP2, with a collective of its own, or with nothing to compile.

`diagnosed.py KIND [FAULT [RANK ...]]`: a fault of Inductor's own is in these ranks, else in 0 and 1.
"""

import sys

import torch
import torch._inductor.config
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

kind, *faults = sys.argv[1:]
dist.init_process_group("gloo")
if faults and str(dist.get_rank()) in (faults[1:] or ["0", "1"]):
    torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = faults[0]
torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Summed(Net):
    """Adds up what all ranks of a group have."""

    def __init__(self):
        super().__init__()
        self.group = dist.new_group([*range(dist.get_world_size())])

    def forward(self, x):
        summed = x.clone()
        dist.all_reduce(summed, group=self.group)
        return super().forward(summed)


model = {"nothing": lambda: nn.Sequential(nn.Linear(8, 4), nn.ReLU()), "own": Summed}.get(kind, Net)()
if kind in ("ddp", "nothing"):
    compiled = torch.compile(nn.parallel.DistributedDataParallel(model))
elif kind == "fsdp":
    compiled = torch.compile(fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),))))
else:
    compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    loss = compiled(torch.full((4, 8), 0.1 * (dist.get_rank() + step + 1))).pow(2).mean()
    loss.backward()
    optimizer.step()
print(f"RANK {dist.get_rank()} LOSS {loss.item():.9g}", flush=True)
dist.barrier()
dist.destroy_process_group()
