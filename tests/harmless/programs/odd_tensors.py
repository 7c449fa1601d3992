"""Compiled programs on tensors that are no plain memory; their arithmetic is exact, whatever is fused or not."""

import os
import random
import warnings
from collections.abc import Callable
from typing import Any

import evidence
import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize


class Marked(torch.Tensor):
    """A subclass that does nothing of its own."""


class Told(torch.Tensor):
    """A subclass that is asked at each call."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def plain(value: torch.Tensor) -> torch.Tensor:
    return value.as_subclass(torch.Tensor)


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * 2


def tied() -> list[torch.Tensor]:
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4), nn.Linear(4, 8, bias=False))
    for parameter in model.parameters():
        parameter.data = (parameter.data * 4).round()
    model[2].weight = model[0].weight
    parametrize.register_parametrization(model[1], "weight", Doubled())
    loss = torch.compile(model)(torch.arange(8)).square().sum()
    loss.backward()
    return [loss, *(p.grad for p in model.parameters() if p.grad is not None)]


def data_and_set() -> list[torch.Tensor]:
    compiled = torch.compile(lambda w, other: (w * 2 + other.sum(), other + 1))
    w, other = nn.Parameter(torch.ones(3, 4)), torch.zeros(2)
    found = [*compiled(w, other)]
    w.data = torch.full((3, 4), 2.0)
    w.data.mul_(3)
    with torch.no_grad():
        w.view(-1)[5] += 0.5
    other.set_(torch.arange(6.0).untyped_storage(), 1, (2, 2), (2, 1))
    return [*found, *compiled(w, other)]


def sparse() -> list[torch.Tensor]:
    return [torch.compile(lambda s, x: torch.sparse.mm(s, x) * 2)(torch.eye(4).to_sparse(), torch.ones(4, 2))]


def nested() -> list[torch.Tensor]:
    n = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    return [torch.compile(lambda n: n * 2 + n)(n).values()]


def quantised() -> list[torch.Tensor]:
    q = torch.quantize_per_tensor(torch.arange(6.0), 0.5, 2, torch.quint8)
    return [torch.compile(lambda q: q.dequantize() + 1)(q)]


def meta() -> list[torch.Tensor]:
    return [torch.tensor(torch.compile(lambda m: (m @ m.t()).relu())(torch.empty(5, 7, device="meta")).shape)]


def subclass() -> list[torch.Tensor]:
    found = []
    for kind in (Marked, Told):
        x = torch.arange(4.0).as_subclass(kind)
        out = torch.compile(lambda y: y * 2 + 1)(x)
        evidence.say("class", type(out).__name__)

        def change(y: torch.Tensor) -> torch.Tensor:
            y.mul_(2)
            return y + 1

        found += [plain(out), plain(torch.compile(change)(x)), plain(x)]
        try:  # torch 2.13 cannot do this
            torch.compile(lambda y: y * nn.Parameter(torch.ones(4)))(x).sum().backward()
        except TypeError as error:
            evidence.say("raised", str(error).splitlines()[0])
    return found


def distributed() -> list[torch.Tensor]:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    whole: Any = distribute_tensor(torch.arange(12.0).reshape(3, 4), mesh, [Shard(0)])
    out = torch.compile(lambda t: t * 2 + 1)(whole)
    assert isinstance(out, DTensor)
    dist.destroy_process_group()
    return [out.to_local()]


PROGRAMS: tuple[Callable[[], list[torch.Tensor]], ...] = (
    tied, data_and_set, sparse, nested, quantised, meta, subclass, distributed,
)  # fmt: skip

if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    warnings.simplefilter("ignore")
    for program in PROGRAMS:
        torch.manual_seed(7)
        np.random.seed(7)
        random.seed(7)
        torch._dynamo.reset()
        evidence.say(program.__name__, evidence.bits([value.detach().clone() for value in program()]))
        evidence.generators()
