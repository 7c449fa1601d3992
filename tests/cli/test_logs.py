"""`graphprobe logs`: where a process was when it was killed, and what its logs hold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conftest import Finished
from graphprobe.cli.commands.logs import command
from graphprobe.store.reader import Run

Python = Callable[..., Finished]

PLANTED = '''
"""Each way to die in a child of its own, so that torch is imported once."""
import os, signal, sys
import torch
import torch._inductor.compile_fx, torch._inductor.cpp_builder as cpp_builder, torch._inductor.config as config
import graphprobe
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.comptime import comptime
from functorch.compile import aot_function

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

kill = False

@torch.library.custom_op("planted::maybe_deadly", mutates_args=())
def maybe_deadly(x: torch.Tensor) -> torch.Tensor:
    if kill:
        die()
    return x.clone()

@maybe_deadly.register_fake
def _(x):
    return torch.empty_like(x)

def f(x):
    return maybe_deadly(x)

def traced(x):
    comptime(die)
    return x

def fused(x):
    return x.sin() + 1

def trace(): torch.compile(traced, backend="eager")(torch.ones(4))
def backend(): torch.compile(fused, backend=lambda gm, inputs: die())(torch.ones(4))
def passes():
    config.post_grad_custom_post_pass = die
    torch.compile(fused)(torch.ones(4))
def cpp():
    cpp_builder.run_compile_cmd = die
    torch.compile(fused)(torch.ones(4))
def run():
    global kill
    kill = True
    torch.compile(f)(torch.ones(4))
def healthy(): torch.compile(f)(torch.ones(4))
def raising():
    def bad(gm, inputs): raise RuntimeError("no such luck")
    torch.compile(fused, backend=bad)(torch.ones(4))
def caught():
    try: raising()
    except Exception: pass
def no_kernel(gm, inputs): raise KeyError("no kernel for cos")
def backward(bw_compiler):
    backend = aot_autograd(fw_compiler=lambda gm, inputs: gm.forward, bw_compiler=bw_compiler)
    torch.compile(fused, backend=backend)(torch.ones(4, requires_grad=True)).sum().backward()
def late(): backward(die)
def late_raising(): backward(no_kernel)
def forward(): torch.compile(fused, backend=aot_autograd(fw_compiler=die))(torch.ones(4))
def without_dynamo():
    aot_function(fused, lambda gm, inputs: gm.forward, die)(torch.ones(4, requires_grad=True)).sum().backward()

for way in (trace, backend, passes, cpp, run, healthy, raising, caught, late, late_raising, forward, without_dynamo):
    if os.fork() == 0:
        with graphprobe.trace(f"runs/{way.__name__}", logs="info,+graph_breaks"):
            way()
        sys.stdout.flush()
        os._exit(0)
    os.wait()
'''


@pytest.fixture(scope="module")
def runs(run_python: Python, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run for each way to end."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.py").write_text(PLANTED)
    env = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    done = run_python("planted.py", cwd=folder, env=env)
    assert done.code == 0, done.err
    return folder / "runs"


def logs(*arguments: object, text: str | None = None) -> Result:
    return CliRunner().invoke(command, [str(one) for one in arguments], input=text)


def document(*arguments: object) -> dict[str, Any]:
    result = logs(*arguments, "--json")
    found: dict[str, Any] = json.loads(result.output)
    assert result.exit_code == int(bool(found["open"] or found["failed"]))
    return found


@pytest.mark.parametrize(
    ("way", "component", "name", "detail", "outermost"),
    [
        ("trace", "dynamo", "trace", r"traced \(.*planted\.py:\d+\)", "trace"),
        ("backend", "backend", "compile", "<lambda>", "trace"),
        ("passes", "inductor", "post_grad_custom_post_pass", "pass of post_grad_passes", "trace"),
        ("cpp", "inductor", "compile C\\+\\+", r".*\.(so|i|o)", "trace"),
        ("run", "run", "launch", r"planted\.maybe_deadly\.default \(output_code\.py:\d+\)", "first call"),
        ("late", "backend", "compile the backward graph", "by compiler_fn", "compile the backward graph"),
        ("forward", "backend", "compile the forward graph", "by compiler_fn", "trace"),
        ("without_dynamo", "backend", "compile the backward graph", "by aot_autograd", "compile the backward graph"),
    ],
)
def test_a_killed_process_was_in_this_step(
    runs: Path, way: str, component: str, name: str, detail: str, outermost: str
) -> None:
    found = document(runs / way)
    assert found["state"] == "killed"
    last = found["open"][-1]
    assert last["component"] == component
    assert re.fullmatch(name, last["name"]) and re.fullmatch(detail, last["detail"])
    assert found["open"][0]["name"] == outermost
    assert last["before_end_s"] >= 0 and found["end_is"] == "last sign of life"
    told = logs(runs / way).output
    assert f"last step begun and not ended: {last['text']}" in told and "last lines of" in told


@pytest.mark.parametrize("way", ["healthy", "caught"])
def test_silent_control(runs: Path, way: str) -> None:
    found = document(runs / way)
    assert (found["state"], found["open"], found["failed"]) == ("finished", [], None)
    assert found["steps"] > 1
    told = logs(runs / way)
    assert "no step is open" in told.output and told.exit_code == 0


def test_an_exception_names_the_step_that_it_left(runs: Path) -> None:
    found = document(runs / "raising")
    assert (found["state"], found["open"]) == ("failed", [])
    assert (found["failed"]["component"], found["failed"]["detail"]) == ("backend", "bad")
    assert "RuntimeError: no such luck" in found["failed"]["error"]


def test_an_exception_of_a_late_compile_names_its_step(runs: Path) -> None:
    found = document(runs / "late_raising")
    assert (found["state"], found["open"]) == ("failed", [])
    assert (found["failed"]["name"], found["failed"]["direction"]) == ("compile the backward graph", "backward")
    assert "KeyError: 'no kernel for cos'" in found["failed"]["error"]


def test_a_run_that_goes_on_is_no_fault_yet(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "state", "running")
    result = logs(runs / "backend")
    assert result.exit_code == 0 and re.search(r"begun [\d.]+ s ago", result.output)


def test_lines_of_one_component(runs: Path) -> None:
    records = document(runs / "healthy", "--component", "inductor")["lines"]
    assert records and all(record["logger"].startswith("torch._inductor") for record in records)
    assert any("torchinductor compiling FORWARDS graph 0" in record["text"] for record in records)
    assert len(logs(runs / "healthy", "--component", "dynamo", "--tail", 2).output.splitlines()) >= 2
    assert logs(runs / "healthy", "--component", "dynamo", "--level", "error").output == ""
    # From debug.log where the run has no file for it.
    assert not (Run.open(runs / "healthy").tool_dir / "logs/fx.log").exists()
    assert logs(runs / "healthy", "--component", "fx").exit_code == 0
    files = {path.name for path in (Run.open(runs / "healthy").tool_dir / "logs").iterdir()}
    assert {"dynamo.log", "inductor.log"} <= files <= {"dynamo.log", "inductor.log", "aot.log", "fx.log"}


def test_wrong_use(runs: Path, tmp_path: Path) -> None:
    for arguments, says in (
        ((runs / "healthy", "--component", "guards"), "the run has no log 'guards'"),
        ((runs / "healthy", "--level", "loud"), "there is no such level"),
        ((tmp_path / "nothing",), "does not exist"),
    ):
        error = logs(*arguments).exception
        assert says in str(error)
    (tmp_path / "prose.txt").write_text("Dear all,\nnothing here.\n")
    assert logs(tmp_path / "prose.txt").exit_code == 125


def test_the_steps_of_a_torn_file_are_still_told(runs: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "torn"
    shutil.copytree(runs / "backend", copy)
    path = Run.open(copy).tool_dir / "steps.jsonl"
    path.write_bytes(path.read_bytes() + b'{"step": 99, "time')
    found = document(copy)
    assert found["open"][-1]["component"] == "backend"
    assert any("steps.jsonl line" in note and "cut off" in note for note in found["notes"])


TERMINAL = """
import os, torch, graphprobe
if "LOGS" in os.environ:
    graphprobe.enable("runs", logs=os.environ["LOGS"])
@torch.compile(backend="eager")
def f(x):
    print("in f")
    return x + 1
f(torch.ones(2)); f(torch.ones(3)); f(torch.ones(4, 4))
"""


def test_the_terminal_and_the_program_are_as_without(run_python: Python, tmp_path: Path) -> None:
    def said(done: Finished) -> tuple[int, str, list[str]]:
        lines = [re.sub(r"^[VIWE]\d{4} [\d:.]+ \d+ ", "", line) for line in done.err.splitlines()]
        return done.code, done.out, lines

    (tmp_path / "program.py").write_text(TERMINAL)
    env = {"TORCH_LOGS": "graph_breaks,recompiles"}
    plain = run_python("program.py", cwd=tmp_path, env=env)
    watched = run_python("program.py", cwd=tmp_path, env={**env, "LOGS": "verbose,+bytecode"})
    assert "__recompiles" in plain.err and said(watched) == said(plain)
    files = {path.name for path in (Run.open(tmp_path / "runs").tool_dir / "logs").iterdir()}
    assert {"dynamo.log", "graph_breaks.log", "recompiles.log", "guards.log", "bytecode.log"} <= files
    assert "output_code.log" not in files
