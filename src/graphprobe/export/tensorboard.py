"""Statistics of a dump, step by step, as TensorBoard scalars. Needs the extra `tensorboard`, and no TensorFlow."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graphprobe.compare.open import extra_module
from graphprobe.compare.outline import OUTPUT_ROLES
from graphprobe.store.calls import Call, CallDump, CallSlot

STATISTICS = ("min", "max", "mean", "std", "l2", "nan", "positive_inf", "negative_inf", "zeros")
SHOWN_ROLES = (*OUTPUT_ROLES, "parameter", "buffer")
"""What a call gives, and its state; what it gets was given by another call."""

FILE_VERSION = "brain.Event:2"
PURPOSE = "graphprobe export --to tensorboard"


def export_tensorboard(dump: CallDump, folder: Path) -> tuple[list[Path], int]:
    """Write one events file for each rank; returns the files and the number of scalars.

    The tag of a scalar is `module/call/slot/statistic`, where the call is the operation with its number within the
    step; of several calls of one tag within a step the second has `#2` behind its name. TensorBoard keeps float32.

    Raises:
        UsageError: the package `tensorboard` is not installed.
    """
    writer_module = extra_module("tensorboard.summary.writer.record_writer", extra="tensorboard", purpose=PURPOSE)
    event_module = extra_module("tensorboard.compat.proto.event_pb2", extra="tensorboard", purpose=PURPOSE)
    wall_time = time.time()
    written: list[Path] = []
    count = 0
    ranks = dump.ranks()
    for rank in ranks:
        place = folder / f"rank{rank}" if len(ranks) > 1 else folder
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"events.out.tfevents.{int(wall_time)}.{socket.gethostname()}.{os.getpid()}.graphprobe"
        with open(path, "wb") as file:
            writer = writer_module.RecordWriter(file)
            writer.write(event_module.Event(wall_time=wall_time, file_version=FILE_VERSION).SerializeToString())
            for step in dump.steps(rank):
                for event in _events(dump, rank, step, event_module.Event, wall_time):
                    writer.write(event.SerializeToString())
                    count += len(event.summary.value)
        written.append(path)
    return written, count


def _events(dump: CallDump, rank: int, step: int, make: Any, wall_time: float) -> Iterator[Any]:
    """One event a call, so that memory does not grow with the step."""
    seen: Counter[str] = Counter()
    for call in dump.calls(rank, step):
        name = name_of(call)
        seen[name] += 1
        if seen[name] > 1:
            name = f"{name}#{seen[name]}"
        event = make(wall_time=wall_time, step=step)
        for slot in call.slots:
            for statistic, value in _values(slot):
                event.summary.value.add(tag=f"{name}/{slot.name}/{statistic}", simple_value=value)
        if event.summary.value:
            yield event


def name_of(call: Call) -> str:
    """`layers.3/linear.3.forward`: the same in every step of one program.

    Of an op of a compiled graph, `model.0.addmm.2.forward`: its label without the number of the execution at its end.
    """
    if call.kind in ("kernel", "node"):
        return f"{call.module or 'program'}/{call.label.rpartition('.')[0] or call.label}.{call.direction}"
    operation = call.api.removeprefix("torch.").removeprefix("nn.functional.") or call.kind
    number = f".{call.index}" if call.index >= 0 else ""
    return f"{call.module or 'program'}/{operation}{number}.{call.direction}"


def _values(slot: CallSlot) -> Iterator[tuple[str, float]]:
    if slot.stats is None or slot.role not in SHOWN_ROLES:
        return
    for name in STATISTICS:
        value = getattr(slot.stats, name) if name in slot.known else None
        if value is not None:
            yield name, float(value)
