import errno
import json
import os
import re
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import damaged
from graphprobe.errors import UsageError
from graphprobe.records import Direction, Event, Manifest, SettingValue, Where
from graphprobe.store import layout, writer
from graphprobe.store import manifest as live_manifest
from graphprobe.store.files import digest_from_bytes
from graphprobe.store.manifest import MAX_CAUSES, RESERVE_BYTES, AppendFile
from graphprobe.store.reader import Run
from graphprobe.store.writer import RunWriter
from store.dump_helpers import in_a_fork, new_run, run_manifest, written

WHERE = Where(model=0, direction="forward")


def saved(run: RunWriter) -> Manifest:
    return Run.open(run.run_dir).manifest


def hidden_files(folder: Path) -> set[str]:
    return {name for name in written(folder) if name.rsplit("/", 1)[-1].startswith(".")}


def test_a_run_from_start_to_end(tmp_path: Path) -> None:
    run = new_run(tmp_path / "deep" / "root", rank=3)
    assert run.run_dir.name.endswith("-rank_3")
    assert (run.tool_dir / layout.RESERVE).stat().st_size == RESERVE_BYTES
    assert json.loads((run.tool_dir / layout.MANIFEST).read_text())["schema"] == 1
    path = layout.graph_file(Where(model=0, direction="forward"), number=0)
    file = run.write_text(path, "gräph\ud800")
    assert file is not None
    data = (run.tool_dir / path).read_bytes()
    assert data == "gräph\\ud800".encode()
    assert (file.path, file.size_bytes, file.digest) == (path, len(data), digest_from_bytes(data))
    event = run.event(where=WHERE, kind="graph", name="aot_forward_graph", file=file, added=("a",), time_ns=5)
    assert event == Event(0, 5, WHERE, "graph", "aot_forward_graph", None, path, len(data), file.digest, added=("a",))
    run.update(torch="2.13", models=1, settings={"x": SettingValue(1, "default")})
    run.note("once")
    run.note("once")
    run.close("failed", exception="ValueError: no")
    run.close("finished")
    assert run.closed
    manifest = saved(run)
    assert manifest == run.manifest
    ended = (manifest.state, manifest.exception, manifest.torch, manifest.models)
    assert ended == ("failed", "ValueError: no", "2.13", 1)
    assert manifest.settings == {"x": SettingValue(1, "default")}
    assert (manifest.collected_files, manifest.collected_bytes) == (1, len(data))
    assert (manifest.notes, manifest.missing) == (["once"], []) and manifest.ended_ns is not None
    assert written(run.tool_dir) == {layout.MANIFEST, layout.EVENTS, path}


