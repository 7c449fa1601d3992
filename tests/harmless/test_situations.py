"""Do no harm where compiled code runs in unusual circumstances, logs, or fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

CACHES_OFF = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
"""Watching switches torch's graph caches off, and that alone shows: other lines of torch stand in a traceback, and code
generation, which a cache hit skips, raises the interpreter's recursion limit."""

ERRORS = {
    "at_run_time": "RuntimeError",
    "in_a_library_call": "ValueError",
    "in_a_late_backward": "ArithmeticError",
    "in_a_backend": "BackendCompilerFailed",
    "in_a_compiler_below_aot": "BackendCompilerFailed",
    "in_lowering": "InductorError",
    "in_the_c_compiler": "InductorError",
    "in_user_code": "AssertionError",
    "in_fullgraph": "Unsupported",
}


def test_situations(watched_and_not: Callable[..., Any]) -> None:
    plain, watched = watched_and_not("situations.py", ways=("everything",), env=CACHES_OFF)
    assert plain.code == 0, plain.err
    # The evidence is not empty: modes saw calls, nothing was logged below a warning.
    assert "seen: []" not in re.findall(r"Counting eager.*?\n(seen: .*)", plain.out, re.S)
    assert "'torch._dynamo': []" in plain.out
    assert "root handler: []" in plain.out
    for way, (said, run) in watched.items():
        assert said.out == plain.out, way
        assert said.err == plain.err, way
        assert run.manifest.missing == [], way
        assert run.verify() == [], way
        reasons = [model.compile["reason"] for model in run.models()]
        assert any("size mismatch" in reason for reason in reasons)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "logs",
    ["recompiles,graph_breaks,inductor,aot_graphs", "+dynamo", "post_grad_graphs,output_code,schedule,+aot"],
)
def test_torch_logs_say_what_they_said(logs: str, watched_and_not: Callable[..., Any]) -> None:
    which = ("recompiles_with_dynamic_shapes", "graph_breaks")
    plain, watched = watched_and_not(
        "situations.py", *which, ways=("everything",), env={**CACHES_OFF, "TORCH_LOGS": logs}
    )
    assert plain.code == 0, plain.err
    assert len(plain.err.splitlines()) > 20
    said, run = watched["everything"]
    assert said.out == plain.out
    assert comparable(said.err) == comparable(plain.err)
    assert run.manifest.missing == []


LAUNCHER = re.compile(
    r'File "(<frozen runpy>|[^"]*/click/[^"]*|[^"]*/graphprobe/(__main__|cli/(commands/)?\w+|probe/script)\.py)"'
)
"""Frames below the program's first one. torch prints the whole stack of a graph break, and `-m graphprobe` is in it."""


def comparable(text: str) -> list[str]:
    """torch's log without the launcher's frames and what no two runs share: addresses, times, unique names.

    Nor with how many frames of the compiler torch leaves out of a stack: what watches Dynamo's steps is one of these.
    """
    text = re.sub(r"0x[0-9a-f]{6,}|\b\d{12,}\b", "ADDRESS", text)
    text = re.sub(r"__compiled_fn_(\d+)_[0-9a-f_]+", r"__compiled_fn_\1", text)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
    text = re.sub(r"\d+\.\d{3,}(e-\d+)?|\d+\.\d+(?= us)", "NUMBER", text)
    text = re.sub(r"\(elided \d+ frames\)", "(elided frames)", text)
    kept = []
    inside = False
    for line in text.splitlines():
        if 'File "' in line or not re.search(r"\]    +\S", line):
            inside = bool(LAUNCHER.search(line))
        if not inside:
            kept.append(line)
    return kept


def test_errors(watched_and_not: Callable[..., Any]) -> None:
    """Type, chain, message and every line of every traceback."""
    plain, watched = watched_and_not("errors.py", "at_run_time", env=CACHES_OFF)
    assert plain.code == 1
    raised = dict(re.findall(r"^== (\w+) \['(\w+)'", plain.out, re.M))
    assert raised == ERRORS
    for way, (said, run) in watched.items():
        assert "graphprobe" not in said.out + said.err, way
        assert said.out == plain.out, way
        assert said.err == plain.err, way
        assert said.code == 1
        assert run.manifest.state == "failed"
        assert "IndexError" in str(run.manifest.exception) or "RuntimeError" in str(run.manifest.exception)
        assert run.manifest.missing == [], way
        failures = [event for event in run.events() if event.kind == "failure"]
        assert {str(f.message).partition(":")[0] for f in failures} >= {"ArithmeticError", "LookupError"}
        told = [str(model.compile["failure"]) for model in run.models()]
        assert any("a backend's own mistake" in failure for failure in told)


@pytest.mark.heavy
@pytest.mark.parametrize("uncaught", ["in_a_backend", "in_the_c_compiler"])
def test_uncaught_errors(uncaught: str, watched_and_not: Callable[..., Any]) -> None:
    plain, watched = watched_and_not("errors.py", uncaught, ways=("default",), env=CACHES_OFF)
    said, run = watched["default"]
    assert plain.code == said.code == 1
    assert ERRORS[uncaught] in plain.err
    assert said.err == plain.err
    assert run.manifest.state == "failed"
    assert ERRORS[uncaught] in str(run.manifest.exception)
