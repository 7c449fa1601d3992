"""A dump of compiled graphs as node data on the FX graphs of the run that it belongs to, for Model Explorer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from graphprobe.errors import UsageError
from graphprobe.export.model_explorer import STATISTICS, Results, combined, fx_graphs, values_of, write_graphs
from graphprobe.export.model_explorer import write_statistics as write_node_data
from graphprobe.report.graph_nodes import RunGraph, run_graphs
from graphprobe.store.calls import Call, WithStatistics
from graphprobe.store.dump_reader import Dump
from graphprobe.store.dump_records import DumpRecord
from graphprobe.store.graph_calls import GraphCalls
from graphprobe.store.reader import Run

Key = tuple[int, str]
"""Number of the compiled graph in the dump, and its direction."""


def export_dump_on_graphs(dump: Dump, run: Run, folder: Path, left_out: list[str]) -> tuple[list[Path], int]:
    """Write the graphs as they were after the last pass, and for each step a folder of node data.

    An op that carries out several nodes gives its statistics to each of them.

    Returns:
        the files, and the number of graphs.

    Raises:
        UsageError: no graph of the run has the nodes of the dump.
    """
    calls = GraphCalls(str(folder), dump)
    nodes: dict[Key, set[str]] = defaultdict(set)
    modules: dict[Key, dict[str, str]] = defaultdict(dict)
    for record in (op.record for op in dump.ops()):
        nodes[_key(record)].update(record.op.fx_nodes)
        modules[_key(record)].update(dict.fromkeys(record.op.fx_nodes, record.op.module))
    chosen = _matched(nodes, run, left_out)
    if not chosen:
        raise UsageError(
            f"no graph of {run.run_dir} has the nodes of the dump",
            hint="name the run in which the dump was made: graphprobe run --dump-graph stats",
        )
    graphs = [graph for key, file in chosen.items() for graph in _with_modules(file, modules[key])]
    written = [write_graphs(folder, run.run_dir.name, graphs)]
    for step in sorted({step for rank in calls.ranks() for step in calls.steps(rank)}):
        data: dict[str, Results] = {name: {} for name in STATISTICS}
        for record, call in _pairs(dump, calls, step):
            file = chosen.get(_key(record))
            if file is None:
                continue
            for node in record.op.fx_nodes:
                for name, value in values_of(call).items():
                    values = data[name].setdefault(file.address, {})
                    values[node] = combined({name: values.get(node, value)}, {name: value})[name]
        written += write_node_data(folder / f"step{step}", data)
    return written, len(graphs)


def _key(record: DumpRecord) -> Key:
    return record.place.model_id, record.op.direction or "forward"


def _matched(nodes: dict[Key, set[str]], run: Run, left_out: list[str]) -> dict[Key, RunGraph]:
    """By graph of the dump that of the run after the last pass which has all its nodes, one of its own number first."""
    last: dict[Key, RunGraph] = {}
    for file in run_graphs(run, []):
        where = file.event.where
        if file.graphs and file.event.kind in ("graph", "pass") and where.subgraph is None and where.model is not None:
            last[where.model, where.direction or "dynamo"] = file
    names = {key: {node.name for node in file.graphs[0].nodes} for key, file in last.items()}
    found: dict[Key, RunGraph] = {}
    for key, wanted in nodes.items():
        fitting = [other for other in last if other[1] == key[1] and wanted <= names[other]]
        if fitting and wanted:
            found[key] = last[key if key in fitting else fitting[0]]
        else:
            left_out.append(f"graph {key[0]} {key[1]} of the dump: no graph of the run has all its nodes")
    return found


def _with_modules(file: RunGraph, modules: dict[str, str]) -> Iterator[dict[str, object]]:
    """The graphs with their nodes in the modules of the dump; one that no op carries out lies where its input does."""
    for graph in fx_graphs(file):
        places = {name: module.replace(".", "/") for name, module in modules.items() if module}
        for node in graph["nodes"]:
            if node["namespace"] or node["label"] == "output":
                continue
            sources = [places[edge["sourceNodeId"]] for edge in node["incomingEdges"] if edge["sourceNodeId"] in places]
            node["namespace"] = places.setdefault(node["id"], sources[0] if sources else "")
        yield graph


def _pairs(dump: Dump, calls: GraphCalls, step: int) -> Iterable[tuple[DumpRecord, Call]]:
    """Each record of a step with its call, which has the statistics."""
    filled = WithStatistics(calls)
    for rank in calls.ranks():
        records = (
            op.record
            for folder in dump.folders
            if (0 if folder.manifest is None else folder.manifest.rank) == rank
            for op in folder.ops_of(step)
        )
        yield from zip(records, filled.calls(rank, step), strict=True)
