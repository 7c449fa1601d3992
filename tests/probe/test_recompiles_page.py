"""docs/recompiles.md: its program and its blocks print what the page shows, and its table has every kind."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from graphprobe.analysis.recompile_remedies import REMEDIES

PAGE = (ROOT / "docs" / "recompiles.md").read_text(encoding="utf-8")
PROGRAM, *BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
OUTPUTS = re.findall(r"```text\n(.*?)```", PAGE, re.S)


def test_the_program(run_warm: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (shown,) = re.findall(r"```console\n\$ graphprobe recompiles train.py\n(.*?)```", PAGE, re.S)
    done = run_warm("-m", "graphprobe", "recompiles", "train.py", cwd=tmp_path)
    assert done.code == 1, done.err
    assert done.out == shown


def test_the_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for block, output in zip(BLOCKS, OUTPUTS, strict=True):
        exec(compile(block, "docs/recompiles.md", "exec"), names)
        assert capsys.readouterr().out == output


def test_every_kind_is_on_the_page() -> None:
    table = PAGE.partition("## Kinds")[2].partition("## What")[0]
    assert set(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", table)) == set(REMEDIES)
