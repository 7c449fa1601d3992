"""What is known of an FX node: the facts and marks that it is selected by, and what its records say."""

from __future__ import annotations

import os
from collections.abc import Sequence

from torch.fx import Graph, Node

from graphprobe.engine.naming import LINE, TORCH, module_of, op_of
from graphprobe.internals.way_taps import GUARDS
from graphprobe.probe.dump.running import DATA, GraphOp
from graphprobe.probe.dump.traits import traits_of_graph, type_of
from graphprobe.records import Direction
from graphprobe.scope import KEY
from graphprobe.select import OpFacts
from graphprobe.store.dump_records import Engine, OpInfo

DATA_OPS = ("placeholder", "get_attr")


def lines_of(stack_trace: str | None) -> tuple[tuple[str, int], ...]:
    """The source lines of a stack trace, outermost first: a call selects what happens below it."""
    found = LINE.findall(stack_trace or "")
    return tuple(dict.fromkeys((file.replace(os.sep, "/"), int(line)) for file, line in found))


def source_text(lines: Sequence[tuple[str, int]]) -> str:
    """`file.py:12` of the innermost line outside torch, else of the innermost; empty when there is none."""
    own = [line for line in lines if not line[0].startswith(TORCH)]
    last = (own or list(lines))[-1:]
    return f"{last[0][0]}:{last[0][1]}" if last else ""


def facts_of(node: Node) -> OpFacts:
    """What a node is selected by."""
    module = module_of(node)
    return OpFacts(
        names=(node.name,),
        targets=() if node.op in DATA_OPS else (op_of(node),),
        modules=(module,) if module else (),
        sources=lines_of(node.stack_trace),
    )


def info_of(facts: OpFacts, direction: Direction, engine: Engine, *, perturbs: bool) -> OpInfo:
    """What the records of an op with these facts say; one without a target is data of its graph."""
    target = facts.targets[0] if facts.targets else ""
    return OpInfo(
        op_type=type_of(target) if target else DATA,
        op_name=facts.names[0],
        engine=engine,
        perturbs=perturbs,
        target=target,
        source=source_text(facts.sources),
        module=facts.modules[0] if facts.modules else "",
        fx_nodes=() if engine == "eager" else facts.names,
        direction=direction,
    )


def ops_of_graph(graph: Graph, direction: Direction, *, engine: Engine, perturbs: bool) -> dict[Node, GraphOp]:
    """The ops of an FX graph in order: its inputs and constants, and its calls."""
    found: dict[Node, GraphOp] = {}
    traits = traits_of_graph(graph)
    for node in graph.nodes:
        if node.op == "output" or (node.op == "call_module" and node.target == GUARDS):
            continue
        data, facts = node.op in DATA_OPS, facts_of(node)
        info = info_of(facts, direction, engine, perturbs=perturbs)
        reads = () if data else tuple(found[read].index for read in node.all_input_nodes if found[read].data)
        scoped = is_scoped(node)
        found[node] = GraphOp(len(found), info, facts, data=data, reads_data=reads, scoped=scoped, traits=traits[node])
    return found


def is_scoped(node: Node) -> bool:
    """Whether the op, or for a gradient the op that it is the gradient of, was traced in a `data_dump` block.

    The mark goes along from Dynamo's graph to those of AOTAutograd, forward and backward, and through decompositions
    and Inductor's passes. An op that the partitioner computes again in the backward is marked there, too. Graph inputs
    and constants are not: they are dumped with the ops that read them.
    """
    custom = node.meta.get("custom")
    return node.op not in ("placeholder", "get_attr", "output") and isinstance(custom, dict) and KEY in custom
