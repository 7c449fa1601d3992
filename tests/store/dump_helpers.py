"""What the tests of runs and dumps share: manifests, an op, a place, values from numpy arrays, records and writers."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from graphprobe.records import Manifest, TensorMeta
from graphprobe.store.diagnosis_file import read_diagnosed
from graphprobe.store.dump_records import DumpManifest, DumpValue, OpInfo, Place, Side
from graphprobe.store.dump_writer import DumpWriter
from graphprobe.store.foreign.ptdbg import write_ptdbg
from graphprobe.store.step_file import StepRecord
from graphprobe.store.writer import RunWriter

ROOT = Path(__file__).resolve().parents[2]
__all__ = ["DumpValue", "OpInfo", "Place", "StepRecord", "read_diagnosed", "write_ptdbg"]
"""Of the store, for tests of other rooms, beside the helpers below."""

OP = OpInfo(
    op_type="add",
    op_name="add_1",
    engine="kernel",
    perturbs=False,
    target="aten.add.Tensor",
    source="model.py:12",
    module="layers.3",
    fx_nodes=("add_1", "relu"),
    direction="forward",
)
PLACE = Place(model_name="ResNet-50", model_id=1, data_index=0, step=5)


def run_manifest(**fields: Any) -> Manifest:
    """Of a run that began now, in this process."""
    facts: dict[str, Any] = {"graphprobe": "0.1", "torch": "2.13.0", "python": "3.11", "platform": "linux"}
    facts |= {"argv": ["train.py"], "cwd": "/", "pid": os.getpid(), "parent_pid": 1, "started_ns": time.time_ns()}
    return Manifest(**(facts | fields))


def new_run(root: Path, *, rank: int | None = None, max_bytes: int | None = None, **fields: Any) -> RunWriter:
    """A run that is being written; `fields` are those of its manifest."""
    return RunWriter.create(root, manifest=run_manifest(**fields), rank=rank, max_bytes=max_bytes)


def new_manifest(**fields: Any) -> DumpManifest:
    return DumpManifest.of(run_manifest(**fields), engine="kernel", plan={"dump_mode": "all"})


def new_writer(path: Path, **options: Any) -> DumpWriter:
    path.mkdir(exist_ok=True)
    return DumpWriter.create(path, manifest=options.pop("manifest", None) or new_manifest(), **options)


def value(name: str, array: np.ndarray[Any, Any], **fields: Any) -> DumpValue:
    """A value of a dtype that numpy has."""
    side: Side = "output" if name.startswith("output") else "input"
    fields = {"data": np.ascontiguousarray(array)} | fields
    return DumpValue(name, side, TensorMeta(str(array.dtype), array.shape), **fields)


def in_a_fork(does: Callable[[], bool]) -> bool:
    """Whether `does` returned True in a child of this process."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if does() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def killed(program: str, *args: str, seconds: float) -> int:
    """Kill a program so long after its first line; the number that it printed last."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    process = subprocess.Popen(
        [sys.executable, "-c", program, *args],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    first = int(process.stdout.readline())
    time.sleep(seconds)
    process.kill()
    whole, _, _ = process.stdout.read().rpartition("\n")
    process.wait()
    return int(whole.rpartition("\n")[2] or first)


def written(folder: Path) -> set[str]:
    """Every file below `folder`, hidden ones included."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
