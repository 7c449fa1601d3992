"""More programs for harm.py: of other models, that end early, that other processes feed, or one of several ranks.

python bench/harm_programs.py NAME [BACKEND ...]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "harmless" / "programs"))

import evidence
import families
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(6, 8, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, (last, _) = self.cells(x)
        logits = self.head(hidden[:, -1] + last[-1])
        return logits.logsumexp(-1).mean(), logits


def lstm() -> tuple[nn.Module, families.Batches]:
    x = torch.randn(3, 5, 6)
    return Recurrent(), [(x,), (x.flip(1),)]


class Half(families.Convnet):
    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, logits = super().forward(images)
        return loss.float(), logits


def autocast() -> tuple[nn.Module, families.Batches]:
    return Half(), families.convnet()[1]


class Breaking(families.Mutating):
    """The same in two graphs, both of which write to what came from outside."""

    def forward(self, x: torch.Tensor, scratch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scratch[0].add_(1)
        self.seen.mul_(0.5)
        torch._dynamo.graph_break()
        return super().forward(x, scratch + self.seen)


def breaking() -> tuple[nn.Module, families.Batches]:
    return Breaking(), families.mutating()[1]


families.FAMILIES |= {f.__name__: f for f in (lstm, autocast, breaking)}


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
        if sys.argv[1] in ENDINGS:
            ENDINGS[sys.argv[1]]()
        else:
            families.main(sys.argv[1], sys.argv[2:])
