"""The FX graphs of a run, read back from its files, each with its address."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.records import Event
from graphprobe.report.graph_text import GraphText, parse_graphs
from graphprobe.store.reader import Run

KINDS = ("graph", "pass", "failure", "ir")


class RunGraph(msgspec.Struct, frozen=True):
    """One file of a run that is a graph.

    Attributes:
        address: as `show` takes it.
        event: with the file's path.
        text: the file.
        graphs: the graph first, then those nested in it; empty for a file in another form, such as `pbtxt`.
    """

    address: str
    event: Event
    text: str
    graphs: tuple[GraphText, ...]


def run_graphs(run: Run, left_out: list[str], *, only: str | None = None) -> Iterator[RunGraph]:
    """The graphs of a run in order, each file once; what cannot be read is told in `left_out`.

    Args:
        only: an address, or what `Run.find` takes for one.

    Raises:
        ArtifactNotFoundError: `only` is no graph of the run.
    """
    wanted = None if only is None else run.find(only)
    if wanted is not None and wanted.kind not in KINDS:
        raise ArtifactNotFoundError(f"{only} is no graph: {wanted.path}", hint="graphprobe ls lists the graphs")
    seen: set[str | None] = set()
    for address, event in run.artifacts().items():
        if event.kind not in KINDS or (wanted is not None and event.path != wanted.path) or event.path in seen:
            continue
        seen.add(event.path)
        try:
            text = run.text(event)
        except ArtifactNotFoundError as error:
            left_out.append(f"{address}: {error}")
            continue
        graphs = parse_graphs(text).graphs if event.path is not None and event.path.endswith(".txt") else ()
        yield RunGraph(address, event, text, graphs)
