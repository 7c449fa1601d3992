"""Graphs and node data for Google's Model Explorer: `graphs.json` is opened as a model, the others are added to it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import tee
from pathlib import Path
from typing import Any

import msgspec

from graphprobe.compare.outline import OUTPUT_ROLES, outline_from_calls
from graphprobe.compare.result import CallResult
from graphprobe.report.graph_nodes import Graph, RunGraph, run_graphs, shown_source
from graphprobe.store.calls import Call, CallDump
from graphprobe.store.files import replace_file
from graphprobe.store.reader import Run

GRAPHS = "graphs.json"
STATISTICS = ("min", "max", "mean", "std", "l2", "nonfinite")
"""Node data of a dump: one file each. `nonfinite` counts NaN and infinities."""

LIMIT = 4.0
"""rms of z up to which rounding explains a difference; docs/metrics.md."""

Style = dict[str, list[dict[str, Any]]]
ERRORS: Style = {
    "thresholds": [
        {"value": LIMIT, "bgColor": "#a3d9a5"},
        {"value": 100.0, "bgColor": "#ffe08a"},
        {"value": 1e4, "bgColor": "#ffb366"},
        {"value": 1e30, "bgColor": "#ff8a80"},
    ]
}
"""Colours of errors in units of noise: a value up to the first number has the first colour, and so on."""

NONFINITE: Style = {"thresholds": [{"value": 0.0, "bgColor": "#ffffff"}, {"value": 1e30, "bgColor": "#ff8a80"}]}
GRADIENT: Style = {"gradient": [{"stop": 0.0, "bgColor": "#ffffff"}, {"stop": 1.0, "bgColor": "#6ea8fe"}]}

Results = dict[str, dict[str, float]]
"""By graph and node, a value."""


def export_run(run: Run, folder: Path, left_out: list[str], *, only: str | None = None) -> tuple[list[Path], int]:
    """Write the FX graphs of a run; returns the files and the number of graphs."""
    graphs = [graph for one in run_graphs(run, left_out, only=only) for graph in fx_graphs(one)]
    return [write_graphs(folder, run.run_dir.name, graphs)], len(graphs)


def export_calls(dump: CallDump, folder: Path) -> tuple[list[Path], int]:
    """Write each step of each rank of a dump as a graph of its calls, with a file of node data for each statistic.

    An edge says that a call got, bit for bit, what an earlier one gave.
    """
    graphs: list[dict[str, Any]] = []
    data: dict[str, Results] = {name: {} for name in STATISTICS}
    for rank in dump.ranks():
        for step in dump.steps(rank):
            graph_id = graph_id_of(rank, step)
            named, again = tee(_named(dump.calls(rank, step)))
            producers = outline_from_calls(call for _, call in again)
            ids: list[str] = []
            nodes: list[dict[str, Any]] = []
            for number, (node_id, call) in enumerate(named):
                ids.append(node_id)
                sources = [(ids[p], i) for i, p in enumerate(producers.producers_of(number)) if p >= 0]
                nodes.append(_call_node(node_id, call, sources))
                for name, value in values_of(call).items():
                    data[name].setdefault(graph_id, {})[node_id] = value
            graphs.append({"id": graph_id, "nodes": nodes})
    written = [write_graphs(folder, dump.title, graphs)]
    styles = dict.fromkeys(data, GRADIENT) | {"nonfinite": NONFINITE}
    written += [_write_data(folder / f"{name}.json", found, styles[name]) for name, found in data.items() if found]
    return written, len(graphs)


def export_comparison(rows: Iterable[CallResult], title: str, folder: Path) -> tuple[list[Path], int]:
    """Write the compared calls as graphs without edges, and the errors of what they got and gave as node data.

    Nodes have the names that `export_calls` gives those of the candidate's dump, whose graphs have edges.
    """
    graphs: dict[str, list[dict[str, Any]]] = {}
    data: dict[str, Results] = {"level": {}, "inherited": {}, "z": {}}
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        call = row.candidate
        if call is None:
            continue
        graph_id = graph_id_of(row.rank, row.step)
        node_id = _unique(call.label, seen[graph_id])
        attributes = {"api": call.api, "source": call.source, "verdict": row.verdict, "blame": row.blame}
        attributes |= {"reason": row.reason, "rule": row.rule or "without a partner"}
        graphs.setdefault(graph_id, []).append(_node(node_id, _short(call.api), call.module, attributes))
        if row.rule is not None:
            z = max((slot.z for slot in row.slots if slot.role in OUTPUT_ROLES), default=0.0)
            for name, value in (("level", row.level), ("inherited", row.inherited), ("z", z)):
                data[name].setdefault(graph_id, {})[node_id] = value
    written = [write_graphs(folder, title, [{"id": key, "nodes": nodes} for key, nodes in graphs.items()])]
    written += [_write_data(folder / f"{name}.json", found, ERRORS) for name, found in data.items()]
    return written, len(graphs)


def graph_id_of(rank: int, step: int) -> str:
    """The id of the graph that stands for one step of a dump."""
    return f"rank{rank}/step{step}"


def fx_graphs(file: RunGraph) -> Iterator[dict[str, Any]]:
    """The graph of a file, and those nested in it, which have their path behind the address."""
    below = {graph.path: graph.path.partition("/")[2] for graph in file.graphs}
    ids = {path: f"{file.address}/{inner}" if inner else file.address for path, inner in below.items()}
    for graph in file.graphs:
        yield {"id": ids[graph.path], "nodes": list(_fx_nodes(graph, ids))}


def _fx_nodes(graph: Graph, ids: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for node in graph.nodes:
        attributes = {"type": node.type, "source": shown_source(node.source), "expression": node.expression()}
        label, namespace = node.op, "inputs" if node.op == "placeholder" else ""
        if node.op not in ("placeholder", "output"):
            label = node.operator.name
            attributes["target"] = node.target.name.removeprefix("torch.ops.")
        made = _node(node.name, label, namespace, attributes, [(name, i) for i, name in enumerate(node.reads)])
        nested = ids.get(graph.inner(node) or "")
        if nested is not None:
            made["subgraphIds"] = [nested]
        shapes = [f"{value.dtype}[{', '.join(map(str, value.shape or ()))}]" for value in node.values]
        if any(value.dtype for value in node.values):
            listed = enumerate(shapes)
            made["outputsMetadata"] = [{"id": str(i), "attrs": _attributes({"tensor_shape": s})} for i, s in listed]
        yield made


def _named(calls: Iterable[Call]) -> Iterator[tuple[str, Call]]:
    seen: Counter[str] = Counter()
    for call in calls:
        yield _unique(call.label, seen), call


def _unique(label: str, seen: Counter[str]) -> str:
    seen[label] += 1
    return label if seen[label] == 1 else f"{label}#{seen[label]}"


def _call_node(node_id: str, call: Call, sources: Sequence[tuple[str, int]]) -> dict[str, Any]:
    attributes = {"api": call.api, "kind": call.kind, "direction": call.direction, "source": call.source}
    made = _node(node_id, _short(call.api), call.module, attributes, sources)
    outputs = [
        {"tensor_shape": f"{slot.meta.dtype}{list(slot.meta.shape)}", "slot": slot.name}
        for slot in call.slots
        if slot.role in OUTPUT_ROLES and slot.meta is not None
    ]
    made["outputsMetadata"] = [{"id": str(i), "attrs": _attributes(facts)} for i, facts in enumerate(outputs)]
    return made


def _short(api: str) -> str:
    """`relu` of `aten.relu.default`, `linear` of `torch.nn.functional.linear`."""
    parts = api.removeprefix("torch.ops.").split(".")
    return parts[1] if len(parts) == 3 and parts[0] in ("aten", "prims") else parts[-1]


def _node(
    node_id: str,
    label: str,
    module: str,
    attributes: Mapping[str, str],
    sources: Sequence[tuple[str, int]] = (),
) -> dict[str, Any]:
    made: dict[str, Any] = {"id": node_id, "label": label, "namespace": module.replace(".", "/")}
    made["attrs"] = _attributes(attributes)
    made["incomingEdges"] = [
        {"sourceNodeId": source, "sourceNodeOutputId": "0", "targetNodeInputId": str(slot)} for source, slot in sources
    ]
    return made


def _attributes(facts: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in facts.items() if value]


def values_of(call: Call) -> dict[str, float]:
    """The statistics of what a call gave, as far as they are known; of several outputs the extreme of each."""
    found: dict[str, float] = {}
    for slot in call.slots:
        stats = slot.stats
        if slot.role not in OUTPUT_ROLES or stats is None:
            continue
        for name in STATISTICS[:-1]:
            value = getattr(stats, name) if name in slot.known else None
            if value is not None and math.isfinite(value):
                found[name] = float((min if name == "min" else max)(found.get(name, value), value))
        if "nan" in slot.known:
            found["nonfinite"] = found.get("nonfinite", 0) + stats.nan + stats.positive_inf + stats.negative_inf
    return found


def write_graphs(folder: Path, label: str, graphs: Sequence[dict[str, Any]]) -> Path:
    """Write the file that Model Explorer opens as a model."""
    return _write(folder / GRAPHS, {"label": label, "graphs": list(graphs)})


def _write_data(path: Path, data: Results, style: Style) -> Path:
    """The format of node data: by graph id the results by node id, and how values become colours."""
    document = {
        graph: {"results": {node: {"value": value} for node, value in values.items()}, **style}
        for graph, values in data.items()
    }
    return _write(path, document)


def _write(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, msgspec.json.encode(document) + b"\n")
    return path
