"""`window.json`: the nodes around the accused one in the graph that it is in, with what was measured of each."""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from graphprobe.diagnose.local import LocalError, Suspect
from graphprobe.engine.naming import module_of, op_of, source_of
from graphprobe.engine.subgraph import CALLS

log = logging.getLogger(__name__)

SCHEMA = 1
MOST_NODES = 60
"""What can be drawn and still be read."""


def window_of(suspect: Suspect) -> bytes | None:
    """The file; None where it cannot be made: it is a view of a finding, and must never cost one."""
    try:
        return (json.dumps(_document(suspect), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    except Exception as error:
        log.info("no window around %s: %s: %s", suspect.op, type(error).__name__, error)
        return None


def _document(suspect: Suspect) -> dict[str, Any]:
    order = {node: i for i, node in enumerate(suspect.graph.graph.nodes)}
    chosen = sorted(around([suspect.node, *suspect.others], MOST_NODES), key=order.__getitem__)
    inside = set(chosen)
    return {
        "schema": SCHEMA,
        "stage": suspect.stage,
        "direction": suspect.direction,
        "pass": suspect.pass_,
        "culprit": suspect.node.name,
        "graph_nodes": len(order),
        "nodes": [_node(node, inside, suspect) for node in chosen],
        "edges": [[source.name, node.name] for node in chosen for source in node.all_input_nodes if source in inside],
    }


def around(start: list[Node], most: int) -> set[Node]:
    """At most `most` nodes, the nearest first. What only holds a value (inputs, weights) leads no further."""
    found: dict[Node, None] = dict.fromkeys(start[:most])
    waiting = deque(found)
    while waiting and len(found) < most:
        for near in _neighbours(waiting.popleft()):
            if near not in found and len(found) < most:
                found[near] = None
                if near.op in CALLS:
                    waiting.append(near)
    return set(found)


def _neighbours(node: Node) -> Iterator[Node]:
    yield from node.all_input_nodes
    yield from node.users


def _node(node: Node, inside: set[Node], suspect: Suspect) -> dict[str, Any]:
    error = suspect.measured.get(node.name)
    if node is suspect.node:
        error = suspect.error
    return {
        "name": node.name,
        "kind": node.op,
        "op": op_of(node) if node.op in CALLS else "",
        "type": _type(node),
        "source": source_of(node),
        "module": module_of(node),
        "accused": node is suspect.node,
        "involved": node in suspect.others,
        **_measured(error),
        "more_inputs": sum(source not in inside for source in node.all_input_nodes),
        "more_users": sum(user not in inside for user in node.users),
    }


def _measured(error: LocalError | None) -> dict[str, Any]:
    if error is None:
        return {"answer": "not_compared", "z": None, "reason": ""}
    compared = error.answer in ("ok", "worse", "better")
    z: float | str | None = error.z if compared else None
    if z is not None and not math.isfinite(error.z):
        z = str(error.z)
    return {"answer": error.answer, "z": z, "reason": error.reason}


def _type(node: Node) -> str:
    value = node.meta.get("val", node.meta.get("example_value"))
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
    return type(value).__name__ if value is not None else ""
