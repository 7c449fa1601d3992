"""A scheduler node in words: what it reads and writes, over which ranges, and its loop body.

Inductor's own `debug_str` compiles a Python function for each loop body just to print it; this prints the body's graph
as it stands, and remembers it, since most bodies are the same before and after fusion.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

Cache = dict[tuple[int, ...], tuple[Any, str]]
"""Texts by identities of what they describe; that is kept, so that an identity cannot come back in another object."""


def node_text(node: Any, cache: Cache) -> str:
    """The long form of one node; a fused node's holds its members'."""
    members = getattr(node, "snodes", None)
    if members is None:
        # Reordering loops gives a node another body and other dependencies.
        parts = (node, getattr(node, "_body", None), node.read_writes)
        return _remembered(parts, cache, lambda: _own_text(node, cache))
    lines = [_head(node), f"members = [{', '.join(member.get_name() for member in members)}]"]
    for member in members:
        lines += ["", *(f"    {line}" if line else "" for line in node_text(member, cache).splitlines())]
    return "\n".join(lines)


def _own_text(node: Any, cache: Cache) -> str:
    lines = [_head(node)]
    for what in ("reads", "writes"):
        deps = sorted(_remembered((dep,), cache, partial(_dep_text, dep)) for dep in getattr(node.read_writes, what))
        lines.append(f"{what} = [{', '.join(deps)}]")
    for out in node.get_outputs():
        buffer = out.node
        lines.append(f"{out.get_name()}: {getattr(buffer, 'layout', None)}")
    kernel = getattr(node.node, "python_kernel_name", None)
    if kernel:
        lines.append(f"kernel = {kernel}")
    if hasattr(node, "get_ranges"):
        iteration, reduction = node.get_ranges()
        lines.append(f"ranges = {_tuple(iteration)}, reduction ranges = {_tuple(reduction)}")
    body = getattr(node, "_body", None)
    if hasattr(body, "root_block"):
        lines += _remembered((body,), cache, lambda: _body_text(body)).splitlines()
    return "\n".join(lines)


def _head(node: Any) -> str:
    inner = getattr(node, "node", None)
    return f"{node.get_name()}: {type(node).__name__}({type(inner).__name__ if inner is not None else ''})"


def _dep_text(dep: Any) -> str:
    kind = type(dep).__name__
    # Only this kind knows which elements; the others raise when asked.
    return f"{dep.name}[{dep.index}]" if kind == "MemoryDep" else f"{kind}:{dep.name}"


def _body_text(body: Any) -> str:
    ranges = ", ".join(f"{name}: {size}" for name, size in body.var_ranges.items())
    lines = [f"for {ranges}:" if ranges else "once:"]
    lines += [f"    {name} = {expression}" for name, expression in body.indexing_exprs.items()]
    for name, block in (("body", body.root_block), *body.subblocks.items()):
        lines.append(f"    {name}:")
        lines += [f"        {line}" for line in map(_line, block.graph.nodes) if line]
    return "\n".join(lines)


def _line(node: Any) -> str:
    if node.op == "placeholder":
        return ""
    if node.op == "output":
        return f"return {_value(node.args[0])}"
    # The first argument of a method is the `ops` handler itself.
    args = node.args[1:] if node.op == "call_method" else node.args
    given = [_value(a) for a in args] + [f"{key}={_value(v)}" for key, v in node.kwargs.items()]
    if node.op == "call_module" and node.target == "get_index":
        return f"{node.name} = {node.args[0] if node.args else ''}"
    owner = "ops." if node.op == "call_method" else ""
    return f"{node.name} = {owner}{node.target}({', '.join(given)})"


def _value(value: Any) -> str:
    return str(value.name) if hasattr(value, "op") and hasattr(value, "name") else repr(value)


def _tuple(values: Any) -> str:
    return f"({', '.join(str(v) for v in values)})"


def _remembered(parts: tuple[Any, ...], cache: Cache, make: Callable[[], str]) -> str:
    key = tuple(map(id, parts))
    if key not in cache:
        cache[key] = (parts, make())
    return cache[key][1]
