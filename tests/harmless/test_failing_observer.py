"""A fault of graphprobe's own: the program does not notice, the manifest says it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "failing.py"

FAULTS = [
    *(f"session:Session.{name}" for name in ("wants", "model_begins", "model_ends", "metrics", "guards")),
    *(f"model:ModelRecorder.{name}" for name in ("dynamo_graph", "write_facts")),
    *(f"pass_snapshots:Trail.{name}" for name in ("graph", "phase_begins", "pass_begins", "pass_ends")),
    *(f"lowering:{name}" for name in ("LoweringRecorder.event", "LoweringRecorder.compiled", "LaunchRecorder._write")),
    "inputs:InputSaver._write",
]
"""Methods in `graphprobe.probe`."""


@pytest.fixture(scope="module")
def told(run_warm: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[Any]]]:
    addresses = [f"graphprobe.probe.{fault}" for fault in FAULTS]
    done = run_warm(str(PROGRAM), str(tmp_path_factory.mktemp("failing")), *addresses, env={"OMP_NUM_THREADS": "1"})
    assert done.code == 0, done.err[-4000:]
    assert "OwnFault" not in done.err
    sections = re.split(r"^### (?!missing)(.*)\n", done.out, flags=re.M)[1:]
    found = {}
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        body, _, said = text.partition("### missing ")
        found[name.removeprefix("graphprobe.probe.")] = (body, json.loads(said) if said else [])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault).rpartition(":")[2])
def test_fault_harms_nobody_and_is_told(fault: str, told: dict[str, tuple[str, list[Any]]]) -> None:
    plain, _ = told["plain"]
    assert "failing outputs" in plain
    evidence, (calls, state, missing) = told[fault]
    assert calls >= 1, "the planted fault was never reached"
    assert (evidence, state) == (plain, "finished")
    assert any("OwnFault: planted" in line for line in missing), missing
