"""Each kind of recompilation, planted: kind, line, values and remedy; and silence once the remedy is followed."""

import inspect
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from conftest import ROOT
from graphprobe.analysis.recompile_rules import RULES
from graphprobe.errors import UsageError
from graphprobe.internals.bus import Patch
from graphprobe.internals.dynamo import recompile_taps as taps
from graphprobe.internals.observer import RecompileObserver
from probe import recompile_cases
from probe.recompile_cases import CASES, Case, behind, compiled, ones

NEVER_PLANTED = {"limit-reached", "unexplained", "other"}
"""Tested elsewhere, or what is left when torch itself knows no more."""


def line_of(case: Case) -> int:
    lines, begin = inspect.getsourcelines(case.where or case.fault.function)  # type: ignore[attr-defined]
    return begin + next(i for i, line in enumerate(lines) if line.endswith("# HERE\n"))


@pytest.mark.parametrize("name", CASES)
def test_planted(name: str) -> None:
    case = CASES[name]
    with graphprobe.recompiles() as found:
        case.fault()
    report = found.result()
    assert report.unwanted and report.complete and not report.notes
    group = report.groups[0]
    assert (group.kind, group.name, "|".join(group.values)) == (case.kind, case.name, case.values), found.report()
    if case.name:
        assert group.where is not None and group.where.line == line_of(case), found.report()
        assert group.where.file == recompile_cases.__file__
    assert any(case.remedy in remedy for remedy in group.remedies), group.remedies
    assert group.callers and all(caller.file == recompile_cases.__file__ for caller in group.callers)
    assert group.kind in found.report() and case.remedy in found.report()


@pytest.mark.parametrize("name", CASES)
def test_repaired(name: str) -> None:
    if name == "ModelsThatShareAForward" and torch.__version__ < (2, 13):
        pytest.skip("this torch has no isolate_recompiles, the remedy")
    with graphprobe.recompiles() as found:
        CASES[name].repaired()
    assert found.report() == "no recompilations"
    assert not found.result().unwanted


def test_every_kind_is_planted() -> None:
    assert {case.kind for case in CASES.values()} == set(RULES) - NEVER_PLANTED
    assert len([case for case in CASES.values() if case.name]) > 25, "a line is looked for"


def with_keys(number: int) -> None:
    fast = compiled(lambda x, key: x + 1 if key == "1" else x * 2)
    for i in range(number):
        fast(ones(4), str(i))


def test_the_limit() -> None:
    with torch._dynamo.config.patch(recompile_limit=3), graphprobe.recompiles() as found:
        with_keys(6)
    report = found.result()
    assert (report.guard_failures, report.recompilations) == (3, 2)
    limit, cause = report.groups
    assert limit.kind == "limit-reached" and limit.compile_ids == ["0/3"] and limit.values == ["3"]
    assert "recompile_limit is 3" in limit.cause and "recompile_limit" in " ".join(limit.remedies)
    assert cause.kind == "string-changed" and cause.values == ["'0'", "'1'", "'2'", "'3'"]
    (function,) = report.functions
    assert (function.versions, function.limit, function.limit_hit) == (3, 3, "recompile_limit")
    # A limit is never as wanted.
    assert graphprobe.recompiles(allowed=9).result().unwanted is False
    assert found.report().index("limit-reached") < found.report().index("string-changed")


def test_a_higher_limit_is_not_reached() -> None:
    with torch._dynamo.config.patch(recompile_limit=8), graphprobe.recompiles(allowed=5) as found:
        with_keys(6)
    assert found.result().recompilations == 5 and not found.result().unwanted
    assert [group.kind for group in found.result().groups] == ["string-changed"]


def test_the_accumulated_limit() -> None:
    with torch._dynamo.config.patch(accumulated_recompile_limit=2), graphprobe.recompiles() as found:
        with_keys(4)
    limit = found.result().groups[0]
    assert (limit.kind, limit.name, limit.values) == ("limit-reached", "accumulated_recompile_limit", ["2"])


def test_what_was_compiled_for_before_is_no_cause() -> None:
    fast = compiled(lambda x: x + 1)
    with graphprobe.recompiles() as found:
        fast(ones(4))
        fast(ones(4).double())  # dtype
        fast(ones(5))  # the last version fails at its dtype, the first one at the size
    assert [group.kind for group in found.result().groups] == ["dtype-changed", "size-changed"]


def test_behind_a_graph_break() -> None:
    def f(x: Any, flag: bool) -> Any:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2 if flag else x

    with graphprobe.recompiles() as found:
        fast = compiled(f)
        fast(ones(4), True)
        fast(ones(4), False)
    line = inspect.getsourcelines(f)[1] + 2
    assert f"f (behind the graph break at line {line})" in found.report()
    (group,) = found.result().groups
    assert group.kind == "bool-changed" and group.where is not None and group.where.line == line + 1


def test_threads() -> None:
    """Every thread counts, and its name is kept.

    torch remembers sizes by file, line and name, which the three functions share: had one thread seen both sizes before
    another compiled, the other's first graph would be dynamic already, and nothing would be compiled again.
    """
    functions = [compiled(lambda x: x + 1), compiled(lambda x: x * 2), compiled(lambda x: x - 3)]
    all_compiled = threading.Barrier(len(functions), timeout=120)

    def work(f: Any) -> None:
        f(ones(4))
        all_compiled.wait()
        f(ones(5))

    with graphprobe.recompiles() as found, ThreadPoolExecutor(len(functions), "worker") as pool:
        list(pool.map(work, functions))
    assert sorted(fact.thread for fact in found.facts) == ["worker_0", "worker_1", "worker_2"]
    (group,) = found.result().groups  # three functions of one name on one line are one to the reader
    assert (group.kind, group.count) == ("size-changed", 3)


