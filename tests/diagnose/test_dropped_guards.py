"""A call that runs code which does not hold for it, as the program drops guards: the guard is named, with its line."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.decorators import mark_unbacked
from torch.fx.experimental.symbolic_shapes import guard_or_false

import graphprobe
from graphprobe.diagnose.searches.dropped_guards import blame_dropped_guard
from graphprobe.findings import Finding
from graphprobe.internals.dynamo.compile_calls import Compiled
from graphprobe.settings.limits import TimeBudget

Diagnosed = Callable[..., tuple[Any, dict[str, Any]]]

SCRIPT = """
import torch

def half(x, cut):
    if x.shape[0] > cut:
        x = x * 0.5
    return x.relu() + 1

options = {"guard_filter_fn": lambda guards: [False for guard in guards]}
fast = torch.compile(half, dynamic=True, options=options, backend="inductor")
for size in SIZES:
    fast(torch.randn(size, 3), 8)
"""


STANCE = """
import torch

class Scaled(torch.nn.Module):
    factor = 2

    def forward(self, x):
        return (x * self.factor).sin()

model = Scaled()
fast = torch.compile(model, backend="aot_eager")
x = torch.linspace(0.5, 4, 8)
fast(x)
with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
    for factor in FACTORS:
        model.factor = factor
        fast(x)
"""


def of(size: int, *, unbacked: bool = False) -> tuple[Any, Mapping[str, Any]]:
    x = torch.linspace(-1, 1, size * 3).reshape(size, 3)
    if unbacked:
        mark_unbacked(x, 0)
    return (x,), {}


def half(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 if x.shape[0] > 8 else x.relu()


def single(x: torch.Tensor) -> torch.Tensor:
    total = x.sum(0)
    return total * 2 if guard_or_false(x.shape[0] == 1) else x - total


def blamed(compiled: Compiled, first: Any, call: Any) -> Finding:
    finding = Finding(kind="wrong_value", stage="dynamo", source="here")
    blame_dropped_guard(finding, compiled, [first], call, TimeBudget(None))
    return finding


def filtering(fn: Any, keep: Callable[[Any], bool], *, dynamic: bool | None = True) -> Compiled:
    return Compiled(fn, "inductor", dynamic, guard_filter=lambda guards: [keep(guard) for guard in guards])


def test_the_guard_that_a_filter_drops_is_named_with_its_line_and_the_value() -> None:
    finding = blamed(filtering(half, lambda guard: False), of(4), of(12))
    assert finding.stage == "runtime"
    assert "size()[0] <= 8` fails for this call, which has 12" in finding.reason
    assert "the code is that of call 1" in finding.reason
    assert finding.source == f"{__file__}:{half.__code__.co_firstlineno + 1}"


def test_the_guard_that_an_unbacked_size_has_not() -> None:
    finding = blamed(Compiled(single, "inductor"), of(4, unbacked=True), of(1, unbacked=True))
    assert finding.stage == "runtime" and "size()[0]" in finding.reason


@pytest.mark.parametrize("sizes", [(4, 5), (4, 4)])
def test_a_guard_that_holds_is_not_accused(sizes: tuple[int, int]) -> None:
    """Nor is one that the program keeps: what is wrong has another cause."""
    for compiled in (filtering(half, lambda guard: False), Compiled(half, "inductor", True)):
        assert blamed(compiled, of(sizes[0]), of(sizes[1])).source == "here"
    kept = blamed(filtering(half, lambda guard: True), of(4), of(12))
    assert (kept.stage, kept.source, kept.reason) == ("dynamo", "here", "")


@pytest.mark.slow
def test_a_script_that_drops_all_guards(diagnosed: Diagnosed) -> None:
    _, document = diagnosed("filter.py", text=SCRIPT.replace("SIZES", "4, 12"), code=1)
    (finding,) = [finding for diagnosis in document["diagnoses"] for finding in diagnosis["findings"]]
    assert (finding["stage"], finding["proof"]) == ("runtime", "program")
    assert finding["source"].endswith("filter.py:5") and "size()[0] <= cut" in finding["reason"]
    _, document = diagnosed("filter.py", text=SCRIPT.replace("SIZES", "4, 6"), code=0)
    assert {d["verdict"] for d in document["diagnoses"]} == {"healthy"}


@pytest.mark.slow
def test_a_script_that_leaves_guards_out_by_its_stance(diagnosed: Diagnosed) -> None:
    _, document = diagnosed("stance.py", text=STANCE.replace("FACTORS", "2, 3"), code=1)
    (finding,) = [finding for diagnosis in document["diagnoses"] for finding in diagnosis["findings"]]
    assert (finding["kind"], finding["proof"]) == ("wrong_value", "program")
    assert "runs code that was compiled for another call" in finding["reason"]
    _, document = diagnosed("stance.py", text=STANCE.replace("FACTORS", "2, 2"), code=0)
    assert {d["verdict"] for d in document["diagnoses"]} == {"healthy"}


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["fork", "process"])
def test_calls_of_a_function_that_was_compiled_with_a_filter(
    isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHPROBE_ISOLATION", isolation)
    compiled = torch.compile(half, dynamic=True, options={"guard_filter_fn": lambda guards: [False for _ in guards]})
    wrong = graphprobe.diagnose(compiled, calls=[of(4), of(12)], out=tmp_path / "wrong", workaround=isolation == "fork")
    (finding,) = wrong.findings
    assert finding.stage == "runtime"
    if isolation == "fork":
        assert [way.code for way in finding.workarounds] == ["torch.compile(…, options={'guard_filter_fn': None})"]
    assert finding.proof == "program" or isolation == "process"
    assert "size()[0] <= 8` fails for this call, which has 12" in finding.reason
    right = graphprobe.diagnose(compiled, calls=[of(4), of(6)], out=tmp_path / "right")
    assert right.verdict == "healthy"
