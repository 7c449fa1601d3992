"""Tensors that are no plain memory: the program computes the same under every dump, and what has no values says why."""

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import graphprobe
from graphprobe.store import open_api_dump


class Marked(torch.Tensor):
    """A subclass that does nothing of its own."""


def tied() -> list[torch.Tensor]:
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4), nn.Linear(4, 8, bias=False))
    model[2].weight = model[0].weight
    parametrize.register_parametrization(model[1], "weight", nn.Tanh())
    loss = model(torch.arange(8)).square().sum()
    loss.backward()
    return [loss, *(p.grad for p in model.parameters() if p.grad is not None)]


def data_and_set() -> list[torch.Tensor]:
    w = nn.Parameter(torch.ones(3, 4))
    w.data = torch.full((3, 4), 2.0)
    w.data.mul_(3)
    with torch.no_grad():
        w.view(-1)[5] += 0.5
        w[1, 2] += 0.25
    other = torch.zeros(2)
    other.set_(torch.arange(6.0).untyped_storage(), 1, (2, 2), (2, 1))
    return [w * 2, other + 1, (w @ torch.ones(4)).sum()]


def emptied() -> list[torch.Tensor]:
    t = torch.arange(12.0).reshape(3, 4)
    part, size_bytes = t[1:], t.untyped_storage().nbytes()
    t.untyped_storage().resize_(0)
    shapes = torch.empty_like(part).shape
    t.untyped_storage().resize_(size_bytes)
    t.copy_(torch.arange(12.0).reshape(3, 4))
    return [part * 2, torch.tensor(list(shapes))]


def sparse() -> list[torch.Tensor]:
    s = torch.eye(4).to_sparse()
    return [
        torch.sparse.mm(s, torch.ones(4, 2)),
        (s + s).to_dense(),
        torch.eye(3).to_sparse_csr().matmul(torch.ones(3)),
    ]


def nested() -> list[torch.Tensor]:
    n = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    return [(n * 2).values(), torch.sin(n).values()]


def quantised() -> list[torch.Tensor]:
    q = torch.quantize_per_tensor(torch.arange(6.0), 0.1, 2, torch.quint8)
    return [q.dequantize(), (q.dequantize() + 1)]


def meta() -> list[torch.Tensor]:
    m = torch.empty(5, 7, device="meta")
    return [
        torch.tensor((m @ m.t()).shape),
        nn.Linear(3, 2, device="meta")(torch.empty(4, 3, device="meta")).sum(0).new_ones(1, device="cpu"),
    ]


def subclass() -> list[torch.Tensor]:
    x = torch.arange(4.0).as_subclass(Marked)
    return [(x * 2).as_subclass(torch.Tensor), torch.exp(x).as_subclass(torch.Tensor)]


def transforms() -> list[torch.Tensor]:
    return [torch.vmap(torch.sin)(torch.ones(3, 2)), torch.func.grad(lambda x: (x**3).sum())(torch.ones(3))]


PROGRAMS: dict[str, Callable[[], list[torch.Tensor]]] = {
    f.__name__: f for f in (tied, data_and_set, emptied, sparse, nested, quantised, meta, subclass, transforms)
}


def digest(program: Callable[[], list[torch.Tensor]]) -> str:
    torch.manual_seed(7)
    found = hashlib.sha256()
    for value in program():
        found.update(value.detach().contiguous().view(-1).numpy().tobytes())
    found.update(torch.get_rng_state().numpy().tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("level", ["api", "module", "mix"])
@pytest.mark.parametrize("data", ["stats", "tensor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_computes_the_same_and_tells_what_is_missing(name: str, data: Any, level: Any, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = digest(PROGRAMS[name])
        with graphprobe.dump(tmp_path / "dump", data=data, level=level):
            assert digest(PROGRAMS[name]) == plain
        assert digest(PROGRAMS[name]) == plain
    dump = open_api_dump(tmp_path / "dump")
    assert dump.problems() == ()
    for step in dump.steps(0):
        for call in dump.calls(0, step):
            for slot in call.slots:
                known = slot.scalar is not None or slot.stats is not None or slot.missing
                assert known, f"{call.label} {slot.name} has neither statistics nor a reason"
