"""A fault of graphprobe's own: the program does not notice, the manifest says it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "failing.py"

FAULTS = [
    "graphprobe.probe.session:Session.wants",
    "graphprobe.probe.session:Session.model_begins",
    "graphprobe.probe.session:Session.model_ends",
    "graphprobe.probe.session:Session.metrics",
    "graphprobe.probe.session:Session.guards",
    "graphprobe.probe.model:ModelRecorder.dynamo_graph",
    "graphprobe.probe.model:ModelRecorder.write_facts",
    "graphprobe.probe.pass_snapshots:Trail.graph",
    "graphprobe.probe.pass_snapshots:Trail.phase_begins",
    "graphprobe.probe.pass_snapshots:Trail.pass_begins",
    "graphprobe.probe.pass_snapshots:Trail.pass_ends",
    "graphprobe.probe.lowering:LoweringRecorder.event",
    "graphprobe.probe.lowering:LoweringRecorder.compiled",
    "graphprobe.probe.inputs:InputSaver._write",
    "graphprobe.probe.lowering:LaunchRecorder._write",
]


@pytest.fixture(scope="module")
def told(run_warm: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[Any]]]:
    done = run_warm(str(PROGRAM), str(tmp_path_factory.mktemp("failing")), *FAULTS, env={"OMP_NUM_THREADS": "1"})
    assert done.code == 0, done.err[-4000:]
    assert "OwnFault" not in done.err
    sections = re.split(r"^### (?!missing)(.*)\n", done.out, flags=re.M)[1:]
    found: dict[str, tuple[str, list[Any]]] = {}
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        body, _, said = text.partition("### missing ")
        found[name] = (body, json.loads(said) if said else [])
    return found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault).rpartition(":")[2])
def test_fault_harms_nobody_and_is_told(fault: str, told: dict[str, tuple[str, list[Any]]]) -> None:
    plain, _ = told["plain"]
    assert "failing outputs" in plain
    evidence, (calls, state, missing) = told[fault]
    assert calls >= 1, "the planted fault was never reached"
    assert evidence == plain
    assert state == "finished"
    assert any("OwnFault: planted" in line for line in missing), missing
