from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import graphprobe
from conftest import Finished
from graphprobe.cli.main import COMMANDS, main
from graphprobe.records import SCHEMA_VERSION, Manifest, Where
from graphprobe.store import layout
from graphprobe.store.writer import RunWriter

GRAPH = 'class G(torch.nn.Module):\n    def forward(self, a: "f32[2]"):\n        # File: x.py:3 in f, code: y = a + 1\n'
START = GRAPH + '        add: "f32[2]" = f(a)\n        return add\n'
FUSED = GRAPH + '        fused: "f32[2]" = g(a)\n        return fused\n'


def record(root: Path, after: str = FUSED) -> RunWriter:
    manifest = Manifest(
        graphprobe="0.1",
        python="3.11",
        platform="linux",
        argv=["x.py"],
        cwd="/",
        pid=os.getpid(),
        parent_pid=1,
        started_ns=time.time_ns(),
    )
    writer = RunWriter.create(root, manifest=manifest, rank=None, max_bytes=None)
    where = Where(model=0, direction="forward")
    file = writer.write_text(layout.graph_file(0, "forward", number=0), START)
    writer.event(where=where, kind="graph", name="aot_forward_graph", file=file)
    file = writer.write_text(layout.pass_file(0, "forward", "fuse", number=1), after)
    where = Where(model=0, direction="forward", pass_name="fuse")
    writer.event(where=where, kind="pass", name="fuse", file=file, changed=True)
    writer.event(where=Where(model=0, direction="forward", pass_name="idle"), kind="pass", name="idle", changed=False)
    writer.close("finished")
    return writer


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Calls the command in a working directory with one run under the default root."""
    monkeypatch.chdir(tmp_path)
    record(tmp_path / layout.ROOT)

    def call(*args: str) -> Result:
        result = CliRunner().invoke(main, args)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return call


def test_ls(invoke: Callable[..., Result]) -> None:
    result = invoke("ls")
    assert result.exit_code == 0
    assert "forward/after:fuse" in result.output
    assert "idle" not in result.output
    assert "idle" in invoke("ls", layout.ROOT, "--all").output
    assert json.loads(invoke("ls", "--json").output)["state"] == "finished"


def test_show(invoke: Callable[..., Result]) -> None:
    assert invoke("show", "after:fuse").stdout == FUSED
    assert invoke("show", layout.ROOT, "model__0/forward/graph").stdout == START
    document = json.loads(invoke("show", "model__0/forward/graph", "--json").output)
    assert document["text"] == START
    assert document["event"]["kind"] == "graph"


def test_diff_of_a_pass(invoke: Callable[..., Result]) -> None:
    result = invoke("diff", "--pass", "fuse")
    assert result.exit_code == 1
    assert '-  add: "f32[2]" = f(a)' in result.output
    assert "# File: x.py:3" in result.output
    document: dict[str, Any] = json.loads(invoke("diff", "--pass", "fuse", "--json").output)
    assert document["different"] is True
    assert [node["name"] for node in document["graphs"][0]["removed"]] == ["add"]
    result = invoke("diff", "--pass", "idle", "--model", "0", "--direction", "forward")
    assert result.exit_code == 0
    assert "no difference" in result.output
    assert "the pass changed nothing" in result.output


def test_diff_of_two_addresses(invoke: Callable[..., Result]) -> None:
    assert invoke("diff", "forward/graph", "after:fuse").exit_code == 1
    assert invoke("diff", layout.ROOT, "forward/graph", "forward/graph").exit_code == 0


def test_diff_across_two_runs(invoke: Callable[..., Result], tmp_path: Path) -> None:
    same, other = record(tmp_path / "b"), record(tmp_path / "c", FUSED.replace("g(a)", "h(a)"))
    assert invoke("diff", layout.ROOT, str(same.run_dir), "--pass", "fuse").exit_code == 0
    result = invoke("diff", layout.ROOT, str(other.run_dir), "--pass", "fuse")
    assert result.exit_code == 1
    assert "1 changed" in result.output
    assert other.run_dir.name in result.output


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("ls", "nowhere"), "error[run-not-found]: nowhere does not exist"),
        (("show", "nothing"), "error[artifact-not-found]: no artifact 'nothing'"),
        (("show",), "error[usage]: show takes"),
        (("show", "a", "b", "c"), "error[usage]: show takes"),
        (("diff",), "error[usage]: diff takes"),
        (("diff", "a", "b", "--model", "1"), "--model and --direction go with --pass"),
        (("diff", "a", "b", "c", "--pass", "x"), "at most two runs"),
        (("diff", "--pass", "fuze"), "no pass 'fuze'"),
        (("diff", "--pass", "fuse", "--direction", "sideways"), "sideways"),
        (("lss",), "lss"),
    ],
)
def test_wrong_usage_ends_with_two_and_says_why(
    invoke: Callable[..., Result], args: tuple[str, ...], said: str
) -> None:
    result = invoke(*args)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_a_newer_schema_cannot_be_decided(invoke: Callable[..., Result], tmp_path: Path) -> None:
    writer = record(tmp_path / "new")
    path = writer.tool_dir / layout.MANIFEST
    path.write_text(path.read_text().replace(f'"schema": {SCHEMA_VERSION}', '"schema": 7'))
    result = invoke("ls", str(writer.run_dir))
    assert result.exit_code == 125
    assert "schema 7" in result.stderr


def test_help_and_version(invoke: Callable[..., Result]) -> None:
    result = invoke("--help")
    for name, line in COMMANDS.items():
        assert name in result.output
        assert line in " ".join(result.output.split())
    for name in ("ls", "show", "diff"):
        assert "Examples:" in invoke(name, "--help").output
    assert invoke("--version").output == f"graphprobe {graphprobe.__version__}\n"


def test_reading_imports_no_torch(run_python: Callable[..., Finished], tmp_path: Path) -> None:
    record(tmp_path)
    for args in (["ls", str(tmp_path)], ["diff", str(tmp_path), "--pass", "fuse"]):
        code = f"""
import sys
from graphprobe.cli.main import main
main({args!r}, standalone_mode=False)
assert not {{"torch", "numpy"}} & set(sys.modules)
sys.exit(3)
"""
        assert run_python("-c", code).code == 3


def test_help_imports_no_rich(run_python: Callable[..., Finished]) -> None:
    code = """
import sys
from graphprobe.cli.main import main
try:
    main(["--help"])
finally:
    assert not {"rich", "msgspec", "graphprobe.store"} & set(sys.modules)
"""
    assert run_python("-c", code).code == 0
