"""A folder of a reduction that somebody else made brings no shell command with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from graphprobe.diagnose.reduction.case_folder import STATE, CaseFolder, State
from graphprobe.errors import UsageError


def test_a_check_that_the_folder_names_is_not_taken(tmp_path: Path) -> None:
    asked = State(identity="the same")
    case: Any = None
    (tmp_path / "original").mkdir()
    (tmp_path / STATE).write_bytes(msgspec.json.encode(State(identity="the same", check="touch pwned")))
    with pytest.raises(UsageError, match="with another --check"):
        CaseFolder.resume(tmp_path, case, asked)
    (tmp_path / STATE).write_bytes(msgspec.json.encode(asked))
    assert CaseFolder.resume(tmp_path, case, asked).state.check is None
