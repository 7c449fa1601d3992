"""Which decomposition is wrong: each op of AOTAutograd's graphs against its decomposition, on the same inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from graphprobe.diagnose.local import Checked, LocalError, Suspect, certainly_wrong, comparable, local_error
from graphprobe.diagnose.rungs import StageGraph
from graphprobe.engine.forked_child import doing
from graphprobe.engine.interpret import copied, flat_outputs, run_graph
from graphprobe.engine.naming import op_of
from graphprobe.internals.aot_backends import inductor_decompositions
from graphprobe.judge.judging import strides as strides_of


def check_decompositions(graph: StageGraph, inputs: Sequence[Any], *, strides: bool = False) -> Checked:
    """Hold each op of a graph against its decomposition.

    With `strides` a result that is laid out otherwise than the op's makes a suspect as well: most programs do not mind.
    """
    table = inductor_decompositions()
    report = Checked()
    found: list[tuple[Node, LocalError]] = []
    numbers = {node: number for number, node in enumerate(graph.graph.graph.nodes, 1)}

    def watch(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        doing(f"{graph.direction}, op {numbers[node]} of {len(numbers)}")
        decomposition = table.get(node.target)
        if decomposition is None or not comparable(op_of(node)):
            return
        try:
            got = decomposition(*[copied(a) for a in args], **{k: copied(v) for k, v in kwargs.items()})
        except Exception as error:
            # What the op itself does is seen when it runs.
            text = f"{type(error).__name__}: {error}"
            found.append((node, certainly_wrong("extra_exception", text)))
            return
        if got is NotImplemented:
            return
        error_of = local_error(op_of(node), node.target, args, kwargs, got)  # type: ignore[arg-type]
        if strides and error_of.answer in ("ok", "better", "unsure"):
            error_of = _layout(node.target, args, kwargs, got) or error_of
        report.note(error_of, node, "decomposition", graph.direction)
        if error_of.answer == "worse":
            found.append((node, error_of))
        passed.add(node.name)

    passed: set[str] = set()
    run = run_graph(graph.graph, inputs, watch=watch)
    failed = run.failed[0] if run.failed is not None else None
    if run.failed is not None and failed is not None and failed.name in passed:
        text = f"uncompiled it raises {type(run.failed[1]).__name__}; its decomposition does not"
        found.append((failed, certainly_wrong("missing_exception", text)))
    report.suspects = [
        Suspect("decomposition", graph.direction, graph.graph, node, run.values, error)
        for node, error in found
        if error.kind != "extra_exception" or failed is not node
    ]
    return report


def _layout(target: Any, args: Any, kwargs: Any, got: Any) -> LocalError | None:
    """A difference in strides between the op's results and `got`."""
    try:
        expected = target(*[copied(a) for a in args], **{k: copied(v) for k, v in kwargs.items()})
    except Exception:  # it will raise again when the graph runs
        return None
    for want, have in zip(flat_outputs(expected), flat_outputs(got), strict=False):
        if isinstance(want, torch.Tensor) and isinstance(have, torch.Tensor) and strides_of(want) != strides_of(have):
            text = f"its decomposition has stride {have.stride()}, the op {want.stride()}"
            return LocalError("worse", "wrong_stride", math.inf, 1.0, text)
    return None
