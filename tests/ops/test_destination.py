"""Where saved values go, and that nothing which fails there reaches the program."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import graphprobe
from graphprobe import ops
from graphprobe.errors import UsageError
from graphprobe.ops import destination
from graphprobe.probe.dump.sessions import close_all
from graphprobe.store import open_dump

ONES = torch.ones(2)


def names(path: Path | None) -> list[str]:
    ops.flush()
    assert path is not None
    return [op.record.op.op_name for op in open_dump(path).ops()]


@pytest.mark.parametrize("asked", [None, "deep/there"])
def test_a_folder_in_the_working_directory_or_from_the_environment(
    asked: str | None, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if asked:
        monkeypatch.setenv("GRAPHPROBE_SAVED", str(fresh / asked))
    assert ops.flush() is None
    assert list(fresh.iterdir()) == []
    ops.save(ONES, "a")
    ops.save(ONES, "a")
    folder = ops.flush()
    assert folder is not None and folder.is_relative_to(fresh / (asked or "graphprobe-saved"))
    assert names(folder) == ["a", "a"]


@pytest.mark.parametrize("how", ["call", "environment"])
def test_off_takes_the_ops_out_of_compiled_code(fresh: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    graphs: list[str] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(gm.code)
        return gm

    compiled = torch.compile(lambda x: ops.save(x * 2, "a") + 1, backend=backend, fullgraph=True)
    if how == "call":
        ops.save_to(fresh / "values")
    else:
        monkeypatch.setenv("GRAPHPROBE_SAVED", "off")
    compiled(ONES)
    if how == "call":
        ops.save_to(None)
    assert ops.save(ONES, "a") is ONES
    assert compiled(ONES).tolist() == [3.0, 3.0]
    assert ["graphprobe.save" in code for code in graphs] == [True, False]
    if how == "environment":
        assert list(fresh.iterdir()) == []
        return
    assert names(fresh / "values") == ["a"]
    ops.save_to(fresh / "more")
    compiled(ONES)
    assert names(fresh / "more") == ["a"]


def test_an_open_dump_has_them(fresh: Path) -> None:
    config = graphprobe.CompilerConfig()
    config.dump_config.enable_dump = True
    (fresh / "dump").mkdir()
    config.dump_config.dump_path = str(fresh / "dump")
    config.dump_config.dump_data = "stats"
    try:
        backend = graphprobe.get_backend(compiler_config=config, backend="aot_eager")
        torch.compile(lambda x: ops.save(x.sin(), "mine") * 2, backend=backend)(ONES)
        assert "mine" in names(fresh / "dump")
        assert not (fresh / "graphprobe-saved").exists()
    finally:
        close_all()
        graphprobe.disable()
    ops.save(ONES, "after")
    assert names(fresh / "graphprobe-saved") == ["after"]


def test_no_folder_can_be_made(fresh: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be saved under"):
        ops.save_to(fresh / "file" / "in")
    monkeypatch.setenv("GRAPHPROBE_SAVED", str(fresh / "file"))
    compiled = torch.compile(lambda x: ops.save(x.sin(), "a") * 2, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        assert torch.equal(compiled(ONES), ONES.sin() * 2)
    assert caplog.text.count("graphprobe.ops: saving 'a' failed") == 1


def test_a_writer_that_fails_is_reported_and_the_program_goes_on(
    saved: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops.save(ONES, "good")
    monkeypatch.setattr(destination, "dump_value", lambda *a, **k: 1 / 0)
    x = ONES.clone().requires_grad_()
    (ops.save(x.sin(), "bad") * 2).sum().backward()
    torch.testing.assert_close(x.grad, ONES.cos() * 2)
    assert "division by zero" in caplog.text
    assert saved.names() == ["good"]
    assert any("division by zero" in line for line in saved.folder.manifest.missing)


def test_a_forked_child_has_a_folder_of_its_own(saved: Any) -> None:
    ops.save(ONES, "parent")
    ops.flush()
    pid = os.fork()
    if pid == 0:
        try:
            ops.save(ONES, "child")
            ops.flush()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    found = {tuple(op.record.op.op_name for op in folder.ops()) for folder in open_dump(saved.path).folders}
    assert found == {("parent",), ("child",)}
