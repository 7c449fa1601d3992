import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from conftest import damaged
from graphprobe.errors import ArtifactNotFoundError, RunNotFoundError, SchemaError
from graphprobe.records import SCHEMA_VERSION, Direction, Event, Manifest, Where
from graphprobe.store import layout, schema
from graphprobe.store.reader import Run
from graphprobe.store.writer import RunWriter
from store.dump_helpers import new_run


def create(root: Path, **fields: object) -> RunWriter:
    return new_run(root, **{"host": socket.gethostname(), **fields})


class Recorder:
    def __init__(self, writer: RunWriter) -> None:
        self.writer = writer
        self.number = 0

    def graph(self, model: int, direction: Direction, text: str = "graph", subgraph: str | None = None) -> None:
        path = layout.graph_file(Where(model=model, direction=direction), number=self.take())
        where = Where(model=model, compile_id=f"{model}/0", direction=direction, subgraph=subgraph)
        self.put("graph", where, layout.graph_name(direction), path, text)

    def a_pass(
        self,
        name: str,
        text: str | None = "after",
        *,
        model: int = 0,
        direction: Direction = "forward",
        subgraph: str | None = None,
    ) -> None:
        where = Where(model=model, direction=direction, pass_name=name, subgraph=subgraph)
        if text is None:
            self.writer.event(where=where, kind="pass", name=name, changed=False)
        else:
            path = layout.pass_file(Where(model=model, direction=direction), name, number=self.take())
            self.put("pass", where, name, path, text, changed=True)

    def put(self, kind: str, where: Where, name: str, path: str, text: str, **fields: object) -> None:
        file = self.writer.write_text(path, text)
        self.writer.event(where=where, kind=kind, name=name, file=file, **fields)  # type: ignore[arg-type]

    def take(self) -> int:
        self.number += 1
        return self.number - 1


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.open(sample(tmp_path).run_dir)


def sample(root: Path) -> RunWriter:
    writer = create(root)
    record = Recorder(writer)
    dynamo = Where(model=0, compile_id="0/0", phase="dynamo")
    record.put("graph", dynamo, "dynamo_out_graph", layout.dynamo_file(0), "dynamo")
    record.a_pass("normalize", "normalized", direction="pre_grad")
    record.graph(0, "forward", "start")
    record.a_pass("reorder", None)
    record.a_pass("fuse", "fused")
    record.a_pass("fuse", "in body", subgraph="body_0")
    record.a_pass("cse", "cse 1")
    record.a_pass("cse", "cse 2")
    record.a_pass("cse", None)
    where = Where(model=0, direction="forward")
    stages: tuple[Literal["original", "optimized"], ...] = ("original", "optimized")
    for stage in stages:
        path = layout.ir_file(Where(model=0, direction="forward"), stage, number=record.take())
        record.put("ir", where, layout.graph_name("forward", stage), path, stage)
    record.put("code", where, "output_code", layout.code_file(Where(model=0, direction="forward")), "code")
    record.put(
        "ops",
        Where(model=0, direction="forward", step=0),
        "captured_ops",
        layout.ops_file(Where(model=0, direction="forward")),
        "{}",
    )
    record.put("compile", Where(model=0), "compile", layout.compile_file(0), "{}")
    record.put("compile", Where(model=0), "compile", layout.compile_file(0), '{"function": "f"}')
    record.graph(1, "forward", "other")
    record.graph(1, "backward", "back")
    record.a_pass("boom", "fused in 1", model=1, direction="backward")
    failed = Where(model=1, direction="backward", pass_name="crash")
    record.put(
        "failure",
        failed,
        "crash",
        layout.failure_file(Where(model=1, direction="backward"), "crash", number=9),
        "Traceback",
    )
    writer.close("finished")
    return writer


def test_models_and_directions(run: Run) -> None:
    first, second = run.models()
    assert (first.number, first.compile_id, first.compile) == (0, "0/0", {"function": "f"})
    assert list(first.graphs()) == ["pre_grad", "forward"]
    assert list(second.graphs()) == ["forward", "backward"]
    assert second.compile == {}
    assert run.state == "finished"
    assert run.problems == []
    assert damaged(run) == []


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("model__0/dynamo", "dynamo"),
        ("model__0/forward/graph", "start"),
        ("model__0/forward/after:fuse", "fused"),
        ("model__0/forward/after:fuse@body_0", "in body"),
        ("model__0/forward/after:cse#2", "cse 2"),
        ("model__0/forward/original", "original"),
        ("optimized", "optimized"),
        ("model__0/forward/code", "code"),
        ("code", "code"),
        ("model__0/forward/ops", "{}"),
        ("model__0/compile", '{"function": "f"}'),
        ("compile.json", '{"function": "f"}'),
        ("output_code.py", "code"),
        ("model__0/forward/output_code.py", "code"),
        ("backward/graph", "back"),
        ("model__0/pre_grad/", "normalized"),
        ("after:norm", "normalized"),
        ("failed:crash", "Traceback"),
        ("001_aot_forward_graph.t", "start"),
    ],
)
def test_addresses(run: Run, address: str, text: str) -> None:
    assert run.text(run.find(address)) == text


