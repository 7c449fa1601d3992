"""What commands send to a terminal, through a pipe and under NO_COLOR, and that nothing they read can steer it."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import graphprobe
from cli.calling import Python, call
from compare import pairs
from conftest import ROOT
from graphprobe.analysis.timing import CacheEvent, Compile, Profile, Span, write_profile
from graphprobe.records import Manifest, Where
from graphprobe.store import RunWriter, WrittenFile, layout
from store.dump_helpers import OP, PLACE, new_writer, value
from warm.pool import Warm

COLOUR = re.compile(r"\x1b\[[0-9;]*[349][0-7]m|\x1b\[[0-9;]*;[349][0-7]m")
CLEAR = "\x1b[2K"
"""Clears a line."""

PROGRAM = """\
import torch


def wrong(x):
    y = torch.relu(x)
    torch._dynamo.graph_break()
    return y + 1


def make():
    return wrong, (torch.linspace(-1, 1, 8),)


if __name__ == "__main__":
    torch.compile(wrong, backend="eager")(torch.ones(3))
    print("the end of the program")
"""


def lines_of(text: str) -> list[str]:
    """What a terminal shows at the end: what was drawn and cleared again is not there."""
    rows, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if token == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif token == "\r":
            column = 0
        elif token == CLEAR:
            rows[row] = ""
        elif token.startswith("\x1b"):
            row -= int(token[2:-1]) if token.endswith("A") else 0
        else:
            rows[row] = rows[row][:column].ljust(column) + token + rows[row][column + len(token) :]
            column += len(token)
    while rows and not rows[-1].strip():
        rows.pop()
    return [line.rstrip() for line in rows]


def on_terminal(
    *args: str,
    cwd: Path,
    env: dict[str, str] | None = None,
    timeout_s: float = 120,
    python: str = sys.executable,
    stderr: int | None = None,
) -> tuple[int, str]:
    """Exit code of a command, and what it wrote to the terminal that both of its streams are, unless `stderr` is."""
    ours, theirs = pty.openpty()
    variables = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS")}
    variables |= {"PYTHONPATH": str(ROOT / "src"), "TERM": "xterm-256color", "COLUMNS": "100", **(env or {})}
    command = [python, "-m", "graphprobe", *args]
    process = subprocess.Popen(command, cwd=cwd, env=variables, stdin=theirs, stdout=theirs, stderr=stderr or theirs)
    os.close(theirs)
    text, ends = b"", time.monotonic() + timeout_s
    try:
        while time.monotonic() < ends:
            if not select.select([ours], [], [], 0.2)[0]:
                if process.poll() is not None:
                    break
                continue
            try:
                text += os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
        return process.wait(timeout=5), text.decode()
    finally:
        process.kill()
        os.close(ours)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, run_warm: Python) -> Path:
    """A program, a run of it, and two dumps that differ."""
    made = tmp_path_factory.mktemp("terminal")
    (made / "program.py").write_text(PROGRAM)
    x = torch.linspace(-1, 1, 64)
    for name, factor in (("new", 1.01), ("old", 1.0)):
        with graphprobe.dump(made / name, data="stats"):
            torch.tanh(torch.exp(torch.relu(x * factor))).sum()
    done = run_warm("-m", "graphprobe", "run", "--out", "runs", "program.py", cwd=made)
    assert done.code == 0, done.err
    (made / "run.txt").write_text(done.out + done.err)
    return made


COMPARE = ("compare", "new", "old")
EXPLAIN = ("explain", "runs")


def test_lines_of_forgets_what_was_drawn_over() -> None:
    drawn = f"a\r\n\x1b[?25l\x1b[2mone\x1b[0m\r{CLEAR}two\r\n\x1b[?25h\r\x1b[1A{CLEAR}\x1b[31mend\x1b[0m\r\n\r\n"
    assert lines_of(drawn) == ["a", "end"]
    assert COLOUR.search("\x1b[1;31mend") and COLOUR.search("\x1b[36mend") and not COLOUR.search("\x1b[1m\x1b[2mend")


@pytest.mark.parametrize(
    ("command", "verdict"),
    [(COMPARE, "DIFFERENT: 1 cause found"), (EXPLAIN, "BREAKS: 1 graph break, 0 functions not compiled")],
    ids=["compare", "explain"],
)
def test_plain_through_a_pipe_and_with_no_color_and_coloured_on_a_terminal(
    folder: Path, run_python: Python, command: tuple[str, ...], verdict: str
) -> None:
    done = run_python("-m", "graphprobe", *command, cwd=folder, env={"TERM": "xterm-256color", "CI": ""})
    assert done.code == 1, done.err
    assert "\x1b" not in done.out + done.err and "\r" not in done.out + done.err
    assert done.err == "" and verdict in done.out.splitlines()[-5:]
    code, coloured = on_terminal(*command, cwd=folder)
    assert code == 1 and COLOUR.search(coloured), coloured
    code, plain = on_terminal(*command, cwd=folder, env={"NO_COLOR": "1"})
    assert code == 1 and not COLOUR.search(plain), plain
    assert lines_of(plain) == lines_of(coloured)
    if command == COMPARE:
        shown = lines_of(coloured)
        assert "graphprobe: rank 0, step 0: call 0 of 5" in coloured
        assert not any("call 0 of 5" in line for line in shown), "progress is taken away again"
        assert shown[0].startswith("DIFFERENT")
        assert re.match(r"  next:  +graphprobe parse new Tensor\.mul\.0\.forward", shown[-1]), shown


def test_what_compare_wrote_comes_before_the_verdict(folder: Path, tmp_path: Path) -> None:
    done = call("compare", folder / "new", folder / "old", "--out", tmp_path / "out")
    assert done.stdout.count("Wrote ") == 4
    assert done.stdout.rindex("Wrote ") < done.stdout.rindex("DIFFERENT: ")
    assert any(line.startswith("DIFFERENT: ") for line in done.stdout.splitlines()[-5:])


def test_run_says_last_what_was_collected_and_where(folder: Path) -> None:
    *_, counts, where, command = (folder / "run.txt").read_text().splitlines()
    assert re.fullmatch(r"graphprobe: 2 compiled graphs, \d+ files, .*", counts)
    assert where.startswith("graphprobe: in runs/run_")
    assert command.startswith("graphprobe: next: graphprobe ls ")


FAULTY = "relu_accuracy_error_TESTING_ONLY"


@pytest.mark.heavy
def test_diagnose_on_a_terminal(folder: Path, warm: Warm) -> None:
    words = ("diagnose", "--backend", FAULTY, "program.py:make")
    code, text = on_terminal(*words, cwd=folder, timeout_s=300, python=warm.executable)
    shown = lines_of(text)
    assert code == 1, text
    assert COLOUR.search(text)
    for step in ("running it uncompiled", "running Dynamo's graphs", "looking into the generated code"):
        assert step in text and not any(step in line for line in shown), step
    verdict, fault, where, proof, follow = shown[-5:]
    assert verdict == "FAULT: program.py:make"
    assert "relu gives wrong numbers" in fault
    assert where == "  where: program.py:5"
    assert (folder / proof.rpartition(" ")[2]).is_file()
    assert (folder / follow.removeprefix("  next:  graphprobe reduce ")).is_dir()


@pytest.mark.slow
def test_diagnose_through_a_pipe(folder: Path, run_warm: Python) -> None:
    """The control: a healthy program, and one line when it begins."""
    done = run_warm("-m", "graphprobe", "diagnose", "--backend", "eager", "program.py:make", cwd=folder)
    assert done.code == 0, done.err
    assert done.err == "graphprobe: diagnosing program.py:make …\n"
    assert "\x1b" not in done.out
    assert done.out.splitlines()[-2:] == ["HEALTHY: program.py:make", "  next: graphprobe explain program.py:make"]


@pytest.mark.heavy
def test_reduce_on_a_terminal(warm: Warm, tmp_path: Path) -> None:
    script = PROGRAM.replace('backend="eager"', f'backend="{FAULTY}"')
    (tmp_path / "script.py").write_text(script)
    words = ("reduce", "-o", "small", "script.py")
    code, text = on_terminal(*words, cwd=tmp_path, timeout_s=300, python=warm.executable)
    shown = lines_of(text)
    assert code == 1, text
    assert re.search(r"graphprobe: \d+ of \d+ calls, \d+ asked", text)
    assert not any(" asked, " in line for line in shown), shown
    assert any(line.startswith("REDUCED: ") for line in shown[-5:]), shown
    assert "the end of the program" not in shown, "a script is left once its graph is reduced"


EVIL = "\x1b]0;T\x07\x1b[2J\x9b31m\x7f\r\x08\u202e\u2066"
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
FORGED = "\nHEALTHY: forged"
SENT_BY_US = re.compile(r"\x1b\[[0-9;]*m|\r(?=\n)")

FREE = set("argv evidence frames message missing module notes reason source stack title why".split())
"""Keys of dumps and comparisons whose values are anybody's text."""


