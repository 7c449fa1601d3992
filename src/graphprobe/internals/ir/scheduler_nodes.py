"""Reads Inductor's scheduler nodes, configuration and symbols into neutral records, and writes a node as text.

Inductor's own `debug_str` compiles a Python function for each loop body just to print it; this prints the body's graph
as it stands, and remembers it, since most bodies are the same before and after fusion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch._inductor import config as inductor_config
from torch._inductor import dependencies
from torch._inductor.utils import get_donated_idxs
from torch._inductor.virtualized import V

from graphprobe.internals.ir.records import IRBuffer, IRGraph, IRNode, NodeKind, NodeOrigin, source_line
from graphprobe.store.schema import is_plain_data

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
        lines.append(f"ranges = {_bracketed(iteration)}, reduction ranges = {_bracketed(reduction)}")
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


def _bracketed(values: Any) -> str:
    return f"({', '.join(str(v) for v in values)})"


def _remembered(parts: tuple[Any, ...], cache: Cache, make: Callable[[], str]) -> str:
    key = tuple(map(id, parts))
    if key not in cache:
        cache[key] = (parts, make())
    return cache[key][1]


# <rows>
def ir_kind(node: Any) -> NodeKind:
    names = [cls.__name__ for cls in type(node).__mro__]
    if "ForeachKernelSchedulerNode" in names:
        return "foreach"
    if "GroupedSchedulerNode" in names:
        return "grouped"
    if "FusedSchedulerNode" in names:
        return "fused"
    if node.is_template():
        return "template"
    if node.is_extern():
        return "extern"
    if "NopKernelSchedulerNode" in names:
        return "nop"
    return "compute" if "SchedulerNode" in names else "other"


def ir_buffer(buffer: Any) -> tuple[str, str | None, list[str] | None, list[str] | None, str | None]:
    """Name, dtype, shape, stride, device; None for what the buffer has not, e.g. the tuple of a multi-output call."""
    layout = getattr(buffer, "layout", None)
    if layout is None or not hasattr(layout, "dtype"):  # what a collective writes in place has a size and no dtype
        return (buffer.get_name(), None, None, None, None)
    dtype = str(layout.dtype).removeprefix("torch.")
    shape, stride = [str(n) for n in layout.size], [str(n) for n in layout.stride]
    return (buffer.get_name(), dtype, shape, stride, str(layout.device))


def ir_members(node: Any) -> list[str]:
    return [member.get_name() for member in node.get_nodes()] if hasattr(node, "snodes") else []


def ir_row(node: Any) -> tuple[str, str, list[str], list[Any]]:
    """What must be the same when the graph is lowered again: name, kind, fused members, outputs."""
    return (node.get_name(), ir_kind(node), ir_members(node), [ir_buffer(out.node) for out in node.get_outputs()])


# </rows>


def rows_source() -> str:
    """Source of `ir_row`, for scripts that lower a graph again."""
    text = Path(__file__).read_text("utf-8")
    return text.split("# <rows>\n", 1)[1].split("# </rows>\n", 1)[0].replace("-> NodeKind", "-> str").strip() + "\n"


def ir_graph(nodes: Sequence[Any], cache: Cache | None = None) -> IRGraph:
    """The scheduler's nodes as records; call it while Inductor reports them, its graph handler is read.

    Args:
        nodes: what `log_ir_pre_fusion` or `log_ir_post_fusion` were called with (`BaseSchedulerNode`s).
        cache: texts of nodes, handed from the call before fusion to the one after.
    """
    graph = V.graph
    cache = {} if cache is None else cache
    position: dict[str, int] = {}
    if isinstance(module := getattr(graph, "module", None), fx.GraphModule):
        position = {node.name: i for i, node in enumerate(module.graph.nodes)}
    inputs = [_input(name, value) for name, value in graph.graph_inputs.items()]
    inputs += [_constant(name, value) for name, value in graph.constants.items()]
    try:
        outputs = tuple(str(name) for name in graph.get_output_names())
    except Exception:  # not lowered to the end
        outputs = ()
    name = str(graph.name) if type(graph).__name__ == "SubgraphLowering" else ""
    return IRGraph(
        name=name, nodes=tuple(_node(node, position, cache) for node in nodes), inputs=tuple(inputs), outputs=outputs
    )


def _node(node: Any, position: dict[str, int], cache: Cache) -> IRNode:
    members = [member for member in node.get_nodes() if member.node is not None]
    origins = {origin.name: origin for member in members for origin in (member.node.get_origins() or ())}
    kernels = [str(name) for member in members if (name := getattr(member.node, "python_kernel_name", None))]
    written = {out.get_name() for out in node.get_outputs()}
    reads = [d.name for d in node.read_writes.reads if not isinstance(d, dependencies.WeakDep)]
    kind_of_ir = type(node.node).__name__ if node.node is not None else ""
    return IRNode(
        name=node.get_name(),
        kind=ir_kind(node),
        type=f"{type(node).__name__}({kind_of_ir})",
        inputs=tuple(name for name in dict.fromkeys(reads) if name not in written),
        outputs=tuple(_output(out) for out in node.get_outputs()),
        origins=tuple(_origin(origins[key]) for key in sorted(origins, key=lambda k: (position.get(k, -1), k))),
        members=tuple(ir_members(node)),
        ranges=_ranges(node),
        kernel=", ".join(kernels) or None,
        text=node_text(node, cache),
    )


def _ranges(node: Any) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    from torch._inductor import scheduler  # slow to import, and loaded where there is a node

    found = [member.get_ranges() for member in node.get_nodes() if isinstance(member, scheduler.SchedulerNode)]
    if not found or not isinstance(node, (scheduler.SchedulerNode, scheduler.FusedSchedulerNode)):
        return None
    # A fused kernel loops over what its reduction, or else its first member, loops over.
    loops = next((pair for pair in found if pair[1]), found[0])
    return tuple(str(n) for n in loops[0]), tuple(str(n) for n in loops[1])


def _output(out: Any) -> IRBuffer:
    name, dtype, shape, stride, device = ir_buffer(out.node)
    aliases, mutates = _names(out.get_aliases()), _names(out.get_mutations())
    return IRBuffer(name, dtype, _tuple(shape), _tuple(stride), device, aliases, mutates)


def _tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)


def _names(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(str(value) for value in values)


def _input(name: str, value: Any) -> IRBuffer:
    try:
        _, dtype, shape, stride, device = ir_buffer(value)
        if dtype is None and hasattr(value, "get_layout"):
            layout = value.get_layout()
            dtype, device = str(layout.dtype).removeprefix("torch."), str(layout.device)
            shape, stride = [str(n) for n in layout.size], [str(n) for n in layout.stride]
    except Exception:  # a symbolic number, a script object
        dtype = shape = stride = device = None
    if dtype is None and isinstance(value, sympy.Expr):
        dtype, shape = ("int64" if value.is_integer else "float64"), []
    return IRBuffer(name, dtype, _tuple(shape), _tuple(stride), device)


def _constant(name: str, value: torch.Tensor) -> IRBuffer:
    shape, stride = tuple(str(n) for n in value.shape), tuple(str(n) for n in value.stride())
    return IRBuffer(name, str(value.dtype).removeprefix("torch."), shape, stride, str(value.device))


def _origin(node: Any) -> NodeOrigin:
    target = node.meta.get("original_aten") or node.target
    return NodeOrigin(node.name, target if isinstance(target, str) else str(target), source_line(node) or None)


def donated_inputs() -> tuple[int, ...]:
    """Positions of the inputs that the backward being compiled may overwrite; empty outside AOTAutograd."""
    return tuple(get_donated_idxs() or ())


def config_overrides() -> dict[str, object]:
    """Inductor settings in force that differ from their defaults and are plain values."""
    current = inductor_config.get_config_copy()
    entries = inductor_config._config  # type: ignore[attr-defined]
    found = {name: (value, entries[name].default) for name, value in current.items()}
    return {name: value for name, (value, default) in found.items() if is_plain_data(value) and value != default}


def symbols(values: Iterable[object]) -> tuple[list[dict[str, Any]], list[str]]:
    """The symbols of the shape environment that symbolic sizes among `values` belong to, and the guards on them.

    Returns:
        One dict a symbol (`name`, `value`, `low`, `high`; None where unbounded), and the guards as expressions.
    """
    env = next((e for value in values for e in _environments(value)), None)
    if env is None:
        return [], []
    found: list[dict[str, Any]] = []
    for symbol, value in env.backed_var_to_val.items():
        bounds = env.var_to_range.get(symbol)
        low, high = (_bound(bounds.lower), _bound(bounds.upper)) if bounds is not None else (None, None)
        if symbol.is_integer and symbol not in env.replacements:
            positive = bool(symbol.is_positive)
            found.append({"name": symbol.name, "value": int(value), "low": low, "high": high, "positive": positive})
    known = {row["name"] for row in found}
    guards = [guard.expr for guard in env.guards]
    return found, [str(expr) for expr in guards if {symbol.name for symbol in expr.free_symbols} <= known]


def _bound(value: Any) -> int | None:
    return int(value) if value.is_number and value.is_finite and abs(value) < 2**62 else None


def _environments(value: object) -> list[Any]:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return [value.node.shape_env]
    if isinstance(value, torch.Tensor):
        numbers = [*value.shape, *value.stride()]
        return [n.node.shape_env for n in numbers if isinstance(n, torch.SymInt)]
    return []