def test_every_address_and_every_path_finds_its_own_artifact(run: Run) -> None:
    assert len(run.artifacts()) == 16
    for address, event in run.artifacts().items():
        assert run.find(address) is event
        assert event.path is not None
        assert run.find(event.path) is event


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("model__0/forward/000_", ""),
        ("", "no artifact"),
        ("model__0/forward/after:fuze", "model__0/forward/after:fuse"),  # the nearest
        ("forward/graph", "2 artifacts: model__0/forward/graph, model__1/forward/graph"),
        ("model__0/forward/after:cse", "after:cse#1, model__0/forward/after:cse#2"),
        ("model__0/forward/after:reorder", "ran and changed nothing"),
        ("model__0/forward/after:nothing", "no artifact"),
    ],
)
def test_addresses_of_nothing_or_of_several(run: Run, address: str, said: str) -> None:
    with pytest.raises(ArtifactNotFoundError) as caught:
        run.find(address)
    assert said in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("fuse#1", "start", "fused"),
        ("reorder", "start", "start"),
        ("cse#1", "fused", "cse 1"),
        ("cse#2", "cse 1", "cse 2"),
        ("cse#3", "cse 2", "cse 2"),
        ("normalize", "dynamo", "normalized"),
        ("boom", "back", "fused in 1"),
    ],
)
def test_before_and_after_a_pass(run: Run, name: str, before: str, after: str) -> None:
    pair = run.before_and_after(name)
    assert (run.text(pair.before), run.text(pair.after)) == (before, after)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("cse", {}, r"changed the graph 2 times: model__0/forward/after:cse \(#1\), .*#2"),
        ("cse#4", {}, "ran 3 times"),
        ("fuse#2", {}, "no graph was kept from before"),
        ("fuze", {}, "no pass 'fuze'"),
        ("fuse", {"model": 1}, "no pass 'fuse'"),
        ("fuse", {"direction": "backward"}, "no pass 'fuse'"),
        ("crash", {}, "raised"),
    ],
)
def test_passes_without_a_pair(run: Run, name: str, arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ArtifactNotFoundError, match=said) as caught:
        run.before_and_after(name, **arguments)  # type: ignore[arg-type]
    if name == "fuze":
        assert "fuse" in caught.value.hint


def test_a_pass_whose_file_was_not_written(tmp_path: Path) -> None:
    writer = create(tmp_path)
    record = Recorder(writer)
    record.graph(0, "forward")
    where = Where(model=0, direction="forward", pass_name="fuse")
    writer.event(where=where, kind="pass", name="fuse", changed=True)
    with pytest.raises(ArtifactNotFoundError, match="its file was not written"):
        Run.open(tmp_path).before_and_after("fuse")


def test_digests_tell_what_changed_and_what_is_gone(run: Run) -> None:
    (run.tool_dir / layout.code_file(Where(model=0, direction="forward"))).write_text("Code")
    (run.tool_dir / layout.ops_file(Where(model=0, direction="forward"))).unlink()
    assert damaged(run) == ["model__0/forward/captured_ops.json", "model__0/forward/output_code.py"]
    with pytest.raises(ArtifactNotFoundError, match="No such file"):
        run.text(run.find("ops"))


def test_an_event_cannot_lead_outside_the_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    with pytest.raises(ArtifactNotFoundError, match="outside"):
        run.text(Event(0, 0, Where(), "graph", "g", path="../../secret"))


def test_open_takes_run_folder_tool_folder_and_roots(tmp_path: Path) -> None:
    root = tmp_path / layout.ROOT
    old, new = create(root, started_ns=10**18), create(root, started_ns=2 * 10**18)
    for path in (new.run_dir, new.tool_dir, str(new.run_dir), root, tmp_path):
        assert Run.open(path).run_dir == new.run_dir
    assert Run.open(old.run_dir).run_dir == old.run_dir
    assert [run.run_dir for run in Run.find_all(root)] == [old.run_dir, new.run_dir]


