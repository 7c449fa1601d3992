"""Programs that end early, are fed by other processes, or are one of several ranks: `endings.py NAME`."""

import sys

import evidence
import families
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def stepped(name: str) -> None:
    """One training step of a convolutional network."""
    module, batches = families.convnet()
    loss, outputs = torch.compile(module)(*batches[0])
    evidence.step(name, module, loss, outputs)


def exits() -> None:
    stepped("before the end")
    sys.exit(7)


def raises() -> None:
    stepped("before the error")
    try:
        torch.compile(lambda x: x @ x)(torch.ones(2, 3))
    except RuntimeError as error:
        raise ValueError("the program's own error") from error


class Numbers(Dataset):
    """What each worker draws depends on its generators, which the parent's generator seeds."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(3, 12, 12) + index + np.random.rand()


def loads() -> None:
    module, _ = families.convnet()
    compiled = torch.compile(module)
    for number, images in enumerate(DataLoader(Numbers(), batch_size=2, shuffle=True, num_workers=2)):
        evidence.say(f"batch {number}", evidence.bits(images))
        loss, outputs = compiled(images)
        evidence.step(f"loaded {number}", module, loss, outputs)
        module.zero_grad()


def ranks(sharded: bool) -> None:
    """Three steps of a small network by each rank, of its own data."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    module: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
    if sharded:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for part in (module[0], module[3], module):
            fully_shard(part, mesh=mesh)
        outer = module
    else:
        outer = nn.parallel.DistributedDataParallel(module)
    compiled = torch.compile(outer)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for number in range(3):
        outputs = compiled(torch.randn(4, 8, generator=generator))
        evidence.step(f"step {number}", module, outputs.square().mean(), outputs)
        module.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


def ddp() -> None:
    ranks(sharded=False)


def fsdp2() -> None:
    ranks(sharded=True)


ENDINGS = {f.__name__: f for f in (exits, raises, loads, ddp, fsdp2)}

if __name__ == "__main__":
    with evidence.watched():
        families.seed()
        ENDINGS[sys.argv[1]]()
