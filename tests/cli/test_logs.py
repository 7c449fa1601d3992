"""`graphprobe logs`: where a process was when it was killed, and what its logs hold; the pages on logs and troubles."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import graphprobe
from cli.calling import Python
from conftest import ROOT, Finished
from graphprobe.cli.main import main
from graphprobe.store import Run

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
def runs(run_warm: Python, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run for each way to end."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.py").write_text(PLANTED)
    done = run_warm("planted.py", cwd=folder, env={"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")})
    assert done.code == 0, done.err
    return folder / "runs"


def logs(*arguments: object, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["logs", *map(str, arguments)], input=text)


def document(*arguments: object) -> dict[str, Any]:
    result = logs(*arguments, "--json")
    found: dict[str, Any] = json.loads(result.output)
    assert result.exit_code == int(bool(found["open"] or found["failed"]))
    return found


@pytest.mark.slow
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
    assert f"last step begun and not ended: {last['text']}" in told
    assert way == "without_dynamo" or "last lines of" in told


@pytest.mark.slow
@pytest.mark.parametrize("way", ["healthy", "caught"])
def test_silent_control(runs: Path, way: str) -> None:
    found = document(runs / way)
    assert (found["state"], found["open"], found["failed"]) == ("finished", [], None)
    assert found["steps"] > 1
    told = logs(runs / way)
    assert "no step is open" in told.output and told.exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "failed", "error"),
    [
        ("raising", {"component": "backend", "detail": "bad"}, "RuntimeError: no such luck"),
        (
            "late_raising",
            {"name": "compile the backward graph", "direction": "backward"},
            "KeyError: 'no kernel for cos'",
        ),
    ],
)
def test_an_exception_names_the_step_that_it_left(runs: Path, way: str, failed: dict[str, str], error: str) -> None:
    found = document(runs / way)
    assert (found["state"], found["open"]) == ("failed", [])
    assert failed.items() <= found["failed"].items() and error in found["failed"]["error"]


@pytest.mark.slow
def test_a_run_that_goes_on_is_no_fault_yet(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "state", "running")
    result = logs(runs / "backend")
    assert result.exit_code == 0 and re.search(r"begun [\d.]+ s ago", result.output)


@pytest.mark.slow
def test_lines_of_one_component(runs: Path) -> None:
    records = document(runs / "healthy", "--component", "inductor")["lines"]
    assert records and all(record["logger"].startswith("torch._inductor") for record in records)
    assert any("torchinductor compiling FORWARDS graph " in record["text"] for record in records)
    assert len(logs(runs / "healthy", "--component", "dynamo", "--tail", 2).output.splitlines()) >= 2
    assert logs(runs / "healthy", "--component", "dynamo", "--level", "error").output == ""
    # From debug.log where the run has no file for it.
    assert not (Run.open(runs / "healthy").tool_dir / "logs/fx.log").exists()
    assert logs(runs / "healthy", "--component", "fx").exit_code == 0
    files = {path.name for path in (Run.open(runs / "healthy").tool_dir / "logs").iterdir()}
    assert {"dynamo.log", "inductor.log"} <= files <= {"dynamo.log", "inductor.log", "aot.log", "fx.log"}


def test_a_text_without_logs_is_undecided(tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_text("Dear all,\nnothing here.\n")
    assert logs(tmp_path / "prose.txt").exit_code == 125


@pytest.mark.slow
def test_the_steps_of_a_torn_file_are_still_told(runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "torn"
    shutil.copytree(runs / "backend", copy)
    path = Run.open(copy).tool_dir / "steps.jsonl"
    path.write_bytes(path.read_bytes() + b'{"step": 99, "time')
    found = document(copy)
    assert found["open"][-1]["component"] == "backend"
    assert any("steps.jsonl line" in note and "cut off" in note for note in found["notes"])


TERMINAL = """
import os, torch, graphprobe
os.environ["TORCH_LOGS"] = "graph_breaks,recompiles"
torch._logging._internal._init_logs()  # as where torch is loaded with it
if "LOGS" in os.environ:
    graphprobe.enable("runs", logs=os.environ["LOGS"])
@torch.compile(backend="eager")
def f(x):
    print("in f")
    return x + 1
f(torch.ones(2)); f(torch.ones(3)); f(torch.ones(4, 4))
"""


def test_the_terminal_and_the_program_are_as_without(run_warm: Python, tmp_path: Path) -> None:
    def said(done: Finished) -> tuple[int, str, list[str]]:
        lines = [re.sub(r"^[VIWE]\d{4} [\d:.]+ \d+ ", "", line) for line in done.err.splitlines()]
        return done.code, done.out, lines

    (tmp_path / "program.py").write_text(TERMINAL)
    plain = run_warm("program.py", cwd=tmp_path)
    watched = run_warm("program.py", cwd=tmp_path, env={"LOGS": "verbose,+bytecode"})
    assert "__recompiles" in plain.err and said(watched) == said(plain)
    files = {path.name for path in (Run.open(tmp_path / "runs").tool_dir / "logs").iterdir()}
    assert {"dynamo.log", "graph_breaks.log", "recompiles.log", "guards.log", "bytecode.log"} <= files
    assert "output_code.log" not in files


LOGS = (ROOT / "docs" / "logs.md").read_text(encoding="utf-8")
TROUBLES = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SEED_ROWS = """Info logging, Debug logging, Minifier for any backend, Minifier for TorchInductor,
Dynamo accuracy minifier, Inductor accuracy minifier, `torch._dynamo.explain`, Record/Replay,
TorchDynamo function name filtering, TorchInductor Debug logging, TorchInductor Tracing"""
"""The tools of PyTorch's guide, in its order."""


def test_logs_page(run_warm: Python, tmp_path: Path) -> None:
    for program in re.findall(r"```python\n(.*?)```", LOGS, re.DOTALL):
        (tmp_path / program.split()[1]).write_text(program)
    for block in re.findall(r"```console\n(.*?)```", LOGS, re.DOTALL):
        for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = piece.partition("\n")
            done = run_warm("-m", *shlex.split(command), cwd=tmp_path)
            if shown:
                pattern = re.escape(shown.strip()).replace("…", r"[^\n]*")
                said = done.out + done.err
                assert re.fullmatch(pattern, said.strip()), said


def table(text: str) -> list[list[str]]:
    rows = [line.strip("| \n").split(" | ") for line in text.split("## ")[0].splitlines() if line.startswith("| ")]
    return rows[1:]


def test_every_row_of_the_guide_is_there_with_a_page() -> None:
    rows = table(TROUBLES)
    assert [row[0] for row in rows] == SEED_ROWS.replace("\n", " ").split(", ")
    for row in rows:
        assert len(row) == 4
        assert re.findall(r"\]\(([\w./]+\.md)", row[3])


def test_every_name_of_the_table_exists() -> None:
    names = set(re.findall(r"`graphprobe\.(\w+)", TROUBLES))
    assert {"enable", "diagnose", "explain", "profile", "CompileProfiler"} <= names
    for name in names:
        assert hasattr(graphprobe, name)


@pytest.mark.slow
def test_random_numbers(run_warm: Python, tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", TROUBLES, re.DOTALL)
    shown = re.findall(r"```text\n(.*?)```", TROUBLES, re.DOTALL)
    for program, text in zip(programs, shown, strict=True):
        done = run_warm("-c", program, cwd=tmp_path)
        assert (done.code, done.out) == (0, text), done.err