def test_open_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="does not exist"):
        Run.open(tmp_path / "none")
    with pytest.raises(RunNotFoundError, match=r"graphprobe/manifest\.json"):
        Run.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunNotFoundError):
        Run.open(tmp_path / "file")


def test_a_newer_run_is_refused_unless_others_can_be_read(tmp_path: Path) -> None:
    writer = create(tmp_path)
    manifest = writer.tool_dir / layout.MANIFEST
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema": 99}))
    for path in (tmp_path, writer.run_dir):
        with pytest.raises(SchemaError, match="schema 99"):
            Run.open(path)
    other = create(tmp_path)
    assert Run.open(tmp_path).run_dir == other.run_dir


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_left_out_and_told(tmp_path: Path, cut: int) -> None:
    writer = sample(tmp_path)
    path = writer.tool_dir / layout.EVENTS
    data = path.read_bytes()
    # Without its newline alone, a line is still whole.
    path.write_bytes(data[:-1])
    assert len(Run.open(tmp_path).events()) == data.count(b"\n")
    path.write_bytes(data[: -1 - cut])
    run = Run.open(tmp_path)
    assert len(run.events()) == data.count(b"\n") - 1
    assert len(run.problems) == 1
    assert "cut off" in run.problems[0]


def test_a_spoilt_line_in_the_middle_and_a_gap_are_told(tmp_path: Path) -> None:
    writer = sample(tmp_path)
    path = writer.tool_dir / layout.EVENTS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\xff\x00\n", *lines[4:]]))
    run = Run.open(tmp_path)
    assert [event.seq for event in run.events()] == [0, 1, *range(4, len(lines))]
    assert ["line 3 is no event" in run.problems[0], "line 4 has seq 4, expected 2" in run.problems[1]] == [True, True]


def test_a_run_without_events_opens(tmp_path: Path) -> None:
    writer = create(tmp_path)
    (writer.tool_dir / layout.EVENTS).unlink()
    run = Run.open(tmp_path)
    assert run.events() == ()
    assert "cannot be read" in run.problems[0]


def test_state_of_a_run_that_was_not_closed(tmp_path: Path) -> None:
    assert Run.open(create(tmp_path).run_dir).state == "running"
    child = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 30
    zombie = Run.open(create(tmp_path, pid=child.pid).run_dir)
    while zombie.state == "running" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert zombie.state == "killed"
    child.wait()
    assert zombie.state == "killed"
    elsewhere = create(tmp_path, pid=child.pid, host="another-machine")
    assert Run.open(elsewhere.run_dir).state == "running"


MANIFEST = {
    "graphprobe": "0.3",
    "schema": SCHEMA_VERSION,
    "python": "3.11",
    "platform": "linux",
    "argv": [],
    "cwd": "/",
}
MANIFEST |= {"pid": 1, "parent_pid": 0, "started_ns": 5}


def encoded(**fields: object) -> bytes:
    return json.dumps(MANIFEST | fields).encode()


def manifest_of(data: bytes, *, path: str) -> Manifest:
    return msgspec.convert(schema.read_manifest(data, path=path), Manifest)


def test_round_trip_spells_out_schema_and_state() -> None:
    manifest = manifest_of(encoded(), path="m")
    data = schema.encode_manifest(manifest)
    assert (json.loads(data)["schema"], json.loads(data)["state"]) == (SCHEMA_VERSION, "running")
    assert manifest_of(data, path="m") == manifest


def test_another_schema_is_refused_with_both_versions() -> None:
    for version, hint in ((SCHEMA_VERSION + 6, "upgrade graphprobe"), (SCHEMA_VERSION - 1, "write it anew")):
        with pytest.raises(SchemaError) as caught:
            manifest_of(encoded(schema=version, graphprobe=3), path="run/manifest.json")
        for text in (f"schema {version}", f"schema {SCHEMA_VERSION}", "run/manifest.json"):
            assert text in str(caught.value)
        assert hint in caught.value.hint and caught.value.exit_code == 125


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"3", b"{}", b'{"schema": "1"}', b'{"schema": true}', b"\xff\xfe"])
def test_what_is_no_manifest(data: bytes) -> None:
    with pytest.raises(SchemaError, match=r"m\.json is no manifest"):
        manifest_of(data, path="m.json")
