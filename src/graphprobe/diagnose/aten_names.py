"""The aten ops that one of Dynamo's nodes stands for."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.diagnose.kernel_check import VIEWS_AND_SUCH
from graphprobe.engine.isolate import isolated
from graphprobe.engine.naming import name_of, op_of
from graphprobe.engine.subgraph import isolated_calls
from graphprobe.internals.operators.operators import OpMode, Overload


def aten_ops(graph: GraphModule, node: Node, values: Mapping[str, Any]) -> list[str]:
    """The aten ops that one of Dynamo's nodes stands for, the one of the most telling name first; views come last.

    Of a node that raises, those that it calls until then, the last one first.
    """
    made, inputs, _ = isolated_calls(graph, [node], values)

    def traced() -> list[str]:
        called: list[str] = []

        def around(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            called.insert(0, name_of(op))
            return op(*args, **kwargs)

        with torch.no_grad():
            try:
                return [op_of(n) for n in make_fx(made)(*inputs).graph.nodes if n.op == "call_function"]
            except Exception:
                with OpMode(around), contextlib.suppress(Exception):
                    made(*inputs)
                return called

    names: list[str] = isolated(traced).value or []  # none of an op that tracing has no rule for, or that ends it
    stem = op_of(node).rpartition(".")[2].strip("_").split("_")[0]
    return sorted(dict.fromkeys(names), key=lambda name: (name in VIEWS_AND_SUCH, stem not in name))


def aten_namesakes(name: str) -> list[str]:
    """The aten op of the same name as a function or method of torch, as the op of two tensors where there is one."""
    packet = getattr(torch.ops.aten, name.strip("_"), None)
    overloads: list[str] = packet.overloads() if packet is not None else []
    known = next((overload for overload in ("Tensor", "default", *overloads) if overload in overloads), None)
    return [f"aten.{name.strip('_')}.{known}"] if known is not None else []
