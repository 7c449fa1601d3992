"""What the tests of a plan share: a working directory of their own, and a file written and read in one go."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from graphprobe.dump_plan import DumpPlan, plan_from

Plan = Callable[..., DumpPlan]


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.fixture
def plan_of(tmp_path: Path) -> Plan:
    """The plan for the object `dump` of a file, or for a file's text or bytes, with other options beside it."""

    def plan(content: object, **options: object) -> DumpPlan:
        file = tmp_path / "c.json"
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            file.write_text(content if isinstance(content, str) else json.dumps({"dump": content}), encoding="utf-8")
        return plan_from(options={"enable_dump": True, "dump_config_path": "c.json"} | options)

    return plan
