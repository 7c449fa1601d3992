"""Backends that a program defines itself, in a repro."""

from __future__ import annotations

import functools
import math
import operator as op
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.fx import symbolic_trace

import graphprobe
from graphprobe.diagnose.case import Case
from graphprobe.diagnose.dossier.own_backend import own_backend
from graphprobe.diagnose.dossier.writer import write_dossier
from graphprobe.diagnose.reduction.case_folder import finding_of
from graphprobe.diagnose.reduction.load_case import load_case
from graphprobe.engine.values import capture

LIMIT = (3, "words")
SHARED: list[int] = []


def has_relu(gm: Any) -> bool:
    return any("relu" in str(node.target) for node in gm.graph.nodes)


def refusing(gm: Any, example_inputs: Any, *, most: float = math.inf) -> Any:
    if has_relu(gm) and op.lt(LIMIT[0], most):
        raise RuntimeError(f"no relu: {functools.reduce(op.add, LIMIT[:1])}")
    return gm.forward


def counting(gm: Any, example_inputs: Any) -> Any:
    SHARED.append(1)
    return gm.forward


def watch(gm: Any, example_inputs: Any) -> Any:
    return refusing(gm, example_inputs)


@functools.cache
def decorated(gm: Any, example_inputs: Any) -> Any:
    return gm.forward


def enclosed() -> Any:
    factor = [2]

    def backend(gm: Any, example_inputs: Any) -> Any:
        return lambda *args: [factor[0] * x for x in gm(*args)]

    return backend


def enclosed_plainly(most: float, rebinds: bool = False) -> Any:
    numbers, seen = math, 0

    def backend(gm: Any, example_inputs: Any) -> Any:
        if has_relu(gm) and numbers.floor(most) == 1:
            raise RuntimeError("no relu: 3")
        return gm.forward

    def counted(gm: Any, example_inputs: Any) -> Any:
        nonlocal seen
        seen += 1
        return gm.forward

    return counted if rebinds else backend


def relu_case(**settings: Any) -> Case:
    graph = symbolic_trace(lambda x: (torch.relu(x),))
    return Case(graph, [capture([torch.ones(2)])], "crash_compile", backend="eager", **settings)


def run_repro_of(case: Case, folder: Path) -> subprocess.CompletedProcess[str]:
    write_dossier(folder, case, finding_of(case, "because"), versions={})
    return subprocess.run(
        [sys.executable, "-I", "repro.py"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_repro_holds_the_backend_and_all_that_it_uses(tmp_path: Path) -> None:
    own = own_backend(refusing)
    assert own is not None
    done = run_repro_of(relu_case(own_backend=own), tmp_path / "it")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "refusing" in done.stdout
    assert "backend=refusing" in (tmp_path / "it" / "REPORT.md").read_text()
    again = load_case(tmp_path / "it").own_backend
    assert again == own
    with pytest.raises(RuntimeError, match="no relu: 3"):
        again.make()(symbolic_trace(torch.nn.ReLU()), [])


def tanh_for_erf(gm: Any, example_inputs: Any) -> Any:
    """A backend with a fault: it takes the fast gelu for the exact one."""
    gm = torch.fx.GraphModule(gm, gm.graph)
    for node in gm.graph.nodes:
        if getattr(node.target, "__name__", "") == "gelu":
            node.kwargs = {**node.kwargs, "approximate": "tanh"}
    gm.recompile()
    return gm.forward


def exact(gm: Any, example_inputs: Any) -> Any:
    return gm.forward


def test_a_value_that_a_backend_gets_wrong_is_traced_to_its_op(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.GELU(), torch.nn.Linear(8, 8))
    found = graphprobe.diagnose(model, torch.randn(4, 8), grad=False, backend=tanh_for_erf, out=tmp_path)
    (finding,) = found.findings
    assert (finding.kind, finding.module) == ("wrong_value", "2")
    assert finding.op is not None
    assert finding.op.endswith("gelu")
    assert finding.dossier is not None
    repro = Path(finding.dossier) / "repro.py"
    done = subprocess.run([sys.executable, "-I", str(repro)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    healthy = graphprobe.diagnose(model, torch.randn(4, 8), grad=False, backend=exact, out=tmp_path / "healthy")
    assert healthy.verdict == "healthy"


def test_without_it_the_repro_shows_nothing(tmp_path: Path) -> None:
    assert run_repro_of(relu_case(), tmp_path / "it").returncode == 0


def test_a_name_that_the_repro_has_itself_is_told(tmp_path: Path) -> None:
    own = own_backend(watch)
    assert own is not None
    done = run_repro_of(relu_case(own_backend=own), tmp_path / "it")
    assert done.returncode == 125
    assert "the backend defines watch, and so does this file" in done.stdout


def test_what_a_backend_takes_from_the_function_around_it(tmp_path: Path) -> None:
    failing, fine = own_backend(enclosed_plainly(1.5)), own_backend(enclosed_plainly(2.5))
    assert failing is not None and fine is not None
    assert run_repro_of(relu_case(own_backend=failing), tmp_path / "failing").returncode == 1
    assert run_repro_of(relu_case(own_backend=fine), tmp_path / "fine").returncode == 0


def test_what_torch_wraps_is_found() -> None:
    wrapped = SimpleNamespace(compiler_fn=refusing)
    assert own_backend(wrapped) == own_backend(refusing)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "backend",
    [
        counting,
        decorated,
        enclosed(),
        enclosed_plainly(1.0, rebinds=True),
        lambda gm, inputs: gm,
        functools.partial(refusing, most=3),
        print,
    ],
)
def test_what_a_text_cannot_define(backend: Any) -> None:
    """A shared list, a decorator, a closure on such a list or on what it changes, a lambda, no Python."""
    assert own_backend(backend) is None
