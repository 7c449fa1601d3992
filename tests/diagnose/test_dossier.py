"""A repro runs on torch alone: it exits 1 while its fault is there, 0 when it is gone, 125 when it cannot tell."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reduction.reduction_cases import captured

from conftest import Finished, module_at
from graphprobe.diagnose.case import Case
from graphprobe.diagnose.dossier import seen
from graphprobe.diagnose.dossier.seen import (
    COMPILED,
    Look,
    apart,
    difference,
    differences,
    reported,
    size_of,
    within,
)
from graphprobe.diagnose.dossier.writer import TEST, run_repro, write_dossier
from graphprobe.engine.values import capture
from graphprobe.errors import UsageError
from graphprobe.findings import Finding, Kind

RELU_BUG = {"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}

Run = Callable[..., tuple[int, str]]


def case_of(fn: Callable[..., Any], *calls: tuple[Any, ...], kind: Kind = "wrong_value", **more: Any) -> Case:
    graph, values = captured(fn, *calls, grad=more.get("grad", False), dynamic=more.get("dynamic"))
    return Case(graph, values, kind, **more)


def case_of_calls(*calls: tuple[Any, Any], x: torch.Tensor, kind: Kind, **more: Any) -> Case:
    """A graph of these calls of a method or function; None as its arguments: the input. The last one is returned."""
    graph = torch.fx.Graph()
    last = inner = graph.placeholder("x")
    for target, args in calls:
        call = graph.call_method if isinstance(target, str) else graph.call_function
        last = call(target, (inner,) if args is None else args)
    graph.output(last)
    return Case(torch.fx.GraphModule({}, graph), [capture([x])], kind, **more)


def finding_of(case: Case, **more: Any) -> Finding:
    return Finding(kind=case.kind, stage="codegen", op="aten.relu.default", **more)


def write(folder: Path, case: Case) -> Path:
    assert write_dossier(folder, case, finding_of(case)) == []
    return folder


@pytest.fixture
def run(run_warm: Callable[..., Finished]) -> Run:
    def run(folder: Path, *options: str) -> tuple[int, str]:
        done = run_warm(str(folder / "repro.py"), *options, cwd=Path("/"))
        return done.code, f"{done.out}\n--\n{done.err[-2000:]}"

    return run


def grow(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.copy_(torch.relu(x))
    return torch.relu(x).sum(1) * 2


def grow_case(**more: Any) -> Case:
    calls = [(torch.linspace(-1, 1, 4 * n).reshape(n, 4), torch.zeros(n, 4)) for n in (3, 5)]
    bounds = [[torch.full((n,), 1e-5), torch.tensor(1e-6), torch.tensor(1e-6)] for n in (3, 5)]
    return case_of(grow, *calls, dynamic=True, allowed=[[t.double() for t in call] for call in bounds], **more)


def raising(when: str, kind: Kind) -> Case:
    backend = f"relu_{when}_error_TESTING_ONLY"
    return case_of(lambda x: torch.relu(x) + 1, (torch.ones(3),), kind=kind, backend=backend)


def missing_exception() -> Case:
    half, backend = torch.full((2,), 0.5), "aot_eager_decomp_partition"
    loss = torch.nn.functional.binary_cross_entropy
    case = case_of(loss, (half, torch.ones(2)), kind="missing_exception", backend=backend)
    case.calls[0] = capture([half, torch.full((2,), 1.5)])
    return case


def killed() -> Case:
    a = torch.tensor([True, False, True, False] * (1 << 18))
    return case_of(lambda a, b: torch.add(a, b, alpha=2), (a, a.roll(1)), kind="segfault")


def pool(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    positions = torch.ones((2, 4), dtype=torch.bool).cumsum(1, dtype=torch.bfloat16)
    return torch.nn.functional.avg_pool2d(x, 3, 2, ceil_mode=True), positions


def pool_case() -> Case:
    return case_of(pool, (torch.randn(1, 1, 8, 8, requires_grad=True),), kind="wrong_gradient", grad=True)


def changed_in_place() -> Case:
    x = torch.linspace(-1, 1, 6).reshape(2, 3).t().requires_grad_()
    return case_of_calls(("relu_", None), x=x, kind="wrong_gradient", backend="aot_eager", grad=True)


def refused_by_dynamo() -> Case:
    calls = (print, ("here",)), (torch.relu, None)
    return case_of_calls(*calls, x=torch.ones(2), kind="wrong_value", backend="aot_eager")


def dies_uncompiled() -> Case:
    return case_of_calls((os.abort, ()), x=torch.ones(3), kind="segfault", backend="eager")


GROWN = [
    r"^call 0: result\[0\]: 3 of 3",
    r"^call 1: result\[0\]: 5 of 5",
    r"^call 1: args\[2\]: ",
    "^FAULT: wrong_value",
]
DTYPE = r"^call 0: result\[1\]: uncompiled torch.bfloat16 \(2, 4\), compiled torch.int64 \(2, 4\)$"
SHOWN: dict[str, tuple[Callable[[], Case], int, list[str]]] = {
    "wrong value and input, two sizes": (
        lambda: grow_case(configs={"inductor": RELU_BUG}),
        1,
        [*GROWN, "allowed 1e-05", "allowed 1e-06"],
    ),
    "no fault": (grow_case, 0, []),
    "compiler raises": (
        lambda: raising("compile", "crash_compile"),
        1,
        ["call 0: uncompiled it does not raise; compiled it raises torch._dynamo.exc"],
    ),
    "compiled code raises": (lambda: raising("runtime", "crash_runtime"), 1, ["compiled it raises"]),
    "missing exception": (missing_exception, 1, ["uncompiled it raises RuntimeError: all elements of target"]),
    "killed": (killed, 1, ["the process was killed by SIG"]),
    "wrong gradient and dtype": (
        pool_case,
        1,
        [r"^call 0: args\[0\].grad: ", *([DTYPE] if torch.__version__ < (2, 15) else [])],
    ),
    "input with a gradient, changed in place": (changed_in_place, 0, []),
    "refused by Dynamo": (refused_by_dynamo, 0, ["its backend takes it directly"]),
    "dies uncompiled": (dies_uncompiled, 125, ["killed by SIGABRT before the uncompiled run was done"]),
}
MORE = ("compiled code raises", "input with a gradient, changed in place")


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.heavy] if n in MORE else []) for n in SHOWN])
def test_what_a_repro_shows(name: str, run: Run, tmp_path: Path) -> None:
    case, code, parts = SHOWN[name]
    found, text = run(write(tmp_path / "a" / "b", case()))
    assert found == code, text
    for part in parts:
        assert re.search(part, text, re.MULTILINE), text


@pytest.mark.usefixtures("warm_proofs")
def test_what_lacks_a_file_or_takes_too_long_is_undecided(run: Run, tmp_path: Path) -> None:
    folder = write(tmp_path / "file", case_of(lambda x: x + 1, (torch.ones(3),), backend="eager"))
    assert run_repro(folder, timeout_s=0.01) == 125
    (folder / "call0.inputs.json").unlink()
    code, text = run(folder)
    assert code == 125 and "call0.inputs.json is missing" in text, text
    assert run_repro(folder) == 125
    (folder / "repro.py").unlink()
    assert run_repro(folder) == 125


def test_its_test_passes_once_the_repro_does(tmp_path: Path) -> None:
    (tmp_path / "test_repro.py").write_text(TEST)
    (tmp_path / "repro.py").write_text("import sys\nsys.exit(sys.flags.isolated)")
    with pytest.raises(AssertionError, match="exit code 1"):
        module_at(str(tmp_path), "test_repro.py").test_fault_is_gone()
    (tmp_path / "repro.py").write_text("")
    module_at(str(tmp_path), "test_repro.py").test_fault_is_gone()


def test_what_the_folder_holds(tmp_path: Path) -> None:
    case = case_of(lambda x: torch.relu(x) * torch.ones(2), (torch.ones(2),), kind="nonfinite", backend="eager")
    finding = finding_of(case, pass_="a_pass", source="model.py:3", local_z=float("inf"), flaky_rate=0.5)
    folder = tmp_path / "it"
    folder.mkdir()
    more: dict[str, Any] = {"neighbour": "without relu it passes.", "before": case.graph}
    assert write_dossier(folder, case, finding, **more) == []
    assert [path.name for path in tmp_path.iterdir()] == ["it"]
    report = (folder / "REPORT.md").read_text()
    for part in ("a_pass", "model.py:3", "without relu", torch.__version__, "torch.relu(", "flaky", "python repro.py"):
        assert part in report
    for path in folder.iterdir():
        assert path.name == "REPORT.md" or f"`{path.name}`" in report
    assert (folder / "test_repro.py").read_text() == TEST
    found = json.loads((folder / "finding.json").read_text())
    assert found["pass"] == "a_pass" and found["local_z"] == "inf"
    text = (folder / "repro.py").read_text()
    assert "'repeats': 10" in text
    assert not re.search("(import|from) graphprobe|import safetensors", text)
    with pytest.raises(UsageError, match="holds something"):
        write_dossier(folder, case, finding)


def test_what_cannot_be_saved_is_said(run: Run, tmp_path: Path) -> None:
    bad = Case(
        case_of(lambda x: x + 1, (torch.ones(3),), backend="eager").graph,
        [capture([torch.ones(3).to_sparse()])],
        "wrong_value",
        configs={"inductor": {"f": print}},
    )
    problems = write_dossier(tmp_path / "it", bad, finding_of(bad))
    assert len(problems) == 2
    code, text = run(tmp_path / "it")
    assert code == 125 and f"CANNOT DECIDE: {problems[0]}" in text
    assert problems[0] in (tmp_path / "it" / "REPORT.md").read_text()


def test_comparison() -> None:
    usual = within(lambda eps: eps**0.5)
    for want, have, allowed, expected in (
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), torch.tensor([0.0, 0.4]), "worst at (1,): uncompiled 2.0"),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), torch.tensor([0.0, 0.6]), ""),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 0.0]), None, "NaN and infinity must agree"),
        (torch.tensor([1.0, torch.inf]), torch.tensor([1.0, -torch.inf]), None, "NaN and infinity must agree"),
        (torch.tensor([1.0, torch.inf]), torch.tensor([1.0, 3e38]), None, "NaN and infinity must agree"),
        (torch.tensor([torch.nan, torch.inf]), torch.tensor([torch.nan, torch.inf]), None, ""),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 0.0]), torch.tensor([0.0, torch.inf]), ""),
        (torch.tensor(1.0), torch.tensor(1.0 + 2e-7), None, ""),
        (torch.tensor(1e-5), torch.tensor(-1e-5), None, "1 of 1"),
        (torch.tensor([1 + 1j]), torch.tensor([1 + 2j]), torch.tensor([0.5]), "worst at (0,): uncompiled (1+1j)"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), None, "worst at (1,): uncompiled 2, compiled 3"),
        (torch.zeros(2, 0), torch.zeros(2, 0), None, ""),
    ):
        limit = (lambda v: 16 * torch.finfo(v.dtype).eps * size_of(v)) if allowed is None else lambda _, a=allowed: a
        text = difference(want, have, limit)
        assert expected in text and bool(text) == bool(expected)
    leaf = torch.ones(2, requires_grad=True)
    for want, have, expected in (
        (torch.zeros(2), torch.zeros(2, 1), "uncompiled torch.float32 (2,), compiled torch.float32 (2, 1)"),
        (torch.zeros(2), torch.zeros(2).half(), "uncompiled torch.float32 (2,), compiled torch.float16 (2,)"),
        (None, torch.ones(2), "uncompiled None, compiled torch.float32 (2,)"),
        (torch.ones(2), None, "uncompiled torch.float32 (2,), compiled None"),
        (3, 4, "uncompiled 3, compiled 4"),
        (3, True, "uncompiled 3, compiled True"),
        (torch.arange(6).reshape(2, 3), torch.arange(6).reshape(3, 2).t(), "strides of tensor 0 of the result"),
        ((leaf, leaf.clone()), (leaf, leaf), "memory of tensor 1 of the result: uncompiled its own, compiled tensor 0"),
    ):
        looks = [Look("", ()), Look("", ())]
        for look, value in zip(looks, (want, have), strict=True):
            look.result(value)
        found = list(differences(looks[0].found, looks[1].found, usual))
        assert any(expected in line for line in found), found
    for gradient, expected in ((torch.zeros(2), []), (torch.ones(2), ["x.grad: uncompiled nothing, compiled torch."])):
        looks = [Look("", ()), Look("", ())]
        for look, grad in zip(looks, (None, gradient), strict=True):
            leaf.grad = grad
            look.at(leaf, "x")
        found = list(differences(looks[0].found, looks[1].found, usual))
        assert len(found) == len(expected) and all(map(str.startswith, found, expected))


def test_what_raises_is_compared_up_to_there() -> None:
    raises, more = {"call 0: the exception": "ValueError: no"}, {"call 0: result": "2", "call 1: result": "3"}
    for want, have, expected in (
        (raises, {"call 0: the exception": "Other: it is said otherwise"}, []),
        (raises, more, ["call 0: uncompiled it raises ValueError: no; compiled it does not raise"]),
        (more, raises, ["call 0: uncompiled it does not raise; compiled it raises ValueError: no"]),
        ({"x": "1", **raises}, {"x": "2", **raises}, ["x: uncompiled 1, compiled 2"]),
    ):
        assert list(differences(want, have, within(abs))) == expected


def test_judgement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(seen, "ARGUMENTS", [])
    file, kept = (
        tmp_path / "repro.py",
        "import pathlib, sys; pathlib.Path(sys.argv[2], 'seen').write_text('{\"x\": \"1\"}')",
    )
    for text, mode, code, told in (
        ("import time; time.sleep(60)", (COMPILED,), 1, "did not end within 1 s; the uncompiled run went well"),
        ("import time; time.sleep(60)", (), 125, "CANNOT DECIDE: the process did not end within 1 s"),
        ("import os; os.abort()", (COMPILED,), 1, "was killed by SIGABRT; the uncompiled run went well\nFAULT: hang"),
        ("import os; os.abort()", (), 125, "killed by SIGABRT before the uncompiled run was done"),
        ("import sys; sys.exit(3)", (COMPILED,), 1, "ended with exit code 3"),
        ("import os; os._exit(0)", (COMPILED,), 1, "ended with exit code 0; the uncompiled run went well"),
        ("import sys; sys.exit(125)", (COMPILED,), 125, "ended with exit code 125 before the compiled run was done"),
    ):
        file.write_text(text)
        with pytest.raises(SystemExit) as ended:
            apart(str(file), "hang", *mode, limit_s=1)
        assert ended.value.code == code and told in capsys.readouterr().out
    file.write_text("import time; time.sleep(60)")
    with pytest.raises(SystemExit) as ended:
        apart(str(file), "wrong_value", COMPILED, limit_s=1)
    assert ended.value.code == 125 and "CANNOT DECIDE" in capsys.readouterr().out
    file.write_text(kept)
    assert apart(str(file), "hang") == {"x": "1"}
    for found, unsaved, code, told in (
        (["a", "b"], "", 1, "a\nb\nFAULT: hang\n"),
        ([], "a pass", 125, "CANNOT DECIDE: no difference, but this could not be saved: a pass"),
        ([], "", 0, "GONE"),
    ):
        assert reported("hang", iter(found), unsaved) == code and told in capsys.readouterr().out
