"""Do no harm where compiled code runs in unusual circumstances, logs, or fails."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Finished
from harmless.conftest import PROGRAMS, without_time_and_process

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


@pytest.mark.slow
def test_situations(watched_and_not: Callable[..., Any]) -> None:
    plain, runs = watched_and_not("situations.py", ways=("everything",))
    assert plain.code == 0, plain.err
    # The evidence is not empty: modes saw calls, nothing was logged below a warning.
    assert "seen: []" not in re.findall(r"Counting eager.*?\n(seen: .*)", plain.out, re.S)
    assert "'torch._dynamo': []" in plain.out
    assert "root handler: []" in plain.out
    assert any("size mismatch" in model.compile["reason"] for model in runs["everything"].models())


@pytest.mark.heavy
def test_torch_logs_say_what_they_said(watched_and_not: Callable[..., Any]) -> None:
    which = ("recompiles_with_dynamic_shapes", "graph_breaks")
    logs = "+dynamo,+aot,recompiles,graph_breaks,inductor,aot_graphs,post_grad_graphs,output_code,schedule"
    plain, _ = watched_and_not(
        "situations.py", *which, ways=("everything",), env={"TORCH_LOGS": logs}, comparable=comparable
    )
    assert plain.code == 0, plain.err
    assert len(plain.err.splitlines()) > 20


LAUNCHER = re.compile(
    r'File "(<frozen runpy>|[^"]*/click/[^"]*|[^"]*/graphprobe/(__main__|cli/(commands/)?\w+|probe/script)\.py)"'
)
"""Frames below the program's first one. torch prints the whole stack of a graph break, and `-m graphprobe` is in it."""


def comparable(text: str) -> list[str]:
    """torch's log without the launcher's frames and what no two runs share: addresses, times, unique names.

    Nor with how many frames of the compiler torch leaves out of a stack: what watches Dynamo's steps is one of these.
    """
    for pattern, name in (
        (r"\b([A-Z])\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ ", r"\1 TIME PID "),
        (r"0x[0-9a-f]{6,}|\b\d{12,}\b", "ADDRESS"),
        (r"__compiled_fn_(\d+)_[0-9a-f_]+", r"__compiled_fn_\1"),
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID"),
        (r"\d+\.\d{3,}(e-\d+)?|\d+\.\d+(?= us)", "NUMBER"),
        (r"\(elided \d+ frames\)", "(elided frames)"),
    ):
        text = re.sub(pattern, name, text)
    kept = []
    inside = False
    for line in text.splitlines():
        if 'File "' in line or not re.search(r"\]    +\S", line):
            inside = bool(LAUNCHER.search(line))
        if not inside:
            kept.append(line)
    return kept


@pytest.mark.slow
@pytest.mark.parametrize(
    "uncaught",
    ["at_run_time", *(pytest.param(f"in_{name}", marks=pytest.mark.heavy) for name in ("a_backend", "the_c_compiler"))],
)
def test_errors(uncaught: str, watched_and_not: Callable[..., Any]) -> None:
    """Type, chain, message and every line of every traceback."""
    plain, runs = watched_and_not("errors.py", uncaught)
    assert plain.code == 1
    assert dict(re.findall(r"^== (\w+) \['(\w+)'", plain.out, re.M)) == ERRORS
    assert ERRORS[uncaught] in plain.err
    assert "graphprobe" not in plain.out + plain.err
    for run in runs.values():
        assert ERRORS[uncaught] in str(run.manifest.exception) or "IndexError" in str(run.manifest.exception)
        failures = {str(event.message).partition(":")[0] for event in run.events() if event.kind == "failure"}
        assert failures >= {"ArithmeticError", "LookupError"}
        assert any("a backend's own mistake" in str(model.compile["failure"]) for model in run.models())


def test_recompilations_that_are_counted(run_warm: Callable[..., Finished], tmp_path: Path) -> None:
    """No output, no compile, no exception is another, and nothing of what torch logs, beside a line for each cause."""
    plain, watched = (
        run_warm(*before, str(PROGRAMS / "recompiling.py"), cwd=tmp_path, env={"OMP_NUM_THREADS": "1"})
        for before in ((), ("-m", "graphprobe", "recompiles"))
    )
    assert (plain.code, watched.code) == (0, 1), plain.err + watched.err
    assert "Recompiling function forward" in plain.err and "hit config.recompile_limit (4)" in plain.err
    lines = watched.err.splitlines(keepends=True)
    causes = [line for line in lines if line.startswith("graphprobe: recompiles: ")]
    others = "".join(line for line in lines if line not in causes)
    assert causes and without_time_and_process(others) == without_time_and_process(plain.err)
    program, _, report = watched.out.partition("\n\n")
    assert program.startswith(plain.out.rstrip("\n")), (plain.out, watched.out)
    assert "recompile_limit is 4" in report
    assert not list(tmp_path.iterdir())  # and nothing is left behind
