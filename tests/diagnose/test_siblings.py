"""Programs with faults of the kinds that reviews found, each with its siblings: what is named, or that all is well."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn import Module, TransformerEncoder, TransformerEncoderLayer

import graphprobe

POINTS, FACTORS = torch.linspace(-1, 1, 8).view(4, 2), torch.tensor([0.1, 0.2])


def one_minus_cosine(x: torch.Tensor) -> torch.Tensor:
    return 1 / (1 - torch.cos(x))


def atanh_of_tanh(x: torch.Tensor) -> torch.Tensor:
    return torch.atanh(torch.tanh(x))


def norm_of_a_constant(x: torch.Tensor) -> torch.Tensor:
    return torch.log(F.layer_norm(x, (7,)).abs())


def jacobians(points: torch.Tensor, k: torch.Tensor) -> Any:
    return torch.vmap(lambda p: torch.func.jacfwd(lambda q: q.sin() * k)(p))(points)


def hessians(points: torch.Tensor, k: torch.Tensor) -> Any:
    return torch.vmap(lambda p: torch.func.hessian(lambda q: ((q * k) ** 3).sum())(p))(points)


def nested_jacobians(points: torch.Tensor, k: torch.Tensor) -> Any:
    def one(p: torch.Tensor) -> Any:
        return torch.func.jacfwd(lambda q: torch.where(q > 0, q * k, k))(p)

    return torch.vmap(torch.vmap(one))(points[None])


def multiplied_beyond(x: torch.Tensor) -> torch.Tensor:
    rest = torch.as_strided(x, (6,), (2,), 8)
    rest.mul_(rest)
    return x.sum()


@torch.library.custom_op("graphprobe_siblings::many", mutates_args=())
def many(x: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(x).sum(0)


@many.register_fake
def _(x: list[torch.Tensor]) -> torch.Tensor:
    raise RuntimeError("no result of these is known")


def sum_of_many(*x: torch.Tensor) -> Any:
    return many(list(x)) * 2


def constant_without_values(x: torch.Tensor) -> Any:
    made = torch.tensor([1.0, 2.0], device="meta")
    return x * 2, made


class Turns(Module):
    """Turns to its other mark before each call."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = object(), object()
        self.mark = self.left

    def is_left(self) -> bool:
        return self.mark is self.left

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp() if self.is_left() else x.sin()


class Scaled(Turns):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = 3.0 * (self.mark is self.right)
        return x * scale + x.sum()


class Counted(Turns):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * [self.left, self.right].index(self.mark)


