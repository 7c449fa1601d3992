"""What the tests of a dump share: a manifest, an op, a place, and values from numpy arrays."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from graphprobe.records import Manifest, TensorMeta
from graphprobe.store.dump_records import DumpManifest, DumpValue, OpInfo, Place, Side, dump_manifest_from_run
from graphprobe.store.dump_writer import DumpWriter

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


def new_manifest(**fields: Any) -> DumpManifest:
    facts: dict[str, Any] = {
        "graphprobe": "0.1",
        "python": "3.11",
        "platform": "linux",
        "argv": ["train.py"],
        "cwd": "/",
        "pid": os.getpid(),
        "parent_pid": 1,
        "started_ns": time.time_ns(),
    }
    return dump_manifest_from_run(Manifest(**(facts | fields)), engine="kernel", plan={"dump_mode": "all"})


def new_writer(path: Path, **options: Any) -> DumpWriter:
    path.mkdir(exist_ok=True)
    return DumpWriter.create(path, manifest=options.pop("manifest", None) or new_manifest(), **options)


def value(name: str, array: np.ndarray[Any, Any], **fields: Any) -> DumpValue:
    """A value of a dtype that numpy has."""
    side: Side = "output" if name.startswith("output") else "input"
    fields = {"data": np.ascontiguousarray(array)} | fields
    return DumpValue(name, side, TensorMeta(str(array.dtype), array.shape), **fields)


def written(folder: Path) -> set[str]:
    """Every file below `folder`, hidden ones included."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
