"""When records are written, and that the program notices nothing of it."""

from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch._dynamo import convert_frame

import graphprobe
from graphprobe.cli.main import main
from graphprobe.internals.dynamo.frame_failures import FailedFrame
from graphprobe.probe.frames import on_failure, recorder
from graphprobe.probe.frames.replaying import replay_frame
from graphprobe.program_text.sources import NotRecordable
from graphprobe.store import Run


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    yield
    graphprobe.disable()


def branch(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x + 1
    return x - 1


def deep(x: torch.Tensor) -> torch.Tensor:
    return branch(x.relu())


def raising(x: torch.Tensor) -> torch.Tensor:
    raise ValueError(f"no {x.dim()}")


def generator(x: torch.Tensor) -> Any:
    yield x


def fine(x: torch.Tensor) -> torch.Tensor:
    return x.relu()


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def told(function: Any, fullgraph: bool = True) -> list[str]:
    """What a program sees of a failure: type, text, cause and traceback, from its own frame on."""
    torch.compiler.reset()
    try:
        torch.compile(function, backend="eager", fullgraph=fullgraph)(torch.ones(3))
    except Exception as error:
        return [type(error).__name__, str(error), *traceback.format_exception(error)]
    return []


def replayed(folder: Path, *options: str) -> int:
    torch.compiler.reset()
    return replay_frame(folder, list(options))


def records(run: Path) -> list[str]:
    return sorted(folder.name for folder in (run / "graphprobe").glob("frames/*"))


def manifest(run: Path) -> Any:
    return Run.open(run).manifest


def test_the_program_gets_the_error_that_it_gets_anyway(tmp_path: Path) -> None:
    functions = (branch, deep, raising, generator)
    state = torch.get_rng_state()
    before = [told(f) for f in functions]
    original = convert_frame._compile, convert_frame.unimplemented
    with graphprobe.trace(tmp_path, record_frames=True) as run:
        assert convert_frame._compile is not original[0]
        during = [told(f) for f in functions]
    assert during == before and all(before)
    assert (convert_frame._compile, convert_frame.unimplemented) == original
    assert torch.equal(torch.get_rng_state(), state)
    assert records(run) == ["000_branch", "001_deep", "002_raising", "003_generator"]


def test_what_is_traced_leaves_no_record(tmp_path: Path) -> None:
    with graphprobe.trace(tmp_path, record_frames=True) as run:
        assert told(fine) == [] and told(breaks, fullgraph=False) == []
    assert not (run / "graphprobe" / "frames").exists()
    assert not [line for line in (*manifest(run).missing, *manifest(run).notes) if "frame" in line]


@pytest.mark.parametrize("asks", ["nobody", "torch's own switch", "the environment"])
def test_who_asks_for_records(asks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if asks == "the environment":
        monkeypatch.setenv("GRAPHPROBE_RECORD_FRAMES", "1")
    with torch._dynamo.config.patch(replay_record_enabled=asks == "torch's own switch"):
        with graphprobe.trace(tmp_path) as run:
            assert told(branch)
    assert records(run) == ([] if asks == "nobody" else ["000_branch"])


def test_the_same_failure_is_recorded_once_and_not_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_failure, "MOST_RECORDS", 2)
    with graphprobe.trace(tmp_path, record_frames=True) as run:
        for function in (branch, branch, deep, raising, generator):
            assert told(function)
    assert records(run) == ["000_branch", "001_deep"]
    assert [line for line in manifest(run).missing if "more than 2 frames" in line]


def test_a_recorder_that_fails_is_told_and_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def broken(frame: FailedFrame, **_: Any) -> dict[str, bytes]:
        calls.append(frame.code.co_name)
        raise KeyError("planted")

    monkeypatch.setattr(recorder, "record_files", broken)
    before = told(branch)
    with graphprobe.trace(tmp_path, record_frames=True) as run:
        assert told(branch) == before and told(deep)
    assert calls == ["branch"] and records(run) == []
    assert [line for line in manifest(run).missing if "failed at record of a frame: KeyError: 'planted'" in line]


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="this torch compiles a frame of its own around the function")
def test_a_frame_without_a_text_is_named(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec("def nowhere(x):\n    return 1 if x.sum() > 0 else 2", names)
    with graphprobe.trace(tmp_path, record_frames=True) as run:
        assert told(names["nowhere"]) and told(branch)
    assert records(run) == ["000_branch"]
    (line,) = [line for line in manifest(run).missing if "not recorded" in line]
    assert "the frame nowhere (<string>:1)" in line and "there is no text of <string>" in line


def test_a_budget_that_is_used_up_leaves_shapes(
    record_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = record_of(branch, torch.arange(1000.0), most_bytes=100)
    assert (folder / "values.safetensors").stat().st_size < 200
    assert "without their values" in json.loads((folder / "record.json").read_text("utf-8"))["notes"][0]
    assert replayed(folder) == 1
    assert "REPRODUCED" in capsys.readouterr().out


def test_a_full_run_writes_no_half_record(tmp_path: Path) -> None:
    with graphprobe.trace(tmp_path, record_frames=True, max_bytes="20KB") as run:
        assert told(branch)
    assert not list(run.glob("graphprobe/frames/*/record.json"))
    assert manifest(run).missing
    done = CliRunner().invoke(main, ["replay", str(run)])
    assert done.exit_code == 2 and "no record of a frame" in done.output


def test_a_backend_and_a_repaired_text(record_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = record_of(deep, torch.ones(3))
    assert replayed(folder, "--backend", "eager") == 1
    assert replayed(folder, "--backend", "no_such") == 125
    assert "there is no backend 'no_such'" in capsys.readouterr().out
    source = folder / "program.py"
    text = source.read_text("utf-8")
    source.write_text(text.replace("    if x.sum() > 0:\n", "    if x.dim() > 0:\n"), "utf-8")
    assert replayed(folder) == replayed(folder, "--backend", "eager") == 0
    source.write_text(text.replace("    if x.sum() > 0:\n", "    if int(x.prod().item()) > 0:\n"), "utf-8")
    assert replayed(folder) == 125
    assert "but not as it was recorded" in capsys.readouterr().out
    source.write_text("nothing = 1\n", "utf-8")
    assert replayed(folder) == 125
    assert "does not define" in capsys.readouterr().out


def test_a_pass_says_nothing_where_values_are_missing(
    record_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def locked(x: torch.Tensor, lock: Any) -> torch.Tensor:
        return branch(x) if type(lock).__name__ == "lock" else x.relu()

    folder = record_of(locked, torch.ones(3), threading.Lock())
    assert replayed(folder) == 125
    assert "not recorded: lock (_thread.lock)" in capsys.readouterr().out


def test_the_rest_of_a_function_is_refused(frames_of: Callable[..., list[FailedFrame]], tmp_path: Path) -> None:
    def two(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return raising(x)

    frames = frames_of(two, torch.ones(3), fullgraph=False)
    assert [frame.is_continuation for frame in frames][:1] == [True]
    with pytest.raises(NotRecordable, match="behind a graph break"):
        recorder.record_files(frames[0])


def test_the_document_holds_only_json(record_of: Callable[..., Path]) -> None:
    folder = record_of(branch, torch.tensor([float("nan"), float("inf")]))
    text = (folder / "record.json").read_text("utf-8")
    json.loads(text, parse_constant=lambda name: pytest.fail(name))
