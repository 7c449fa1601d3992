"""Numbers and dtypes that are written into a graph as arguments of calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

CALLS = ("call_function", "call_method", "call_module")
SLICE = ("start", "stop", "step")


def literals(node: Node) -> Iterator[tuple[str, Any]]:
    """Every number and dtype among the arguments, behind its path, e.g. `args.1.0` or `kwargs.size.0`."""
    for i, value in enumerate(node.args):
        yield from _leaves(f"args.{i}", value)
    for name, value in node.kwargs.items():
        yield from _leaves(f"kwargs.{name}", value)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (bool, int, float, torch.dtype)):
        yield path, value
    elif isinstance(value, slice):
        for name in SLICE:
            yield from _leaves(f"{path}.{name}", getattr(value, name))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _leaves(f"{path}.{i}", item)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(f"{path}.{name}", item)


def put(node: Node, new: Mapping[str, Any]) -> None:
    """Write other literals into the arguments, by path."""
    if new:
        node.args = tuple(_replaced(f"args.{i}", value, new) for i, value in enumerate(node.args))
        node.kwargs = {name: _replaced(f"kwargs.{name}", value, new) for name, value in node.kwargs.items()}


def _replaced(path: str, value: Any, new: Mapping[str, Any]) -> Any:
    if path in new:
        return new[path]
    if isinstance(value, slice):
        return slice(*(_replaced(f"{path}.{name}", getattr(value, name), new) for name in SLICE))
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_replaced(f"{path}.{i}", item, new) for i, item in enumerate(value))
    if isinstance(value, dict):
        return {name: _replaced(f"{path}.{name}", item, new) for name, item in value.items()}
    return value


def calls(gm: GraphModule) -> Iterator[Node]:
    """The calls of the graph itself, in order."""
    for node in gm.graph.nodes:
        if node.op in CALLS:
            yield node


def set_constant(node: Node, value: Any) -> None:
    """Let everything that uses the node get a constant instead; the node itself stays."""

    def chosen(argument: Node) -> Any:
        return value if argument is node else argument

    for user in list(node.users):
        user.args = map_arg(user.args, chosen)
        user.kwargs = map_arg(user.kwargs, chosen)


def put_everywhere(gm: GraphModule, change: Callable[[Any], Any]) -> bool:
    """Change the literals of all calls of the graph; whether any is another now."""
    changed = False
    for node in calls(gm):
        new = {path: change(value) for path, value in literals(node)}
        old = dict(literals(node))
        new = {path: value for path, value in new.items() if type(value) is not type(old[path]) or value != old[path]}
        put(node, new)
        changed = changed or bool(new)
    return changed
