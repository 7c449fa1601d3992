"""Records made in this process, and those of a whole program that are then replayed in another one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import Finished
from graphprobe.internals.dynamo.frame_failures import FailedFrame, FrameFailures
from graphprobe.probe.frames.recorder import record_files

PROGRAMS = Path(__file__).parent / "programs"
FILLER = '''

def filler_{i}(x, scale={i}):
    """Nothing calls this."""
    total = x.new_zeros(())
    for step in range(scale):
        total = total + x.sum() * step
    return total
'''
REPLAY_ALL = """
import json, sys, torch
from pathlib import Path
from graphprobe.probe.frames.replaying import replay_frame
for folder in sorted(Path(sys.argv[1]).iterdir()):
    torch.compiler.reset()
    replay_frame(folder, ["--json", str(Path(sys.argv[2]) / (folder.name + ".json"))])
"""


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A program that ran under `graphprobe run --record-frames`, was deleted, and whose records were replayed."""

    program: Finished
    run: Path
    lines: int
    records: dict[str, Path]
    verdicts: dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory, run_warm: Callable[..., Finished]) -> Recorded:
    """By the name of the function; a second one of that name has its number, too."""
    here, out, answers = (tmp_path_factory.mktemp(name) for name in ("program", "out", "answers"))
    text = (PROGRAMS / "failing.py").read_text("utf-8")
    head, mark, tail = text.partition("\n\ndef dict_key(")
    text = head + "".join(FILLER.format(i=i) for i in range(40)) + mark + tail
    (here / "failing.py").write_text(text, "utf-8")
    (here / "parts.py").write_text((PROGRAMS / "parts.py").read_text("utf-8"), "utf-8")
    command = ["-m", "graphprobe", "run", "--record-frames", "--out", str(out), "failing.py"]
    program = run_warm(*command, cwd=here)
    for path in here.iterdir():
        path.unlink() if path.is_file() else None
    (run,) = out.iterdir()
    frames = run / "graphprobe" / "frames"
    assert frames.is_dir(), program.err
    replayed = run_warm("-c", REPLAY_ALL, str(frames), str(answers), cwd=answers)
    assert replayed.code == 0, replayed.err
    records = {folder.name: folder for folder in sorted(frames.iterdir())}
    verdicts = {name: json.loads((answers / f"{name}.json").read_text()) for name in records}
    return Recorded(program, run, text.count("\n"), records, verdicts)


@pytest.fixture
def frames_of() -> Callable[..., list[FailedFrame]]:
    """Compiles and calls a function, whole by default; returns the frames that failed."""

    def run(function: Any, *args: Any, fullgraph: bool = True, **kwargs: Any) -> list[FailedFrame]:
        found: list[FailedFrame] = []

        def fail(error: Exception) -> None:
            raise error

        failures = FrameFailures(found.append, fail)
        failures.install()
        try:
            with contextlib.suppress(Exception):
                torch.compile(function, backend="eager", fullgraph=fullgraph)(*args, **kwargs)
        finally:
            assert failures.remove() == []
        return found

    return run


@pytest.fixture
def record_of(frames_of: Callable[..., list[FailedFrame]], tmp_path: Path) -> Callable[..., Path]:
    """The same, and writes the record of the one that failed into a folder."""

    def run(function: Any, *args: Any, most_bytes: int | None = None, **kwargs: Any) -> Path:
        (frame,) = frames_of(function, *args, **kwargs)
        folder = tmp_path / "record"
        for name, data in record_files(frame, most_bytes=most_bytes).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder

    return run
