"""Recompilations into the run: a line each, and one event that names the file."""

from __future__ import annotations

import msgspec

from graphprobe.analysis.recompile_facts import Recompile
from graphprobe.records import Where
from graphprobe.store import layout
from graphprobe.store.writer import RunWriter, WrittenFile


def write_recompile(writer: RunWriter, fact: Recompile) -> None:
    """Add a recompilation to the run; what cannot be written is counted there."""
    first = not (writer.tool_dir / layout.RECOMPILES).exists()
    if writer.append_text(layout.RECOMPILES, msgspec.json.encode(fact).decode() + "\n") and first:
        # Without a digest: the file goes on growing.
        file = WrittenFile(layout.RECOMPILES, None, None)
        writer.event(where=Where(rank=writer.manifest.rank), kind="log", name="recompiles", file=file)
