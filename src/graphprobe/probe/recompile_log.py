"""Facts that are added one a line to a file of the run while it goes on: recompilations, graph breaks."""

from __future__ import annotations

from graphprobe.analysis.recompile_facts import Recompile
from graphprobe.records import Where
from graphprobe.store import layout
from graphprobe.store.schema import json_from_value
from graphprobe.store.writer import RunWriter, WrittenFile


def write_recompile(writer: RunWriter, fact: Recompile) -> None:
    """Add a recompilation to the run; what cannot be written is counted there."""
    append_fact(writer, layout.RECOMPILES, json_from_value(fact).decode() + "\n")


def append_fact(writer: RunWriter, path: str, line: str) -> None:
    """Add a line to a file of the run; the first has an event, by which `ls` knows the file."""
    first = not (writer.tool_dir / path).exists()
    if writer.append_text(path, line) and first:
        # Without a digest: the file goes on growing.
        name = path.partition(".")[0]
        writer.event(where=Where(rank=writer.manifest.rank), kind="log", name=name, file=WrittenFile(path, None, None))