class Compared(Turns):
    """Asks for the mark as what it is guarded by."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * {self.left: 2.0, self.right: 5.0}[self.mark]


def turned(net: Turns, i: int) -> None:
    net.mark = net.left if net.mark is net.right else net.right


class Encoder(Module):
    def __init__(self, layers: int = 1, **how: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = TransformerEncoder(TransformerEncoderLayer(8, 2, 16, batch_first=True, **how), layers)
        self.eval().requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> Any:
        return self.encoder(x, src_key_padding_mask=hidden).mean(1)


class OfTokens(Encoder):
    def forward(self, tokens: torch.Tensor) -> Any:  # type: ignore[override]
        one_hot = F.one_hot(tokens, 8).float()
        return self.encoder(one_hot, src_key_padding_mask=tokens == 0)[:, 0]


class Residual(Encoder):
    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> Any:
        return x + self.encoder(x.cos(), src_key_padding_mask=hidden)


def norm_of_ragged(values: torch.Tensor, offsets: torch.Tensor) -> Any:
    ragged = torch.nested.nested_tensor_from_jagged(values, offsets)
    return F.layer_norm(ragged * 2, [6], eps=1e-3).values() + 1


def norm_of_parts(values: torch.Tensor, _: torch.Tensor) -> Any:
    parts = torch.nested.as_nested_tensor([values[:3], values[3:]], layout=torch.jagged)
    return F.layer_norm(parts, [6]).values()


class NormOfRagged(Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(6)

    def forward(self, values: torch.Tensor, offsets: torch.Tensor) -> Any:
        ragged = torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=1)
        return self.norm(ragged.relu()).values().sum(0)


HEALTHY: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "infinity, one minus cosine": (one_minus_cosine, (torch.linspace(1e-4, 6e-4, 12),)),
    "infinity, atanh of tanh": (atanh_of_tanh, (torch.linspace(7, 10, 8),)),
    "infinity, norm of a constant": (norm_of_a_constant, (torch.full((3, 7), 0.1),)),
    "identity, asked of a dict": (Compared(), (POINTS,)),
}

HIDDEN = torch.ones(2, 4, dtype=torch.bool)
RAGGED = (torch.linspace(-1, 1, 42).view(7, 6), torch.tensor([0, 3, 7]))
INDEX = "IndexError: list index out of range"
FAULTS: dict[str, tuple[Any, tuple[torch.Tensor, ...], str, str, str, str]] = {
    "stage, jacobians": (jacobians, (POINTS, FACTORS), "dynamo", "operator.mul", "q.sin() * k", "InferenceMode"),
    "stage, multiplied": (
        multiplied_beyond,
        (torch.arange(24.0).view(4, 6)[:2],),
        "aot",
        "torch.Tensor.mul_",
        "rest.mul_(rest)",
        "backend='inductor' raised: RuntimeError: as_strided",
    ),
    "stage, hessians": (hessians, (POINTS, FACTORS), "dynamo", "operator.mul", "q * k) ** 3", "got RuntimeError('Inf"),
    "text, nested jacobians": (
        nested_jacobians,
        (POINTS, FACTORS),
        "dynamo",
        "operator.mul",
        "torch.where(q > 0, q * k, k)",
        "got RuntimeError('InferenceMode::is_enabled()",
    ),
    "text, many arguments": (
        sum_of_many,
        (POINTS,) * 9,
        "aot",
        "graphprobe_siblings.many.default",
        "@many.register_fake",
        "got RuntimeError('no result of these is known",
    ),
    "text, a constant": (
        constant_without_values,
        (POINTS,),
        "runtime",
        "torch.tensor",
        'made = torch.tensor([1.0, 2.0], device="meta")',
        "fx_graph_cache = False nothing is hashed",
    ),
    "identity, in a method": (Turns(), (POINTS,), "dynamo", "is", "return self.mark is self.left", "No guard looks"),
    "identity, as a number": (Scaled(), (POINTS,), "dynamo", "is", "3.0 * (self.mark is", "No guard looks"),
    "identity, by index": (Counted(), (POINTS,), "dynamo", "list.index", ".index(self.mark)", "No guard looks"),
    "nested, tokens": (
        OfTokens(2),
        (torch.zeros(2, 4, dtype=torch.long),),
        "dynamo",
        "TransformerEncoder",
        "self.encoder(one_hot",
        "non-zero numel",
    ),
    "nested, of two": (
        Encoder(2, activation="gelu"),
        (POINTS.repeat(2, 4).view(2, 4, 8), HIDDEN),
        "dynamo",
        "TransformerEncoder",
        "self.encoder(x, src",
        "non-zero numel",
    ),
    "nested, residual": (
        Residual(),
        (POINTS.repeat(2, 4).view(2, 4, 8), HIDDEN),
        "dynamo",
        "TransformerEncoder",
        "self.encoder(x.cos()",
        "non-zero numel",
    ),
    "machinery, ragged": (norm_of_ragged, RAGGED, "dynamo", "torch.nn.functional.layer_norm", "F.layer_norm(r", INDEX),
    "machinery, parts": (norm_of_parts, RAGGED, "dynamo", "torch.nn.functional.layer_norm", "F.layer_norm(p", INDEX),
    "machinery, of a module": (NormOfRagged(), RAGGED, "dynamo", "LayerNorm", "self.norm(ragged.relu()", INDEX),
}


def diagnosed(fn: Callable[..., Any], args: tuple[torch.Tensor, ...], out: Path) -> graphprobe.Diagnosis:
    turns = isinstance(fn, Turns)
    calls: list[Any] = [(tuple(x.clone() if x._base is None else x for x in args), {})] * (1 + turns)
    backend = "aot_eager" if turns else "inductor"
    return graphprobe.diagnose(fn, calls=calls, between=turned if turns else None, out=out, backend=backend)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_a_sibling_that_is_right_is_healthy(name: str, tmp_path: Path) -> None:
    found = diagnosed(*HEALTHY[name], tmp_path)
    assert found.verdict == "healthy" and not found.findings


@pytest.mark.heavy
@pytest.mark.parametrize("name", FAULTS)
def test_a_sibling_is_named_with_its_line_and_a_short_proof(name: str, tmp_path: Path) -> None:
    fn, args, stage, op, text, told = FAULTS[name]
    found = diagnosed(fn, args, tmp_path).findings[0]
    assert (found.stage, found.op) == (stage, op)
    assert told in found.reason and "multi_head_attention_forward" not in [found.op, *found.also]
    file, _, line = (found.source or "").rpartition(":")
    assert file == __file__ and text in Path(file).read_text("utf-8").splitlines()[int(line) - 1]
    assert found.dossier is not None
    assert Path(found.dossier, "repro.py").read_text("utf-8").count("\n") <= 60
