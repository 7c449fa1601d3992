"""docs/save_and_print.md: its program prints what the page shows."""

import re
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from graphprobe import ops
from graphprobe.store import open_dump

PAGE = ROOT / "docs" / "save_and_print.md"


def test_the_program_prints_what_the_page_shows(
    fresh: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    (output,) = re.findall(r"```text\n(.*?)```", text, flags=re.S)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(program, str(PAGE), "exec"), names)
    assert capsys.readouterr().out == output
    folder = ops.flush()
    assert folder is not None and folder.is_relative_to(fresh / "graphprobe-saved")
    assert [op.record.op.op_name for op in open_dump(folder).ops()] == ["h", "h.grad"]
