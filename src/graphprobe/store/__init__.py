"""Bytes on disk: where a run's files lie, how they are written, how they are read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphprobe.faces import loaded_on_use

if TYPE_CHECKING:
    from graphprobe.store import layout
    from graphprobe.store.api_reader import open_api_dump
    from graphprobe.store.calls import Call, CallDump, CallSlot, Scalar
    from graphprobe.store.dump_reader import DumpedOp, DumpFolder, open_dump
    from graphprobe.store.foreign.ptdbg import PtdbgDump
    from graphprobe.store.reader import Run
    from graphprobe.store.schema import json_line
    from graphprobe.store.step_file import StepLine
    from graphprobe.store.writer import RunWriter, WrittenFile

__all__ = [
    "Call",
    "CallDump",
    "CallSlot",
    "DumpFolder",
    "DumpedOp",
    "PtdbgDump",
    "Run",
    "RunWriter",
    "Scalar",
    "StepLine",
    "WrittenFile",
    "json_line",
    "layout",
    "open_api_dump",
    "open_dump",
]

__getattr__ = loaded_on_use(__name__)