def poisoned(document: Any, key: str = "") -> Any:
    if isinstance(document, dict):
        return {name: poisoned(one, name) for name, one in document.items()}
    if isinstance(document, list):
        return [poisoned(one, key) for one in document]
    return document + EVIL if isinstance(document, str) and key in FREE else document


def poison(folder: Path) -> None:
    for path in folder.rglob("*.json*"):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        path.write_text("".join(json.dumps(poisoned(json.loads(line))) + "\n" for line in lines))


def make_run(root: Path) -> None:
    facts = {"graphprobe": "0.1", "python": "3.11", "platform": "linux", "cwd": "/", "parent_pid": 1}
    manifest = Manifest(**facts, argv=["x.py", EVIL], pid=os.getpid(), started_ns=time.time_ns())
    writer = RunWriter.create(root, manifest=manifest, rank=None, max_bytes=None)
    graph = 'class G(torch.nn.Module):\n    def forward(self, a: "f32[2]"):\n        # File: x.py:3 in f, code: EVIL\n'
    where = Where(model=0, direction="forward")
    for number, name in enumerate(("add", "mul")):
        text = graph.replace("EVIL", EVIL) + f'        {name}: "f32[2]" = f(a)\n        return {name}\n'
        at = msgspec.structs.replace(where, pass_name=f"fuse{EVIL}" if number else None)
        path = (
            layout.graph_file(Where(model=0, direction="forward"), number=0)
            if not number
            else layout.pass_file(Where(model=0, direction="forward"), "f", number=1)
        )
        file = writer.write_text(path, text)
        kind: Any = "pass" if number else "graph"
        writer.event(where=at, kind=kind, name=f"fuse{EVIL}", file=file, changed=True, message=EVIL)
    compiled = {"function": f"f{EVIL}", "file": EVIL, "line": 3, "reason": EVIL, "mode": EVIL, "backend": EVIL}
    writer.write_text(layout.compile_file(0), json.dumps(compiled))
    writer.event(where=where, kind="compile", name="compile", file=WrittenFile(layout.compile_file(0), None, None))
    launch = {"name": f"kernel{EVIL}", "ph": "X", "ts": 0.0, "dur": 1.0, "args": {"fx_nodes": [{"target": EVIL}]}}
    file = writer.write_text("model__0/forward/captured_ops.json", json.dumps({"traceEvents": [launch]}))
    writer.event(where=where, kind="ops", name="ops", file=file)
    writer.update(missing=[EVIL], notes=[EVIL])
    writer.close("failed", EVIL)


