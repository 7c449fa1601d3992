"""`compare` of programs compiled on both sides: the region is one call, judged in the precision that it has inside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from compare import pairs
from compare.gpt_faults import Gpt, Plant, around, instead, relu_mlp
from graphprobe.compare.open import open_dump
from graphprobe.compare.result import Summary
from graphprobe.compare.run import compare_dumps

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


def compared(candidate: pairs.Run, reference: pairs.Run, folder: Path, **options: Any) -> Summary:
    for run, name in ((candidate, "candidate"), (reference, "reference")):
        pairs.dumped(run, folder / name, **options)
    return of_dumps(folder)


def of_dumps(folder: Path) -> Summary:
    with compare_dumps(open_dump(folder / "candidate"), open_dump(folder / "reference")) as comparison:
        return comparison.summary


@pytest.mark.parametrize("data", ["tensor", pytest.param("stats", marks=pytest.mark.heavy)])
@pytest.mark.parametrize("backend", ["aot_eager_decomp_partition", pytest.param("inductor", marks=pytest.mark.heavy)])
@pytest.mark.parametrize("mode", MODES)
def test_two_backends_give_the_same(mode: str, backend: str, data: str, tmp_path: Path) -> None:
    summary = compared(gpt(backend, **MODES[mode]), gpt("aot_eager", **MODES[mode]), tmp_path, data=data)
    assert (summary.outcome, summary.findings) == ("same", []), summary.notes


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("mode", [m if m == "float32" else pytest.param(m, marks=pytest.mark.heavy) for m in MODES])
def test_a_fault_inside_is_that_of_the_region(mode: str, fault: str, tmp_path: Path) -> None:
    plant, kind = FAULTS[fault]
    candidate, reference = gpt("aot_eager", plant, **MODES[mode]), gpt("aot_eager", **MODES[mode])
    summary = compared(candidate, reference, tmp_path, data="tensor")
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


def test_dumps_that_do_not_tell_what_is_inside_are_undecided(tmp_path: Path) -> None:
    plant, _ = FAULTS["relu for gelu"]
    assert compared(gpt("aot_eager", plant), gpt("aot_eager"), tmp_path, data="tensor").outcome == "different"
    without_field(tmp_path / "candidate")
    summary = of_dumps(tmp_path)
    assert summary.outcome == "undecided"
    assert [f.kind for f in summary.findings] == ["growth"]


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


def scaled(by: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * by

    return program


def dropping(chance: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, chance)

    return program


def halved(x: torch.Tensor) -> torch.Tensor:
    return x.sin().to(BF16).float() / 2


def test_casts_and_autocast_inside_are_told(tmp_path: Path) -> None:
    pairs.dumped(small(halved), tmp_path / "cast", data="stats")
    assert region_in(tmp_path / "cast") == {"dtypes": ["bfloat16", "float32"], "operations": 4}
    with torch.autocast("cpu", dtype=BF16):
        pairs.dumped(small(lambda x: x @ x), tmp_path / "autocast", data="stats")
    region = region_in(tmp_path / "autocast")
    assert (region["autocast"], region["dtypes"]) == (["cpu bfloat16"], ["bfloat16", "float32"])


def test_a_fault_of_a_compiled_function_is_named(tmp_path: Path) -> None:
    summary = compared(small(scaled(1.01)), small(scaled(1.0)), tmp_path, data="tensor")
    first = summary.first
    assert summary.outcome == "different" and first is not None and first.candidate is not None
    assert (first.kind, first.candidate.api) == ("wrong_value", "compiled.scaled.<locals>.program")


@pytest.mark.parametrize(
    ("inside", "says"),
    [
        (lambda x: x.topk(3).values * 1.01, {"unsteady": ["topk"]}),
        (lambda x: torch._dynamo.graph_break() or x * 1.01, {"unknown": "parts of it run uncompiled"}),
    ],
    ids=["unsteady", "graph break"],
)
def test_an_inside_that_is_not_known_well_is_undecided(
    inside: Callable[..., torch.Tensor], says: dict[str, Any], tmp_path: Path
) -> None:
    other = small(lambda x: x.topk(3).values) if "unsteady" in says else small(lambda x: x * 1.0)
    summary = compared(small(inside), other, tmp_path, data="tensor")
    assert (summary.outcome, [f.kind for f in summary.findings]) == ("undecided", ["growth"])
    region = region_in(tmp_path / "candidate")
    assert all(region[key] == value or region[key].startswith(value) for key, value in says.items()), region


def test_code_compiled_before_the_dump_is_not_known(tmp_path: Path) -> None:
    summary = compared(small(scaled(1.01), warm=True), small(scaled(1.0)), tmp_path, data="tensor")
    assert summary.outcome == "undecided"
    assert region_in(tmp_path / "candidate")["unknown"] == "it was compiled before the dump began"


def test_random_numbers_inside_are_told(tmp_path: Path) -> None:
    summary = compared(small(dropping(0.5)), small(dropping(0.4)), tmp_path, data="tensor")
    assert summary.outcome == "undecided"
    assert any("random numbers" in note for note in summary.notes)
    assert region_in(tmp_path / "candidate")["draws"] is True
