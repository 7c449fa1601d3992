"""What would steer a terminal is shown and never sent, whichever file it comes from and whichever command prints it."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from compare import pairs
from dump_helpers import OP, PLACE, new_writer, value
from graphprobe.analysis.timing_records import CacheEvent, Compile, Profile, Span, write_profile
from graphprobe.cli.main import main
from graphprobe.records import Manifest, Where
from graphprobe.report.visible import visible
from graphprobe.store import layout
from graphprobe.store.writer import RunWriter, WrittenFile

EVIL = "\x1b]0;T\x07\x1b[2J\x9b31m\x7f\r\x08\u202e\u2066"
SHOWN = r"\x1b]0;T\x07\x1b[2J\u009b31m\u007f\x0d\x08\u202e\u2066"
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
FORGED = "\nHEALTHY: forged"
SENT_BY_US = re.compile(r"\x1b\[[0-9;]*m|\r(?=\n)")

FREE = {
    "argv",
    "evidence",
    "frames",
    "message",
    "missing",
    "module",
    "notes",
    "reason",
    "source",
    "stack",
    "title",
    "why",
}
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
            layout.graph_file(0, "forward", number=0) if not number else layout.pass_file(0, "forward", "f", number=1)
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
    compared = CliRunner().invoke(
        main,
        [f"{word}" for word in f"compare {folder}/calls {folder}/other --out".split()] + [str(folder / "comparison")],
    )
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
def evil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Texts that would steer a terminal."""
    folder = tmp_path_factory.mktemp("evil")
    make_all(folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def forging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Texts that would begin a line of their own."""
    folder = tmp_path_factory.mktemp("forging")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "EVIL", FORGED)
        make_all(folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


COMMANDS: list[tuple[str, bool | None]] = [
    ("ls {d}/run", True),
    ("ls {d}/run --all", True),
    ("ls {d}/run --json", None),
    ("show {d}/run forward/graph --json", None),
    ("show {d}/run model__0/forward/ops", True),
    ("diff {d}/run --pass {pass}", True),
    ("diff {d}/run --pass nosuch", None),
    ("logs {d}/run", None),
    ("recompiles {d}/run", None),
    ("explain {d}/run", None),
    ("explain --json {d}/run", None),
    ("replay {d}/run", None),
    ("report {d}/run -o {o}/run.html", None),
    ("export {d}/run --to chrome-trace -o {o}/trace.json", None),
    ("parse {d}/calls nn.functional.linear.0", True),
    ("parse {d}/calls nosuch", None),
    ("compare {d}/calls {d}/other", True),
    ("compare {d}/graphs {d}/graphs", None),
    ("compare {d}/calls {d}/graphs", None),
    ("compare {d}/calls {d}/other --json -", None),
    ("merge {d}/calls --out {o}/merged", None),
    ("convert {d}/graphs --out {o}/npy", None),
    ("report {d}/comparison -o {o}/comparison.html", None),
    ("profile {d}/profile.json", None),
    ("profile {d}/profile.json {d}/profile.json", None),
    ("doctor --names", None),
    ("issue {d}/run", None),
    ("reduce {d}/run", None),
    ("convert {d}/calls --to msprobe --out {o}/msprobe", None),
]
"""What is typed, and whether it shows such a text."""


@pytest.mark.parametrize(("command", "shows"), COMMANDS)
def test_no_command_sends_what_it_reads(evil: Path, tmp_path: Path, command: str, shows: bool | None) -> None:
    words = [word.format(d=evil, o=tmp_path, **{"pass": f"fuse{EVIL}"}) for word in command.split()]
    done = CliRunner().invoke(main, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    said = done.output.replace("".join(words), "")
    assert not STEERS.search(said), repr(said)
    if shows:
        assert r"\x1b]0;T\x07" in said, said


@pytest.mark.parametrize("command", [command for command, _ in COMMANDS])
def test_no_name_begins_a_line(forging: Path, tmp_path: Path, command: str) -> None:
    known = {"d": forging, "o": tmp_path, "pass": f"fuse{FORGED}".replace("\n", "\\n")}
    done = CliRunner().invoke(main, [word.format(**known) for word in command.split()])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert not re.search("^HEALTHY: forged", done.output, re.M), done.output


def test_on_a_terminal_too_and_colours_are_our_own(evil: Path) -> None:
    for words in (["ls", "run"], ["show", "run", "model__0/forward/graph"], ["compare", "calls", "other"]):
        said = SENT_BY_US.sub("", on_a_terminal(words, evil))
        assert r"\x1b]0;T\x07" in said and not STEERS.search(said), repr(said[:2000])


def test_a_file_that_is_piped_is_the_file(evil: Path) -> None:
    command = [sys.executable, "-m", "graphprobe", "show", str(evil / "run"), "model__0/forward/graph"]
    piped = subprocess.run(command, capture_output=True, check=True).stdout
    (path,) = evil.glob("run/*/graphprobe/model__0/forward/000_*")
    assert piped == path.read_bytes() and EVIL.encode() in piped


def on_a_terminal(words: list[str], folder: Path) -> str:
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    started = subprocess.Popen(
        [sys.executable, "-m", "graphprobe", *words], cwd=folder, stdout=theirs, stderr=subprocess.DEVNULL, env=environ
    )
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 65536):
            said += part
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
    assert started.wait(60) in (0, 1, 125)
    return said.decode()


def test_each_character_is_spelled_so_that_json_stays_json() -> None:
    assert visible(EVIL) == SHOWN
    assert visible("tab\there\nline\r\nend é 漢 — ok") == "tab\there\nline\r\nend é 漢 — ok"
    assert visible("\ud800") == r"\ud800"
    document = {"text": EVIL}
    assert json.loads(visible(msgspec.json.encode(document).decode())) == document
    assert json.loads(visible(json.dumps(document, ensure_ascii=False))) == document