def make_all(folder: Path) -> None:
    """Of each kind of thing that commands read one, with the payload wherever a text is free."""
    make_run(folder / "run")
    pairs.dumped(pairs.Run(pairs.trained(1, depth=1)), folder / "calls", data="stats")
    pairs.dumped(pairs.Run(pairs.trained(1, depth=1, lr=0.5)), folder / "other", data="stats")
    compared = call("compare", folder / "calls", folder / "other", "--out", folder / "comparison")
    assert compared.exit_code in (0, 1, 125), compared.output
    for name in ("calls", "other", "comparison"):
        poison(folder / name)
    writer = new_writer(folder / "graphs")
    op = msgspec.structs.replace(OP, op_name=f"add{EVIL}", source=EVIL, module=EVIL, fx_nodes=(EVIL,))
    writer.submit(op, PLACE, [value("output.0", np.ones(2, np.float32))], notes=(EVIL,), time_ns=1)
    writer.note(EVIL)
    writer.close()
    span = Span(name=f"phase{EVIL}", begin_ns=0, end_ns=9, cpu_ns=9, compile_id="0/0", detail=EVIL)
    compiled = Compile(compile_id="0/0", function=EVIL, file=EVIL, line=1, recompile_reason=EVIL, failure=EVIL)
    caches = [CacheEvent(cache=EVIL, state="miss", reason=EVIL)]
    profile = Profile(
        graphprobe="0", torch="2", python="3", began_unix_ns=0, wall_ns=10, cpu_ns=10, threads=[EVIL], program=EVIL,
        spans=[span], compiles=[compiled], caches=caches, notes=[EVIL], error=EVIL,
    )  # fmt: skip
    write_profile(profile, folder / "profile.json")


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts that would steer a terminal."""
    folder = tmp_path_factory.mktemp("evil")
    make_all(folder)
    return folder


@pytest.fixture(scope="module")
def forging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts that would begin a line of their own."""
    folder = tmp_path_factory.mktemp("forging")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "EVIL", FORGED)
        make_all(folder)
    return folder


