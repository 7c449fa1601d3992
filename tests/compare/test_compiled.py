"""`compare` of programs compiled on both sides: the region is one call, judged in the precision that it has inside."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from compare import pairs
from compare.gpt_faults import Gpt, Plant, around, instead, relu_mlp
from compare.pairs import Dumps
from graphprobe.compare.result import Summary

BF16 = torch.bfloat16


class Autocast(nn.Module):
    """Computes in bfloat16 inside; parameters, inputs and outputs are none of it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=BF16):
            return self.inner(x).float()


MODES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": BF16},
    "autocast inside": {"inside": True},
    "autocast outside": {"outside": True},
}


@cache
def gpt(
    backend: str,
    plant: Plant | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    inside: bool = False,
    outside: bool = False,
) -> pairs.Run:
    """Two steps of training a compiled GPT of two layers."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        model = Gpt(2)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5 if parameter.dim() > 1 else 1.0)
        model = model.to(dtype)
        if plant is not None:
            plant(model)
        return Autocast(model) if inside else model

    def train(model: nn.Module) -> None:
        torch._dynamo.reset()
        compiled: Any = torch.compile(model, backend=backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        torch.manual_seed(1)
        for _ in range(2):
            ids = torch.randint(0, 128, (2, 16))
            with torch.autocast("cpu", dtype=BF16, enabled=outside):
                logits = compiled(ids)
            F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()

    return pairs.Run(train, build)


FAULTS: dict[str, tuple[Plant, str]] = {
    "relu for gelu": (instead(lambda m: m.blocks[1].mlp, relu_mlp), "wrong_value"),
    "gradient doubled": (
        around(lambda m: m.blocks[1].mlp.fc1, lambda f, x: f(pairs.Doubled.apply(x))),
        "wrong_gradient",
    ),
    "scale": (around(lambda m: m.blocks[1].attn, lambda f, x: f(x, scale=0.125)), "wrong_value"),
}


def compared(dumps: Dumps, candidate: pairs.Run, reference: pairs.Run, *, data: str = "tensor") -> Summary:
    return pairs.compared(dumps(candidate, data=data), dumps(reference, "reference", data=data), replay=False)


def undecided(summary: Summary, *kinds: str) -> bool:
    return (summary.outcome, *(f.kind for f in summary.findings)) == ("undecided", *kinds)


@pytest.mark.slow
@pytest.mark.parametrize("data", ["tensor", pytest.param("stats", marks=pytest.mark.heavy)])
@pytest.mark.parametrize("backend", ["aot_eager_decomp_partition", pytest.param("inductor", marks=pytest.mark.heavy)])
@pytest.mark.parametrize("mode", MODES)
def test_two_backends_give_the_same(mode: str, backend: str, data: str, dumps: Dumps) -> None:
    summary = compared(dumps, gpt(backend, **MODES[mode]), gpt("aot_eager", **MODES[mode]), data=data)
    assert (summary.outcome, summary.findings) == ("same", []), summary.notes


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("mode", [m if m == "float32" else pytest.param(m, marks=pytest.mark.heavy) for m in MODES])
def test_a_fault_inside_is_that_of_the_region(mode: str, fault: str, dumps: Dumps) -> None:
    plant, kind = FAULTS[fault]
    summary = compared(dumps, gpt("aot_eager", plant, **MODES[mode]), gpt("aot_eager", **MODES[mode]))
    assert summary.outcome == "different", summary.notes
    (finding,) = summary.findings
    assert finding.candidate is not None
    assert (finding.kind, finding.verdict, finding.step) == (kind, "differs", 0)
    assert finding.candidate.api == ("Autocast" if mode == "autocast inside" else "Gpt")
    assert "compiled region gives other results" in finding.evidence[0]


def without_field(folder: Path) -> None:
    """As releases wrote it that did not tell what is inside."""
    changed = 0
    for file in folder.rglob("calls.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        changed += sum(line.pop("compiled", None) is not None for line in lines)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert changed == 2


def test_dumps_that_do_not_tell_what_is_inside_are_undecided(dumps: Dumps, tmp_path: Path) -> None:
    plant, _ = FAULTS["relu for gelu"]
    shutil.copytree(dumps(gpt("aot_eager", plant), data="tensor"), tmp_path / "candidate")
    without_field(tmp_path / "candidate")
    reference = dumps(gpt("aot_eager"), "reference", data="tensor")
    assert undecided(pairs.compared(tmp_path / "candidate", reference, replay=False), "growth")


@cache
def small(function: Callable[..., torch.Tensor], backend: str = "eager", *, warm: bool = False) -> pairs.Run:
    def build() -> Any:
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend)
        if warm:
            compiled(torch.ones(8, 8))
        return compiled

    def call(compiled: Any) -> None:
        torch.manual_seed(2)
        compiled(torch.randn(8, 8))

    return pairs.Run(call, build)


def region_in(folder: Path) -> dict[str, Any]:
    """What the only record of compiled code tells of its inside."""
    records = [json.loads(line) for file in folder.rglob("calls.jsonl") for line in file.read_text().splitlines()]
    (region,) = [record["compiled"] for record in records if "compiled" in record]
    return dict(region)


def sine(by: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * by

    return program


PLAIN, SCALED = sine(1.0), sine(1.01)


def halved(x: torch.Tensor) -> torch.Tensor:
    return x.sin().to(BF16).float() / 2


def test_casts_and_autocast_inside_are_told(dumps: Dumps) -> None:
    region = region_in(dumps(small(halved), data="stats"))
    assert region == {"dtypes": ["bfloat16", "float32"], "operations": 4}
    with torch.autocast("cpu", dtype=BF16):
        region = region_in(dumps(small(lambda x: x @ x), data="stats"))
    assert (region["autocast"], region["dtypes"]) == (["cpu bfloat16"], ["bfloat16", "float32"])


def test_a_fault_of_a_compiled_function_is_named(dumps: Dumps) -> None:
    summary = compared(dumps, small(SCALED), small(PLAIN))
    first = summary.first
    assert summary.outcome == "different" and first is not None and first.candidate is not None
    assert (first.kind, first.candidate.api) == ("wrong_value", "compiled.sine.<locals>.program")


INSIDES: dict[str, tuple[pairs.Run, pairs.Run, tuple[str, ...], dict[str, Any]]] = {
    # candidate, reference, findings, what the candidate's record tells of its inside
    "unsteady": (
        small(lambda x: x.topk(3).values * 1.01),
        small(lambda x: x.topk(3).values),
        ("growth",),
        {"unsteady": ["topk"]},
    ),
    "graph break": (
        small(lambda x: torch._dynamo.graph_break() or x * 1.01),
        small(lambda x: x * 1.0),
        ("growth",),
        {"unknown": "parts of it run uncompiled"},
    ),
    "compiled before": (
        small(SCALED, warm=True),
        small(PLAIN),
        ("growth",),
        {"unknown": "it was compiled before the dump began"},
    ),
    "random": (small(lambda x: F.dropout(x, 0.5)), small(lambda x: F.dropout(x, 0.4)), (), {"draws": True}),
}


@pytest.mark.parametrize("name", INSIDES)
def test_an_inside_that_is_not_known_well_is_undecided(name: str, dumps: Dumps) -> None:
    candidate, reference, kinds, says = INSIDES[name]
    summary = compared(dumps, candidate, reference)
    assert undecided(summary, *kinds), summary.findings
    assert name != "random" or any("random numbers" in note for note in summary.notes)
    region = region_in(dumps(candidate, data="tensor"))
    assert all(region[key] == value or str(region[key]).startswith(str(value)) for key, value in says.items()), region
