"""Programs with a fault that is planted in one stage: the change that mends each, seen, told and pasted."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import planted_python
import planting
import pytest
import torch

import graphprobe
from graphprobe.diagnose.api import CompileOverrides, prepared
from graphprobe.diagnose.ladder import Ladder
from graphprobe.diagnose.settings import Limits
from graphprobe.diagnose.workarounds.search import find_workarounds
from graphprobe.findings import Diagnosis, Finding, NamedStep

X, Y = torch.linspace(-2, 2, 24).reshape(4, 6), torch.linspace(1, 3, 24).reshape(4, 6)


def smooth(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x * 2).sum(1) + 1


def too_steep(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.5 * x)


def angle(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.atan2(y * 2, x).cos() + 1


def swapped(right: Callable[..., Any], y: Any, x: Any) -> Any:
    return right(x, y)


def apart(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x) * 2 - y.sin()


def turn(given: Any) -> None:
    for node in planting.graph_of(given).nodes:
        if node.target is torch.ops.aten.sub.Tensor:
            node.args = (node.args[1], node.args[0])


def scaled(x: torch.Tensor, n: float) -> torch.Tensor:
    y = torch.sin(x)
    factor = round(n * 2) + 1
    return y * factor


class Planted(NamedTuple):
    """A program with its fault, what is known of that, and what the workaround of it is."""

    program: Callable[..., torch.Tensor]
    args: Sequence[Any]
    plant: Callable[[], Any]
    known: dict[str, Any]
    kind: str
    code: str


CASES = {
    "decomposition": Planted(
        smooth,
        (X,),
        lambda: planting.decomposition(torch.ops.aten.silu.default, too_steep),
        {"stage": "decomposition", "op": "aten.silu.default"},
        "fallback",
        "torch.ops.aten.silu.default",
    ),
    "lowering": Planted(
        angle,
        (X, Y),
        lambda: planting.lowering(torch.ops.aten.atan2.default, swapped),
        {"stage": "lowering", "op": "aten.atan2.default"},
        "fallback",
        "torch.ops.aten.atan2.default",
    ),
    "pass": Planted(
        apart,
        (X, Y),
        lambda: planting.inductor(post_grad_custom_post_pass=turn),
        {"stage": "post_grad", "op": "aten.sub.Tensor", "pass_": "post_grad_custom_post_pass"},
        "setting",
        "torch._inductor.config.disabled_passes += ",
    ),
    "dynamo": Planted(
        scaled,
        (X, 1.25),
        planted_python.answers(round, 7),
        {"stage": "dynamo", "op": "round"},
        "uncompiled",
        "return round(n * 2)",
    ),
}


def of_three(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return smooth(x), angle(y, x), apart(x, y)


def diagnosed(
    case: Planted, out: Path, *more: Planted, fn: Callable[..., Any] | None = None
) -> tuple[Diagnosis, list[NamedStep]]:
    """A diagnosis that knows the findings already, and runs the rung of Dynamo alone."""
    begun: list[NamedStep] = []
    program, compilation = prepared(fn or case.program, case.args, {}, CompileOverrides(), out=out)
    ladder = Ladder(program, compilation, Limits(workaround=True), begun.append)

    def accuse(ladder: Ladder) -> None:
        ladder._rung("dynamo", ladder.looking("dynamo"))
        for one in (case, *more):
            line = one.program.__code__.co_firstlineno + 1 + (one.program is scaled)
            ladder.result.findings.append(Finding(kind="wrong_value", source=f"{__file__}:{line}", **one.known))

    ladder.climb_rungs = lambda: None  # type: ignore[method-assign]
    return ladder.climb(accuse, lambda _: None, work_around=find_workarounds), begun


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_change_is_found_for_a_fault_of_each_stage(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    with case.plant():
        found, begun = diagnosed(case, tmp_path)
    [way] = found.findings[0].workarounds
    assert (found.verdict, way.kind, case.code in way.code) == ("fault", case.kind, True), way.code
    assert "workaround" in begun
    assert way.place is not None
    assert way.place.startswith(f"{__file__}:")
    assert way.call_time is not None
    assert way.uncompiled_time is not None
    assert (way.graph_breaks > 0) == (way.kind == "uncompiled")


@pytest.mark.slow
def test_one_set_of_changes_is_found_for_the_faults_of_three_stages(tmp_path: Path) -> None:
    lowered, *others = [CASES[name] for name in ("lowering", "decomposition", "pass")]
    with lowered.plant(), others[0].plant(), others[1].plant():
        found, _ = diagnosed(lowered._replace(args=(X, Y)), tmp_path, *others, fn=of_three)
    codes = [[way.code for way in finding.workarounds] for finding in found.findings]
    assert len(codes) == 3 and codes[0] == codes[1] == codes[2]
    assert sorted(way.kind for way in found.findings[0].workarounds) == ["fallback", "fallback", "setting"]
    assert all(any(one.code in code for code in codes[0]) for one in (lowered, *others)), codes[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_program_without_the_fault_is_healthy_and_nothing_is_tried(name: str, tmp_path: Path) -> None:
    found, begun = diagnosed(CASES[name], tmp_path)
    assert (found.verdict, found.findings, found.compiles) == ("healthy", [], 0)
    assert "workaround" not in begun


def missing_quotes(x: torch.Tensor) -> torch.Tensor:
    try:
        {}["key"]  # type: ignore[misc]
    except KeyError as error:
        x = x * len(str(error))
    return x.sin() + 1


@pytest.mark.slow
def test_a_workaround_is_told_wherever_the_finding_is(tmp_path: Path, warm_proofs: None) -> None:
    found = graphprobe.diagnose(missing_quotes, X, out=tmp_path, workaround=True)
    [finding] = found.findings
    [way] = finding.workarounds
    lines = [line.strip() for line in way.code.splitlines() if line.strip()]
    report = (Path(str(finding.dossier)) / "REPORT.md").read_text("utf-8").partition("### Workaround")[2]
    for text in (str(found), report):
        assert [line for line in lines if line not in text] == []
    assert found.to_json()["findings"][0]["workarounds"][0]["code"] == way.code
    assert '"workarounds": [' in (Path(str(finding.dossier)) / "finding.json").read_text("utf-8")


SCRIPT = """
import torch
import torch._inductor.lowering
from torch._inductor.lowering import lowerings

op = torch.ops.aten.atan2.default
right = lowerings[op]
lowerings[op] = lambda y, x: right(x, y)
{text}

def f(y, x):
    return torch.atan2(y * 2, x) + 1

y, x = torch.linspace(-2, 2, 24), torch.linspace(1, 3, 24)
assert torch.allclose(torch.compile(f)(y, x), f(y, x)), "wrong"
"""


@pytest.mark.slow
def test_a_fallback_that_is_pasted_is_not_hidden_by_what_is_in_a_cache(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    from graphprobe.internals.leave_out import fallback_text

    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    env |= {"TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1"}
    text = fallback_text([torch.ops.aten.atan2.default])
    untagged = "\n".join(line for line in text.splitlines() if "cache_key_tag" not in line)
    codes = []
    for number, pasted in enumerate(("", untagged, text)):
        script = tmp_path / f"script_{number}.py"
        script.write_text(SCRIPT.format(text=pasted), "utf-8")
        codes.append(run_python(str(script), env=env).code)
    assert codes == [1, 1, 0]