SHOWING = (
    "ls {d}/run",
    "ls {d}/run --all",
    "show {d}/run model__0/forward/ops",
    "diff {d}/run --pass {pass}",
    "parse {d}/calls nn.functional.linear.0",
    "compare {d}/calls {d}/other",
)
"""What is typed, and shows such a text."""

OTHERS = (
    "ls {d}/run --json",
    "show {d}/run forward/graph --json",
    "diff {d}/run --pass nosuch",
    "logs {d}/run",
    "recompiles {d}/run",
    "explain {d}/run",
    "explain --json {d}/run",
    "replay {d}/run",
    "report {d}/run -o {o}/run.html",
    "export {d}/run --to chrome-trace -o {o}/trace.json",
    "parse {d}/calls nosuch",
    "compare {d}/graphs {d}/graphs",
    "compare {d}/calls {d}/graphs",
    "compare {d}/calls {d}/other --json -",
    "merge {d}/calls --out {o}/merged",
    "convert {d}/graphs --out {o}/npy",
    "report {d}/comparison -o {o}/comparison.html",
    "profile {d}/profile.json",
    "profile {d}/profile.json {d}/profile.json",
    "doctor --names",
    "issue {d}/run",
    "reduce {d}/run",
    "convert {d}/calls --to ptdbg --out {o}/dump.pkl",
)


@pytest.mark.parametrize("command", SHOWING + OTHERS)
def test_no_command_sends_what_it_reads_and_no_name_begins_a_line(
    command: str, evil: Path, forging: Path, tmp_path: Path
) -> None:
    words = [word.format(d=evil, o=tmp_path, **{"pass": f"fuse{EVIL}"}) for word in command.split()]
    said = call(*words).output.replace("".join(words), "")
    assert not STEERS.search(said), repr(said)
    if command in SHOWING:
        assert r"\x1b]0;T\x07" in said, said
    (tmp_path / "forged").mkdir()
    known = {"d": forging, "o": tmp_path / "forged", "pass": f"fuse{FORGED}".replace("\n", "\\n")}
    said = call(*(word.format(**known) for word in command.split())).output
    assert not re.search("^HEALTHY: forged", said, re.M), said


def test_on_a_terminal_too_and_colours_are_our_own(evil: Path) -> None:
    for words in (["ls", "run"], ["show", "run", "model__0/forward/graph"], ["compare", "calls", "other"]):
        code, said = on_terminal(*words, cwd=evil, env={"COLUMNS": "80"}, stderr=subprocess.DEVNULL)
        said = SENT_BY_US.sub("", said)
        assert code in (0, 1, 125)
        assert r"\x1b]0;T\x07" in said and not STEERS.search(said), repr(said[:2000])


def test_a_file_that_is_piped_is_the_file(evil: Path) -> None:
    command = [sys.executable, "-m", "graphprobe", "show", str(evil / "run"), "model__0/forward/graph"]
    piped = subprocess.run(command, capture_output=True, check=True).stdout
    (path,) = evil.glob("run/*/graphprobe/model__0/forward/000_*")
    assert piped == path.read_bytes() and EVIL.encode() in piped
