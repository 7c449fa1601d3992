"""What observers leave beside the values: findings, one a line, and documents in the folder of a step."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from graphprobe.dump_plan import DumpPlan
from graphprobe.probe.dump.running import GraphCall, GraphOp, place_of
from graphprobe.store import dump_records
from graphprobe.store.dump_records import Place
from graphprobe.store.dump_writer import DumpWriter
from graphprobe.store.files import replace_file
from graphprobe.store.manifest import AppendFile

logger = logging.getLogger("graphprobe")

FINDINGS = "findings.jsonl"
"""In the time folder: one line a finding."""

MOST = 1000
"""Findings of one kind that are written; what comes after is counted."""


class SideFiles:
    """Writes for one observer. Nothing is written once the dump has stopped, e.g. because its budget was reached."""

    def __init__(self, plan: DumpPlan, writer: Callable[[], DumpWriter], kind: str) -> None:
        """`kind` goes into every finding."""
        self._plan = plan
        self._writer = writer
        self._kind = kind
        self._said: set[object] = set()
        self._lock = threading.Lock()
        self.count = 0

    def place(self, call: GraphCall) -> Place:
        """The folder of a call."""
        return place_of(call, by_step=self._plan.steps is not None)

    def finding(self, text: str, *, same: object = None, **facts: Any) -> None:
        """Append a finding, and say it in the log; of those that are the `same`, the first only."""
        with self._lock:
            self.count += 1
            said, self._said = same in self._said, self._said | {same}
            if same is None or not said:
                logger.warning("dump: %s", text)
            writer = self._writer()
            if self.count > MOST:
                writer.missing(f"more than {MOST} findings of kind {self._kind}", noun="finding")
            elif writer.accepts:
                line = {"kind": self._kind, "text": text, **facts}
                self._append(writer.time_dir / FINDINGS, msgspec.json.encode(line) + b"\n")

    def document(self, place: Place, name: str, data: bytes | object) -> str:
        """Write a file into the folder of a call, over one of that name. Returns its path in the time folder."""
        path = f"{dump_records.data_folder(place)}/{name}"
        writer = self._writer()
        if writer.accepts:
            whole = writer.time_dir / path
            whole.parent.mkdir(parents=True, exist_ok=True)
            text = data if isinstance(data, bytes) else msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n"
            replace_file(whole, text)
        return path

    @staticmethod
    def _append(path: Path, line: bytes) -> None:
        file = AppendFile(path)
        try:
            file.append(line)
        finally:
            file.close()


def described(op: GraphOp) -> str:
    """An op in words: name, operator, line of the program, module."""
    info = op.info
    parts = [info.target or info.op_type]
    if len(info.fx_nodes) > 1:
        parts.append(f"nodes {', '.join(info.fx_nodes[:6])}{', …' if len(info.fx_nodes) > 6 else ''}")
    if info.module:
        parts.append(f"module {info.module}")
    if info.source:
        parts.append(f"at {info.source}")
    return f"{info.op_name} ({'; '.join(parts)})"


def facts_of_op(op: GraphOp) -> dict[str, Any]:
    """An op as a document has it."""
    info = op.info
    return {
        "op": info.op_name,
        "op_type": info.op_type,
        "target": info.target,
        "fx_nodes": list(info.fx_nodes),
        "direction": info.direction,
        "source": info.source,
        "sources": [f"{file}:{line}" for file, line in op.facts.sources],
        "module": info.module,
        "modules": list(op.facts.modules),
        "engine": info.engine,
        "perturbs": info.perturbs,
    }
