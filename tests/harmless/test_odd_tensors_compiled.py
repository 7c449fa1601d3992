"""Compiled programs on tensors that are no plain memory: bit for bit the same under every dump of their graphs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphprobe.compare.open import open_dump

PROGRAM = Path(__file__).parent / "programs" / "odd_tensors.py"
ENV = {"OMP_NUM_THREADS": "1"}
MODES = [(engine, data) for engine in ("instrument", "kernel", "interpreter") for data in ("stats", "tensor")]


@pytest.fixture(scope="module")
def plain(run_python: Callable[..., Any]) -> Any:
    done = run_python(str(PROGRAM), env=ENV)
    assert done.code == 0, done.err
    assert "class: Told" in done.out and "distributed: " in done.out
    return done


@pytest.mark.heavy
@pytest.mark.parametrize(("engine", "data"), MODES)
def test_dumps_of_graphs(run_python: Callable[..., Any], plain: Any, tmp_path: Path, engine: str, data: str) -> None:
    options = ("--dump-graph", data, "--dump-engine", engine, "--dump-path", str(tmp_path / "dump"))
    done = run_python("-m", "graphprobe", "run", "-q", "--out", str(tmp_path / "runs"), *options, str(PROGRAM), env=ENV)
    assert done.code == 0, done.err[-3000:]
    assert done.out.splitlines() == plain.out.splitlines()
    dump = open_dump(tmp_path / "dump")
    calls = [call for step in dump.steps(0) for call in dump.calls(0, step)]
    assert len(calls) > 10
    missing = [slot for call in calls for slot in call.slots if slot.scalar is None and slot.stats is None]
    assert all(slot.missing or slot.value for slot in missing), [slot for slot in missing if not slot.missing][:3]
    manifests = [json.loads(path.read_text()) for path in (tmp_path / "dump").rglob("manifest.json")]
    assert manifests and all(not document.get("stopped") for document in manifests)
