"""Which ops are wrong even when compiled by themselves: the ones to accuse, where their neighbours only look wrong.

Inductor computes an op again in every kernel that needs it. A wrong op therefore shows in values that others make of
it, even where its own value, as it was shown, is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from torch.fx import Node
from torch.fx.node import map_arg

from graphprobe.diagnose.check_case import run_compiled
from graphprobe.diagnose.local import Suspect, comparable, local_error
from graphprobe.diagnose.prove import Prover
from graphprobe.engine.interpret import flat_outputs
from graphprobe.engine.naming import op_of
from graphprobe.engine.subgraph import ancestors, is_item, isolated_calls
from graphprobe.engine.values import capture
from graphprobe.judge.observation import ObservationRecord, read

REACH = 6
"""How many steps back from a suspect its ancestors are tried."""


def alone(suspects: Sequence[Suspect], prover: Prover) -> list[Suspect]:
    """The suspects, and those of their ancestors, that are wrong by themselves; then the suspects they do not explain.

    Suspects of one graph are tried together, in one compilation.
    """
    graphs: dict[int, list[Suspect]] = {}
    for suspect in suspects:
        graphs.setdefault(id(suspect.values), []).append(suspect)
    found: list[Suspect] = []
    for group in graphs.values():
        guilty = _wrong_alone(group, prover)
        found += guilty
        explained = _descendants([s.node for s in guilty])
        found += [s for s in group if s.node not in explained]
    return found


def _wrong_alone(group: Sequence[Suspect], prover: Prover) -> list[Suspect]:
    first = group[0]
    reach = ancestors([s.node for s in group], REACH)
    nodes = [n for n in first.graph.graph.nodes if n in reach and n.op == "call_function" and _can_run(n, first.values)]
    if not nodes:
        return []
    graph, inputs, owners = isolated_calls(first.graph, nodes, first.values)
    prover.compiles += 1
    outcome = run_compiled(
        prover.case(graph, [capture(inputs)], "wrong_value"), prover.compilation.timeout_s, repeats=1
    )
    if outcome.value is None:
        return []
    result = read(msgspec.convert(outcome.value, list[list[ObservationRecord]])[0][0])
    if result.raised is not None:
        return []
    found: list[Suspect] = []
    position = 0
    for node, _ in owners:
        width = len(flat_outputs(first.values[node.name]))
        got = result.outputs[position : position + width]
        position += width
        args, kwargs = (map_arg(part, lambda n: first.values[n.name]) for part in (node.args, node.kwargs))
        error = local_error(op_of(node), node.target, list(args), dict(kwargs), got, rounded=())  # type: ignore[arg-type]
        if error.answer == "worse":
            found.append(Suspect("codegen", first.direction, first.graph, node, first.values, error, wrong_alone=True))
    return found


def _can_run(node: Node, values: Mapping[str, Any]) -> bool:
    known = all(n.op == "get_attr" or n.name in values for n in node.all_input_nodes)
    return known and node.name in values and not is_item(node) and comparable(op_of(node))


def _descendants(nodes: Sequence[Node]) -> set[Node]:
    found = set(nodes)
    waiting = list(nodes)
    while waiting:
        for user in waiting.pop().users:
            if user not in found:
                found.add(user)
                waiting.append(user)
    return found