def test_nothing_is_written_once_closed(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.close("finished")
    before = written(tmp_path)
    assert run.write_text("late.txt", "x") is None
    assert run.event(where=WHERE, kind="note", name="late") is None
    assert run.append_text("debug.log", "x") is False
    run.note("late")
    run.missing("late")
    run.update(models=3)
    assert written(tmp_path) == before
    assert saved(run).models == 0


def test_two_runs_at_the_same_moment_never_share_a_folder(tmp_path: Path) -> None:
    manifest = run_manifest()
    runs = [RunWriter.create(tmp_path, manifest=manifest, rank=None, max_bytes=None) for _ in range(5)]
    assert len({run.run_dir for run in runs}) == 5
    runs[0].update(models=9)
    assert [saved(run).models for run in runs] == [9, 0, 0, 0, 0]
    assert manifest.models == 0


def test_torchs_own_run_folder_is_adopted_once(tmp_path: Path) -> None:
    torch_dir = tmp_path / "run_of_torch"
    (torch_dir / "torchdynamo").mkdir(parents=True)
    first, second, third = (
        RunWriter.create(tmp_path, manifest=run_manifest(), rank=None, max_bytes=None, adopt_run_dir=folder)
        for folder in (torch_dir, torch_dir, tmp_path / "not there")
    )
    assert first.run_dir == torch_dir
    assert len({first.run_dir, second.run_dir, third.run_dir}) == 3
    assert second.run_dir.parent == third.run_dir.parent == tmp_path


@pytest.mark.parametrize("below", ["file", "file/deeper", "file/deeper/still"])
def test_a_root_that_cannot_be_made_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        new_run(tmp_path / below)
    assert str(tmp_path / below) in str(caught.value)
    assert os.strerror(errno.EEXIST if below == "file" else errno.ENOTDIR) in str(caught.value)


def test_nothing_is_left_of_a_run_that_could_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", full_disk)
    with pytest.raises(UsageError, match="No space left"):
        new_run(tmp_path)
    assert list(tmp_path.iterdir()) == []


def full_disk(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_eight_threads_write_events_and_files(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    barrier = threading.Barrier(8)

    def work(model: int) -> None:
        barrier.wait(30)
        for number in range(50):
            file = run.write_text(
                layout.graph_file(Where(model=model, direction="forward"), number=number), f"{model} {number} " * 50
            )
            run.event(where=Where(model=model, direction="forward"), kind="graph", name="n" * 300, file=file)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
        list(threads.map(run.close, ["finished"] * 2))
    opened = Run.open(run.run_dir)
    assert [event.seq for event in opened.events()] == list(range(400))
    assert opened.problems == []
    assert damaged(opened) == []
    assert opened.manifest.collected_files == 400
    for model in opened.models():
        assert [event.path for event in model.events] == [
            layout.graph_file(Where(model=model.number, direction="forward"), number=number) for number in range(50)
        ]


def test_a_file_written_again_counts_once(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.write_text("model__0/compile.json", "x" * 100)
    run.write_text("model__0/compile.json", "x" * 10)
    run.append_text("debug.log", "one\n")
    run.append_text("debug.log", "two\n")
    assert (run.tool_dir / "debug.log").read_text() == "one\ntwo\n"
    assert (run.manifest.collected_files, run.manifest.collected_bytes) == (2, 18)


@pytest.mark.parametrize("relpath", ["../out.txt", "/tmp/out.txt", "a/../../out.txt", "", "a\0b"])
def test_a_path_outside_the_run_is_refused(tmp_path: Path, relpath: str) -> None:
    run = new_run(tmp_path / "root")
    before = written(tmp_path)
    assert run.write_text(relpath, "x") is None
    assert len(run.manifest.missing) == 1
    assert written(tmp_path) == before


@pytest.mark.parametrize("max_bytes", [0, 1, 6_000, 20_000, 300_000])
def test_the_budget_is_never_exceeded(tmp_path: Path, max_bytes: int) -> None:
    run = new_run(tmp_path, max_bytes=max_bytes)
    floor = (run.tool_dir / layout.MANIFEST).stat().st_size
    kept = 0
    for number in range(200):
        file = run.write_bytes(layout.graph_file(Where(model=0, direction="forward"), number=number), b"x" * 2000)
        kept += file is not None
        run.event(where=WHERE, kind="graph", name=f"graph {number}", file=file)
        run.append_text("debug.log", "y" * 100)
    total = sum((run.tool_dir / name).stat().st_size for name in written(run.tool_dir))
    assert total <= max(max_bytes, floor + 1000)
    run.close("finished")
    total = sum((run.tool_dir / name).stat().st_size for name in written(run.tool_dir))
    assert total <= max(max_bytes, floor + 1000)
    manifest = saved(run)
    assert manifest.collected_files == kept + (run.tool_dir / "debug.log").exists()
    assert (kept > 100) == (max_bytes == 300_000)
    assert (kept == 0) == (max_bytes <= 1)
    files = [entry for entry in manifest.missing if " file" in entry]
    assert files[0].startswith(f"{200 - kept} files (") and "max_bytes" in files[0]
    assert len(manifest.missing) <= 3
    assert [event.seq for event in Run.open(run.run_dir).events()] == list(range(len(Run.open(run.run_dir).events())))


def test_a_large_file_is_refused_and_small_ones_still_fit(tmp_path: Path) -> None:
    run = new_run(tmp_path, max_bytes=100_000)
    assert run.write_bytes("large", b"x" * 100_000) is None
    assert run.write_bytes("small", b"x" * 1000) is not None
    assert len(run.manifest.missing) == 1


def test_full_disk_is_told_once_and_no_temporary_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path)
    assert run.write_text("model__0/a.txt", "a") is not None
    assert run.event(where=WHERE, kind="note", name="before") is not None
    calls = []

    def write(descriptor: int, data: bytes) -> int:
        calls.append(descriptor)
        return full_disk()

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        for number in range(100):
            assert run.write_text(f"model__0/{number}.txt", "x") is None
            assert run.event(where=WHERE, kind="note", name="lost") is None
        assert len(calls) < 10, "a full disk is asked again for every file"
    files, events = run.manifest.missing
    assert files == "100 files (100 B) not written: No space left on device; first: model__0/0.txt"
    assert events.startswith("100 event lines (")
    assert hidden_files(run.tool_dir) == set()
    monkeypatch.setattr(live_manifest, "RETRY_SECONDS", 0.0)
    run._retry_at = 0.0  # the pause is over
    assert run.write_text("model__0/b.txt", "b") is not None
    assert hidden_files(run.tool_dir) == {layout.RESERVE}
    assert run.event(where=WHERE, kind="note", name="after") is not None
    run.close("finished")
    assert [(event.seq, event.name) for event in Run.open(run.run_dir).events()] == [(0, "before"), (1, "after")]
    assert len(saved(run).missing) == 2


@pytest.mark.parametrize("can_truncate", [True, False])
def test_a_partial_write_spoils_no_other_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_truncate: bool
) -> None:
    run = new_run(tmp_path)
    run.event(where=WHERE, kind="note", name="one")
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
        if not can_truncate:
            patched.setattr(os, "ftruncate", full_disk)
        assert run.event(where=WHERE, kind="note", name="torn") is None
    run._retry_at = 0.0
    run.event(where=WHERE, kind="note", name="two")
    run.event(where=WHERE, kind="note", name="three")
    opened = Run.open(run.run_dir)
    assert [(event.seq, event.name) for event in opened.events()] == [(0, "one"), (1, "two"), (2, "three")]
    assert len(opened.problems) == (0 if can_truncate else 1)
    assert "No space left on device" in run.manifest.missing[0]


def test_a_run_deleted_under_the_writer(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    shutil.rmtree(run.run_dir)
    for number in range(3):
        assert run.write_text(layout.graph_file(Where(model=0, direction="forward"), number=number), "x") is None
    assert len(run.manifest.missing) == 1
    assert run.manifest.missing[0].startswith("3 files (3 B) not written: No such file or directory")
    run.event(where=WHERE, kind="note", name="into nothing")
    run.close("finished")
    assert not run.run_dir.exists()


def test_bad_values_never_raise(tmp_path: Path) -> None:
    run = new_run(tmp_path, argv=["\udcff"])
    assert saved(run).argv == ["\\udcff"]
    assert run.write_text("a.txt", None) is None  # type: ignore[arg-type]
    assert run.write_bytes("a.txt", 3) is None  # type: ignore[arg-type]
    assert run.event(where=WHERE, kind="note", name="x", elapsed_ns=object()) is None  # type: ignore[arg-type]
    run.update(no_such_field=1, models=2)
    run.update(models="many")
    run.update(missing=[])
    assert run.manifest.models == 0
    assert len(run.manifest.missing) == 6
    event = run.event(where=WHERE, kind="failure", name="\udcff", message="\ud800")
    assert event is not None and event.seq == 0
    run.update(argv=["\ud800"], models=4)
    assert Run.open(run.run_dir).events()[0].message == "\\ud800"
    assert (saved(run).argv, saved(run).models) == (["\\ud800"], 4)


def test_causes_are_bounded_and_counted(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for number in range(MAX_CAUSES + 10):
        run.missing(f"cause {number}")
        run.missing("cause 0")
    missing = run.manifest.missing
    assert len(missing) == MAX_CAUSES + 1
    assert missing[0] == f"cause 0 ({MAX_CAUSES + 11} times)"
    assert missing[-1].startswith("10 things not written: other causes")


def test_counts_in_the_file_are_renewed_while_files_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path)
    run.write_text("a", "x")
    monkeypatch.setattr(writer, "SAVE_SECONDS", 0.001)
    time.sleep(0.01)
    run.write_text("b", "x")
    assert saved(run).collected_files == 2


def test_a_forked_child_is_silent_and_cannot_hang(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.event(where=WHERE, kind="note", name="parent")
    before = written(tmp_path)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with run.lock:
            held.set()
            release.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)

    def child() -> bool:
        signal.alarm(30)  # where it hangs, it ends
        silent = run.forked and run.write_text("child.txt", "x") is None and run.append_text("debug.log", "x") is False
        silent = silent and run.event(where=WHERE, kind="note", name="child") is None
        run.update(models=7)
        run.note("child")
        run.missing("child")
        silent = silent and run.manifest.models == 0
        run.close("failed")
        return silent

    assert in_a_fork(child)
    release.set()
    holder.join()
    assert not run.forked
    assert written(tmp_path) == before
    assert run.event(where=WHERE, kind="note", name="parent") is not None
    run.close("finished")
    opened = Run.open(tmp_path)
    assert [event.name for event in opened.events()] == ["parent", "parent"]
    assert (opened.manifest.state, opened.manifest.models, opened.manifest.notes) == ("finished", 0, [])


def test_the_header_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "a"
    file = AppendFile(path, header=b"H\n")
    assert path.read_bytes() == b""
    assert file.growth_bytes(b"1\n") == 4
    file.append(b"1\n")
    assert file.growth_bytes(b"2\n") == 2
    file.append(b"2\n")
    file.close()
    again = AppendFile(path, header=b"H\n")
    again.append(b"3\n")
    again.take_back(2)
    again.append(b"4\n")
    again.close()
    assert path.read_bytes() == b"H\n1\n2\n4\n"


DIRECTIONS = st.sampled_from(get_args(Direction))


def test_names_are_those_of_the_documented_tree() -> None:
    assert (
        layout.graph_file(Where(model=0, direction="forward"), number=0) == "model__0/forward/000_aot_forward_graph.txt"
    )
    assert (
        layout.pass_file(Where(model=1, direction="backward"), "remove noop/ops", number=12)
        == "model__1/backward/012_aot_backward_graph_after_remove_noop_ops.txt"
    )
    assert layout.graph_file(Where(model=0, direction="joint"), number=3) == "model__0/joint/003_aot_joint_graph.txt"
    assert (
        layout.graph_file(Where(model=0, direction="pre_grad"), number=0) == "model__0/pre_grad/000_pre_grad_graph.txt"
    )
    assert (
        layout.ir_file(Where(model=2, direction="forward"), "optimized", number=7, extension="pbtxt")
        == "model__2/forward/007_aot_forward_optimized_graph.pbtxt"
    )
    assert (
        layout.failure_file(Where(model=0, direction="forward"), "f", number=1234)
        == "model__0/forward/1234_aot_forward_FAILED_f.txt"
    )
    assert layout.ops_file(Where(model=0, direction="forward")) == "model__0/forward/captured_ops.json"
    assert layout.code_file(Where(model=0, direction="backward")) == "model__0/backward/output_code.py"
    assert layout.compile_file(0) == "model__0/compile.json"
    assert layout.dynamo_file(0) == "model__0/dynamo_out_graph.txt"
    assert layout.graph_name("forward") == "aot_forward_graph"
    assert layout.graph_name("forward", "original") == "aot_forward_original_graph"
    started, name = datetime(2026, 1, 2, 3, 4, 5, 6), "run_2026_01_02_03_04_05_000006-pid_42"
    assert layout.run_folder(started=started, pid=42, rank=None) == name, "torch's time format"
    assert layout.run_folder(started=started, pid=42, rank=0) == f"{name}-rank_0"


@given(st.text(max_size=400))
def test_any_pass_name_makes_a_safe_bounded_file_name(name: str) -> None:
    safe = layout.file_name_from_pass(name)
    assert re.fullmatch(rf"[A-Za-z0-9._-]{{1,{layout.MAX_NAME_LENGTH}}}", safe)
    assert not safe.startswith((".", "-"))
    assert layout.file_name_from_pass(safe) == safe


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_]{0,60}[A-Za-z0-9]", fullmatch=True))
def test_ordinary_pass_names_are_kept(name: str) -> None:
    assert layout.file_name_from_pass(name) == name


@given(DIRECTIONS, st.lists(st.text(max_size=20), min_size=2, max_size=6))
def test_numbers_keep_files_apart(direction: Direction, names: list[str]) -> None:
    paths = [
        layout.pass_file(Where(model=0, direction=direction), name, number=number) for number, name in enumerate(names)
    ]
    assert len({path.casefold() for path in paths}) == len(names)
    assert all(len(path.rsplit("/", 1)[-1]) < 200 and path.count("/") == 2 for path in paths)


@given(DIRECTIONS, st.integers(0, 998))
def test_files_sort_in_their_order(direction: Direction, number: int) -> None:
    assert layout.pass_file(Where(model=0, direction=direction), "zzz", number=number) < layout.graph_file(
        Where(model=0, direction=direction), number=number + 1
    )
