"""Where a node comes from: the user's source line, the nn.Module, the name of the op."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.engine.forked_child import isolated
from graphprobe.engine.subgraph import isolated_calls
from graphprobe.internals.dynamo.only_function import GENERATED
from graphprobe.internals.operators.operators import OpMode, Overload, operator_of

LINE = re.compile(r'File "([^"]*)", line (\d+)')
LIBRARY = re.compile(r"[/\\](?:(?:site|dist)-packages|lib[/\\]python3\.\d+)[/\\]")
VIEWS_AND_SUCH = frozenset(
    "aten.view.default aten.reshape.default aten.permute.default aten.expand.default aten.unsqueeze.default "
    "aten.squeeze.dim aten.transpose.int aten.t.default aten.alias.default".split()
)

NO_MODULE = "_empty_nn_module_stack"
"""Begins the path that torch.export writes where it knows of no module."""

TORCH = os.path.join(os.path.dirname(torch.__file__), "")
"""The folder of torch's own files, with a separator behind it."""


def source_of(node: Node) -> str | None:
    """`file:line` of the innermost line outside torch that made the node, or else inside; None when it is not known.

    A line of a graph's own code, which a trace of that graph leaves, is none.
    """
    found = [place for place in LINE.findall(node.stack_trace or "") if not place[0].startswith(GENERATED)]
    if not found:
        return None
    file, line = next((place for place in reversed(found) if not place[0].startswith(TORCH)), found[-1])
    return f"{file}:{line}"


def program_line_of(node: Node) -> str | None:
    """`file:line` of the program's innermost line that leads to the node, where `source_of` has a library's line."""
    own = [f"{file}:{line}" for file, line in LINE.findall(node.stack_trace or "") if not is_library(file)]
    return own[-1] if own and is_library(source_of(node) or "") else None


def is_library(place: str) -> bool:
    """Whether a file, or a line of it, is torch's, Python's, or an installed package's."""
    return place.startswith(TORCH) or LIBRARY.search(place) is not None


def short_place(file: str, line: int | str) -> str:
    """`file:line`, the file relative if it is below here."""
    below = os.path.relpath(file) if os.path.exists(file) else file
    return f"{file if below.startswith('..') else below}:{line}"


def module_of(node: Node) -> str | None:
    """Dotted path of the module whose forward made the node, e.g. `blocks.3.mlp`; None when it is not known."""
    entries = _module_stack(node)
    if not entries:
        custom = node.meta.get("custom")  # where a program annotates its modules by torch.fx.traceback
        return str(custom.get("module_fqn") or "") or None if isinstance(custom, dict) else None
    text = re.sub(r"^[LG]\['[^']*'\]|^L__\w*?___?|^self\b", "", entries[-1][0])
    text = re.sub(r"\['?([^'\]]*)'?\]", r".\1", text)
    return text.replace("._modules.", ".").replace("_modules.", "").strip(".") or None


def module_in_words(node: Node) -> str | None:
    """`7 (Block) of Sequential`: path and class of the module whose forward made the node, and the outermost class."""
    entries, path = _module_stack(node), module_of(node)
    kinds = [getattr(kind, "__qualname__", str(kind)).rpartition(".")[2] for _, kind, *_ in entries]
    return f"{path} ({kinds[-1]}) of {kinds[0]}" if path is not None and len(kinds) > 1 else None


def _module_stack(node: Node) -> list[tuple[Any, ...]]:
    """Path and class of each module around a node, from the outermost one on."""
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    known = [entry for entry in stack.values() if isinstance(entry, tuple) and len(entry) > 1 and entry[0]]
    return [entry for entry in known if not entry[0].startswith(NO_MODULE)]


def op_of(node: Node) -> str:
    """`aten.relu.default`, `torch.nn.functional.relu`, `torch.Tensor.sin`, `operator.getitem`."""
    target: Any = node.target
    if node.op == "call_method":
        return f"torch.Tensor.{target}"
    if isinstance(target, str):
        return target
    return name_of(target)


def name_of(target: Any) -> str:
    """The name of a function or operator, as `op_of` gives it."""
    operator = operator_of(target)
    if operator is not None:
        return ".".join(filter(None, (operator.namespace, operator.name, operator.overload)))
    module = (getattr(target, "__module__", None) or "torch").lstrip("_")
    return f"{module}.{getattr(target, '__name__', target)}"


def aten_behind(node: Node) -> list[str]:
    """Of an op of another name, what it is in ATen, if that is known; of one in ATen what it was decomposed from.

    E.g. `aten.max_pool2d_with_indices.default` of Inductor's own op for it, `aten.add_` of `torch.Tensor.add_`.
    """
    op = op_of(node)
    original = node.meta.get("original_aten")
    if original is not None:
        return [name_of(original)] if name_of(original) != op else []
    if op.startswith("aten."):
        return []
    name = op.rpartition(".")[2]
    return [f"aten.{name}"] if op.startswith("torch.") and hasattr(torch.ops.aten, name) else []


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