class Head(torch.nn.Module):
    def __init__(self, k: Any) -> None:
        super().__init__()
        self.k = k
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        return x * self.k if isinstance(self.k, float) else self.dropout(x).relu()


def causes(found: Any) -> list[tuple[str, str, int, list[str]]]:
    return [(group.kind, group.name, group.count, group.values) for group in found.result().groups]


def test_autocast_evaluation_and_a_second_instance() -> None:
    first, second = Head("relu"), Head(None)
    with graphprobe.recompiles() as found:
        for module in (first, second):
            fast = compiled(module)
            fast(ones(3))
            with torch.autocast("cpu"):
                fast(ones(3))
            fast(ones(3))
            module.eval()
            fast(ones(3))
    instances = ["str", "NoneType"] if torch.__version__ >= (2, 13) else ["'relu'", "None"]
    assert sorted(causes(found)) == [
        ("autocast-changed", "", 1, []),
        ("instance-changed", "self.k", 2, instances),
        ("training-mode-changed", "self.dropout.training", 2, ["True", "False"]),
    ], found.report()


class Text(torch.nn.Module):
    @behind
    def forward(self, input_ids: Any, labels: Any) -> Any:
        return input_ids.sum(1) + labels


class Vision(torch.nn.Module):
    @behind
    def forward(self, pixels: Any) -> Any:
        return pixels.mean((1, 2))


def test_two_models_behind_one_decorator() -> None:
    """One is called with keywords and the other without: no length of an argument list is to blame."""
    with graphprobe.recompiles() as found:
        text, vision = compiled(Text()), compiled(Vision())
        for n in (6, 9):
            text(input_ids=ones(2, n), labels=ones(2))
        for n in (2, 3):
            vision(ones(n, 4, 4))
    assert {(group.kind, group.name) for group in found.result().groups} == {
        ("size-changed", "kwargs['input_ids']"),
        ("shared-code", ""),
        ("size-changed", "args[1]"),
    }, found.report()
    shared = "compiled for several: Text, Vision; each has versions of its own, and they share the limit of 8"
    assert shared in found.report()
    assert "4 versions of at most 8, shared by Text, Vision\n" in found.report()


def test_two_sequentials_are_instances_of_one() -> None:
    """torch itself puts a wrapper around modules of its own."""
    relu, tanh = (torch.nn.Sequential(torch.nn.Linear(4, 4), last) for last in (torch.nn.ReLU(), torch.nn.Tanh()))
    with graphprobe.recompiles() as found:
        for module in (relu, tanh):
            compiled(module)(ones(2, 4))
    ((kind, name, count, values),) = causes(found)
    assert (kind, name, count) == ("instance-changed", "fn[1]", 1) and values[0].endswith("ReLU"), found.report()


def test_wrong_use() -> None:
    with pytest.raises(UsageError, match="allowed=-1"):
        graphprobe.recompiles(allowed=-1)
    with pytest.raises(UsageError, match="already"), graphprobe.recompiles() as found:
        found.open()


def test_a_fault_of_ours_is_told_and_gets_out_of_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise ValueError("planted")

    before = torch._dynamo.convert_frame.get_and_maybe_log_recompilation_reasons
    monkeypatch.setattr(taps, "_failed_guard", fails)
    fast = compiled(lambda x: x + 1)
    with graphprobe.recompiles() as found:
        assert fast(ones(4)).tolist() == [2.0] * 4
        assert fast(ones(5)).tolist() == [2.0] * 5
        assert torch._dynamo.convert_frame.get_and_maybe_log_recompilation_reasons is before
    assert not found.result().complete
    assert "ValueError: planted" in found.report() and "incomplete" in found.report()


def test_a_torch_that_lacks_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    real = taps.patches

    def without(observer: RecompileObserver) -> list[Patch]:
        first, second, third = real(observer)
        return [first, Patch(second.tap, second.module, "gone", second.make), third]

    monkeypatch.setattr(taps, "patches", without)
    fast = compiled(lambda x: x + 1)
    with graphprobe.recompiles() as found:
        fast(ones(4))
        fast(ones(5))
    report = found.result()
    assert not report.complete and report.groups == []
    assert report.notes == ["recompilations may be missing: this torch lacks torch._dynamo.convert_frame:gone"]


PAGE = (ROOT / "docs" / "recompiles.md").read_text(encoding="utf-8")
PROGRAM, *BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
OUTPUTS = re.findall(r"```text\n(.*?)```", PAGE, re.S)


def test_the_program(run_warm: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (shown,) = re.findall(r"```console\n\$ graphprobe recompiles train.py\n(.*?)```", PAGE, re.S)
    done = run_warm("-m", "graphprobe", "recompiles", "train.py", cwd=tmp_path)
    assert done.code == 1, done.err
    assert done.out == shown


def test_the_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for block, output in zip(BLOCKS, OUTPUTS, strict=True):
        exec(compile(block, "docs/recompiles.md", "exec"), names)
        assert capsys.readouterr().out == output


def test_every_kind_is_on_the_page() -> None:
    table = PAGE.partition("## Kinds")[2].partition("## What")[0]
    assert set(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", table)) == set(RULES)
