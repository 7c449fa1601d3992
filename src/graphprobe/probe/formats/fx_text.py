"""An FX graph as text, and a fast fingerprint that changes when the graph does."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from graphprobe.engine.subgraph import attribute
from graphprobe.internals.quiet import symbol_key

META_KEYS = ("val", "example_value", "tensor_meta")

_NAMES: dict[int, tuple[object, str]] = {}
"""Text of call targets by identity; the target itself is kept so that its identity cannot be reused."""


def graph_text(gm: fx.GraphModule) -> str:
    """What the `.txt` files hold: counts, inputs and outputs as comments, then the graph as readable Python.

    Never raises: a graph in the middle of a pass, which torch cannot print with annotations, is printed without them,
    or node by node; the text then says so.
    """
    body, note = _body(gm)
    try:
        head = _head(gm)
    except Exception as error:
        head = [f"graph header unavailable: {type(error).__name__}: {error}"]
    lines = [f"# {line}" for line in head + ([note] if note else [])]
    return "\n".join(lines) + "\n\n" + body.rstrip() + "\n"


def _body(gm: fx.GraphModule) -> tuple[str, str]:
    forms: tuple[Callable[[], str], ...] = (
        lambda: gm.print_readable(print_output=False, include_stride=True, include_device=True),
        lambda: str(gm.graph.python_code("self").src),
        lambda: str(gm.graph),
        lambda: "\n".join(f"{n.op} {n.name} {n.target}" for n in gm.graph.nodes),
    )
    note = ""
    for form in forms:
        try:
            return form(), note
        except Exception as error:
            note = f"simplified: the fuller form failed with {type(error).__name__}: {str(error).splitlines()[:1]}"
    return "", note


def _head(gm: fx.GraphModule) -> list[str]:
    nodes = list(gm.graph.nodes)
    placeholders = [n.name for n in nodes if n.op == "placeholder"]
    outputs = [str(n.args[0]) if n.args else "" for n in nodes if n.op == "output"]
    nested = [name for name, module in gm.named_modules() if name and isinstance(module, fx.GraphModule)]
    lines = [f"{len(nodes)} nodes", f"inputs ({len(placeholders)}): {', '.join(placeholders)}"]
    lines += [f"outputs: {text}" for text in outputs]
    return lines + ([f"nested graphs: {', '.join(nested)}"] if nested else [])


def node_names(gm: fx.GraphModule) -> list[str]:
    """Names of all nodes, those of nested graphs behind the name of their graph: `true_graph_0.sin`."""
    graphs = [(path, module) for path, module in gm.named_modules() if isinstance(module, fx.GraphModule)]
    return [f"{path}.{node.name}" if path else node.name for path, module in graphs for node in module.graph.nodes]


def fingerprint(gm: fx.GraphModule) -> bytes:
    """16 bytes that change when nodes, targets, arguments, names, called nested graphs or value metadata change.

    Metadata count as far as they are dtype, shape and stride of `val` (or `example_value`, `tensor_meta`). Two graphs
    of one process with the same fingerprint print the same graph; across processes it may differ for the same graph,
    since objects without a stable text count by identity. Unlike the text, it is cheap enough to take around each pass.
    """
    return fingerprint_from(node_marks(gm))


def fingerprint_from(marks: dict[int, list[str]]) -> bytes:
    """The fingerprint of a graph with these marks."""
    text = "\n{\n".join(["\n".join(nodes) for nodes in marks.values()])
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def node_marks(gm: fx.GraphModule) -> dict[int, list[str]]:
    """By identity of the graph and of each that it calls, a text for each node that changes when the node does."""
    marks: dict[int, list[str]] = {}
    _add_graph(gm, marks)
    return marks


def _add_graph(gm: fx.GraphModule, marks: dict[int, list[str]]) -> None:
    add = marks.setdefault(id(gm), []).append
    for node in gm.graph.nodes:
        op, target = node.op, node.target
        label = target if type(target) is str else _callable_text(target)
        kwargs = _argument(node.kwargs) if node.kwargs else ""
        more = ""
        if type(target) is str and (op == "get_attr" or op == "call_module"):
            held = attribute(gm, target)
            if isinstance(held, fx.GraphModule):
                if id(held) in marks:
                    more = f" again {id(held)}"
                else:
                    _add_graph(held, marks)
            elif isinstance(held, torch.Tensor):
                more = f" tensor {id(held)} {_value(held)}"
        add(f"{node.name}={op[-6:]} {label}{_argument(node.args)}{kwargs}{_meta(node.meta)}{more}")


def _callable_text(target: object) -> str:
    found = _NAMES.get(id(target))
    if found is None:
        if len(_NAMES) > 20_000:
            _NAMES.clear()
        found = _NAMES[id(target)] = (target, f"{getattr(target, '__module__', '')}.{target}@{id(target)}")
    return found[1]


def _argument(value: Any) -> str:
    kind = type(value)
    if kind is fx.Node:
        return f"%{value.name}"
    if kind is int or kind is str or kind is bool or value is None:
        return repr(value)
    if kind is float:
        return struct.pack("<d", value).hex() if value != value else repr(value)
    if isinstance(value, (tuple, list)):
        return f"{'(' if isinstance(value, tuple) else '['}{','.join([_argument(v) for v in value])})"
    if isinstance(value, dict):
        return "{" + ",".join([f"{k}:{_argument(v)}" for k, v in value.items()]) + "}"
    if kind is slice:
        return f"slice({_argument(value.start)},{_argument(value.stop)},{_argument(value.step)})"
    if kind is torch.dtype or kind is torch.device or kind is torch.memory_format or kind is torch.layout:
        return str(value)
    return _callable_text(value) if callable(value) else _other(value)


def _other(value: object) -> str:
    try:
        return f"{type(value).__name__}:{value!r}"
    except Exception:
        return f"{type(value).__name__}@{id(value)}"


def _meta(meta: dict[str, Any]) -> str:
    for key in META_KEYS:
        value = meta.get(key)
        if value is not None:
            return ":" + _value(value)
    return ""


def _value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        try:
            return f"{value.dtype}{_sizes(value.shape)}{_sizes(value.stride())}"
        except Exception:
            return f"{value.dtype}?"
    if isinstance(value, (tuple, list)):
        if hasattr(value, "_fields"):  # TensorMetadata: shape, dtype, requires_grad, stride, …
            return str(tuple(value)[:4])
        return "[" + ",".join([_value(v) for v in value]) + "]"
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return str(symbol_key(value))
    return str(value) if isinstance(value, (int, float)) else type(value).__name__


def _sizes(sizes: Any) -> str:
    plain = tuple([n if type(n) is int else symbol_key(n) for n in sizes])
    return str(plain)
