"""A repro runs on torch alone: it exits 1 while its fault is there, 0 when it is gone, 125 when it cannot tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.dossier import watch
from graphprobe.diagnose.dossier.comparison import CallOutcome, compare, compare_call, sharing
from graphprobe.diagnose.dossier.writer import run_repro, write_dossier
from graphprobe.engine.values import capture
from graphprobe.errors import UsageError
from graphprobe.findings import Finding, Kind

VERSIONS = {"torch": torch.__version__}
RELU_BUG = {"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}


def case_of(
    fn: Callable[..., Any], *calls: tuple[Any, ...], kind: Kind, dynamic: bool | None = None, **more: Any
) -> Case:
    """The graph that Dynamo makes of `fn`, with the values it gets in each call."""
    graphs: list[torch.fx.GraphModule] = []
    captured = []

    def keep(gm: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        graphs.append(gm)

        def run(*args: Any) -> Any:
            captured.append(capture(list(args)))
            return gm.forward(*args)

        return run

    compiled = torch.compile(fn, backend=keep, dynamic=dynamic, fullgraph=True)
    for args in calls:
        compiled(*args)
    assert len(graphs) == 1
    return Case(graphs[0], captured, kind, dynamic=dynamic, **more)


def finding_of(case: Case, **more: Any) -> Finding:
    return Finding(kind=case.kind, stage="codegen", op="aten.relu.default", **more)  # type: ignore[arg-type]


def write(folder: Path, case: Case, **more: Any) -> Path:
    assert write_dossier(folder, case, finding_of(case), versions=VERSIONS, **more) == []
    return folder


def run(folder: Path, *options: str) -> tuple[int, str]:
    """The exit code, and what the repro printed."""
    done = subprocess.run(
        [sys.executable, "-I", str(folder / "repro.py"), *options],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + "\n--\n" + done.stderr[-2000:]


def grow(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.copy_(torch.relu(x))
    return torch.relu(x).sum(1) * 2


def grow_case(**more: Any) -> Case:
    calls = [(torch.linspace(-1, 1, 4 * n).reshape(n, 4), torch.zeros(n, 4)) for n in (3, 5)]
    return case_of(grow, *calls, kind="wrong_value", dynamic=True, **more)


def test_wrong_value_and_mutated_input_in_two_calls_of_different_sizes(tmp_path: Path) -> None:
    case = grow_case(inductor_config=RELU_BUG)
    bounds = [[torch.full((n,), 1e-5), torch.tensor(1e-6), torch.tensor(1e-6)] for n in (3, 5)]
    case = Case(**{**case.__dict__, "allowed": [[t.double() for t in call] for call in bounds]})
    code, text = run(write(tmp_path / "a" / "b", case))
    assert code == 1, text
    lines = text.splitlines()
    for place in ("call 0: output 0: 3 of 3", "call 1: output 0: 5 of 5", "call 1: input", "FAULT: wrong_value"):
        assert any(line.startswith(place) for line in lines), text
    assert "allowed 1e-05" in text and "allowed 1e-06" in text


def test_the_same_without_the_fault_passes_as_its_test_does(tmp_path: Path) -> None:
    folder = write(tmp_path / "gone", grow_case())
    options = ["-p", "no:cacheprovider", "-q", "--rootdir", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder / "test_repro.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("compile", "crash_compile"), pytest.param("runtime", "crash_runtime", marks=pytest.mark.heavy)],
)
def test_an_exception_of_the_compiler_and_one_of_the_compiled_code(tmp_path: Path, fault: str, kind: Kind) -> None:
    backend = f"relu_{fault}_error_TESTING_ONLY"
    case = case_of(lambda x: torch.relu(x) + 1, (torch.ones(3),), kind=kind, backend=backend)
    code, text = run(write(tmp_path / "it", case))
    assert code == 1, text
    assert "call 0: compiled raises torch._dynamo.exc" in text if fault == "compile" else "compiled raises" in text


def test_missing_exception(tmp_path: Path) -> None:
    case = case_of(
        torch.nn.functional.binary_cross_entropy,
        (torch.full((2,), 0.5), torch.ones(2)),
        kind="missing_exception",
        backend="aot_eager_decomp_partition",
    )
    case.calls[0] = capture([torch.full((2,), 0.5), torch.full((2,), 1.5)])
    code, text = run(write(tmp_path / "it", case))
    assert code == 1, text
    assert "uncompiled raises RuntimeError: all elements of target" in text


def test_a_killed_process(tmp_path: Path) -> None:
    a = torch.tensor([True, False, True, False] * (1 << 18))
    case = case_of(lambda a, b: torch.add(a, b, alpha=2), (a, a.roll(1)), kind="segfault")
    code, text = run(write(tmp_path / "it", case))
    assert code == 1, text
    assert "the process was killed by SIG" in text


def test_wrong_gradient_and_wrong_dtype(tmp_path: Path) -> None:
    def pool(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.ones((2, 4), dtype=torch.bool).cumsum(1, dtype=torch.bfloat16)
        return torch.nn.functional.avg_pool2d(x, 3, 2, ceil_mode=True), positions

    x = torch.randn(1, 1, 8, 8, requires_grad=True)
    folder = write(tmp_path / "it", case_of(pool, (x,), kind="wrong_gradient", grad=True))
    code, text = run(folder)
    assert code == 1, text
    gone = torch.compile(pool)(x)[1].dtype is torch.bfloat16  # in torch 2.15
    first = "" if gone else "call 0: output 1: dtype torch.int64, expected torch.bfloat16\n"
    assert text.startswith(f"{first}call 0: gradient of input 0: ")


@pytest.mark.heavy
def test_an_input_that_requires_a_gradient_may_be_changed_in_place(tmp_path: Path) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_method("relu_", (x,)))
    values = [capture([torch.linspace(-1, 1, 6).reshape(2, 3).t().requires_grad_()])]
    case = Case(torch.fx.GraphModule({}, graph), values, "wrong_gradient", backend="aot_eager", grad=True)
    assert run_repro(write(tmp_path / "it", case)) == 0


def test_what_lacks_a_file_or_fails_uncompiled_or_takes_too_long_is_undecided(tmp_path: Path) -> None:
    case = case_of(lambda x: x + 1, (torch.ones(3),), kind="wrong_value", backend="eager")
    folder = write(tmp_path / "file", case)
    (folder / "call0.inputs.json").unlink()
    code, text = run(folder)
    assert code == 125, text
    assert "call0.inputs.json is missing" in text
    assert run(folder, "--timeout", "0.01")[0] == 125
    (folder / "repro.py").unlink()
    assert run_repro(folder) == 125

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(os.abort, ())
    graph.output(x)
    aborting = Case(torch.fx.GraphModule({}, graph), case.calls, "segfault", backend="eager")
    code, text = run(write(tmp_path / "abort", aborting))
    assert code == 125, text
    assert "killed by SIGABRT before the uncompiled run was done" in text


def test_a_graph_that_dynamo_refuses_goes_to_its_backend_directly(tmp_path: Path) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(print, ("here",))
    graph.output(graph.call_function(torch.relu, (x,)))
    case = Case(torch.fx.GraphModule({}, graph), [capture([torch.ones(2)])], "wrong_value", backend="aot_eager")
    code, text = run(write(tmp_path / "it", case))
    assert code == 0, text
    assert "its backend gets it directly" in text


def test_what_the_folder_holds(tmp_path: Path) -> None:
    case = case_of(lambda x: torch.relu(x) * torch.ones(2), (torch.ones(2),), kind="nonfinite", backend="eager")
    finding = finding_of(case, pass_="a_pass", source="model.py:3", local_z=float("inf"), flaky_rate=0.5)
    (tmp_path / "it").mkdir()
    more: dict[str, Any] = {"neighbour": "without relu it passes.", "before": case.graph}
    assert write_dossier(tmp_path / "it", case, finding, versions=VERSIONS, **more) == []
    assert [path.name for path in tmp_path.iterdir()] == ["it"]
    report = (tmp_path / "it" / "REPORT.md").read_text()
    for part in ("a_pass", "model.py:3", "without relu", torch.__version__, "torch.relu(", "flaky", "python repro.py"):
        assert part in report
    for path in (tmp_path / "it").iterdir():
        assert path.name == "REPORT.md" or f"`{path.name}`" in report
    found = json.loads((tmp_path / "it" / "finding.json").read_text())
    assert found["pass"] == "a_pass" and found["local_z"] == "inf"
    text = (tmp_path / "it" / "repro.py").read_text()
    assert "'repeats': 10" in text
    assert "import graphprobe" not in text and "from graphprobe" not in text and "import safetensors" not in text
    with pytest.raises(UsageError, match="holds something"):
        write_dossier(tmp_path / "it", case, finding, versions=VERSIONS)


def test_what_cannot_be_saved_is_said(tmp_path: Path) -> None:
    case = case_of(lambda x: x + 1, (torch.ones(3),), kind="wrong_value", backend="eager")
    bad = Case(case.graph, [capture([torch.ones(3).to_sparse()])], "wrong_value", inductor_config={"f": print})
    problems = write_dossier(tmp_path / "it", bad, finding_of(bad), versions=VERSIONS)
    assert len(problems) == 2
    code, text = run(tmp_path / "it")
    assert code == 125 and problems[0] in text
    assert problems[0] in (tmp_path / "it" / "REPORT.md").read_text()


@pytest.mark.parametrize(
    ("want", "have", "allowed", "expected"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), torch.tensor([0.0, 0.4]), "worst at (1,): compiled 2.5"),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), torch.tensor([0.0, 0.6]), None),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 0.0]), None, "NaN and infinity must agree"),
        (torch.tensor([1.0, torch.inf]), torch.tensor([1.0, -torch.inf]), None, "NaN and infinity must agree"),
        (torch.tensor([torch.nan, torch.inf]), torch.tensor([torch.nan, torch.inf]), None, None),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 0.0]), torch.tensor([0.0, torch.inf]), None),
        (torch.tensor(1.0), torch.tensor(1.0 + 2e-7), None, None),
        (torch.tensor(1e-5), torch.tensor(-1e-5), None, "1 of 1"),
        (torch.tensor([1 + 1j]), torch.tensor([1 + 2j]), torch.tensor([0.5]), "worst at (0, 1)"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), None, "first at (1,): compiled 3, expected 2"),
        (torch.zeros(2, 0), torch.zeros(2, 0), None, None),
        (torch.zeros(2), torch.zeros(2, 1), None, "shape"),
        (torch.zeros(2), torch.zeros(2).half(), None, "dtype"),
        (None, torch.zeros(2), None, None),
        (None, torch.ones(2), None, "expected None"),
        (torch.ones(2), None, None, "None, expected"),
        (3, 4, None, "4, expected 3"),
        (3, True, None, "True, expected 3"),
    ],
)
def test_comparison(want: Any, have: Any, allowed: torch.Tensor | None, expected: str | None) -> None:
    text = compare(want, have, allowed)
    assert text is None if expected is None else text is not None and expected in text


def test_strides_and_shared_memory_count_only_where_they_are_the_fault() -> None:
    want, have = CallOutcome(), CallOutcome()
    want.leaves = have.leaves = [("output 0", torch.ones(2, 3))]
    want.strides, have.strides = {"output 0": (3, 1)}, {"output 0": (1, 2)}
    x = torch.ones(3)
    have.sharing = sharing([("output 0", x[1:]), ("output 1", x.clone()), ("input 0", x)])
    assert have.sharing == ["input 0 shares the memory of output 0"]
    assert compare_call(want, have, None, "wrong_value") == []
    assert compare_call(want, have, None, "wrong_stride") == ["output 0: stride (1, 2), expected (3, 1)"]
    assert compare_call(want, have, None, "aliasing") == [f"{have.sharing[0]}, only when compiled"]


@pytest.mark.parametrize(
    ("kind", "events", "code", "expected"),
    [
        ("hang", [{"eager": True}, {"phase": "call 0"}], None, 1),
        ("wrong_value", [{"eager": True}, {"phase": "call 0"}], None, 125),
        ("wrong_value", [{"eager": True}, {"difference": "x"}], None, 1),
        ("hang", [], None, 125),
        ("segfault", [], -11, 125),
        ("segfault", [{"eager": True}], -11, 1),
        ("wrong_value", [{"eager": True}], 3, 1),
        ("wrong_value", [{"eager": True}, {"done": True}], -6, 1),
        ("wrong_value", [{"eager": True}, {"undecided": "why"}], 0, 125),
        ("wrong_value", [{"eager": True}, {"done": True}], 0, 0),
    ],
)
def test_judgement(kind: str, events: list[dict[str, Any]], code: int | None, expected: int) -> None:
    assert watch.judge({"kind": kind, "calls": 1}, events, code, 1.0)[0] == expected
