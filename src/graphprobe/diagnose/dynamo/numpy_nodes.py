"""Nodes of Dynamo's graphs that stand for functions of numpy's: their names, and what numpy itself computes."""

from __future__ import annotations

import builtins
import contextlib
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from graphprobe.engine.interpret import copied
from graphprobe.engine.naming import name_of
from graphprobe.internals.names import require
from graphprobe.internals.operators.operators import OpMode
from graphprobe.internals.tensors import tree_map

utils: Any = require("torch._dynamo", "utils", purpose="naming functions of numpy's")

MOST_OPS = 3
"""ATen ops that are named of one function."""

WRAPPED = "wrapped_"

OPERATORS = {
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "neg": "negative",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
"""Functions of numpy's that go under other names as operators."""


def numpy_name(node: Node) -> str | None:
    """`numpy.cumsum` of a node that stands for this function, for the method or operator; None for other nodes."""
    target: Any = node.target
    if isinstance(target, utils.numpy_to_tensor_wrapper):
        module = str(getattr(target.f, "__module__", "")).replace("torch._numpy", "numpy")
        name = str(getattr(target.f, "__name__", ""))
        inner = module.partition("numpy.")[2]
        return f"numpy.{inner}.{name}" if inner and not inner.startswith("_") else f"numpy.{name}"
    if isinstance(target, (utils.numpy_method_wrapper, utils.numpy_operator_wrapper)):
        method = str(target.__name__).removeprefix(WRAPPED)
        name = method.strip("_")
        if method.startswith("__") and hasattr(builtins, name):
            return name  # what the program calls: `round(array)`
        return f"numpy.{OPERATORS.get(name, name)}"
    if target is utils.numpy_attr_wrapper:
        return f"numpy.ndarray.{node.args[1]}"
    return None


def computed_by_numpy(node: Node, args: Any, kwargs: Any) -> torch.Tensor | None:
    """The result that numpy gives for these arguments; None where it gives no array, or random numbers."""
    target: Any = node.target
    name = numpy_name(node) or ""
    if name.startswith("numpy.random"):
        return None
    with contextlib.suppress(Exception):
        args, kwargs = tree_map(_to_numpy, (args, kwargs))
        if isinstance(target, utils.numpy_method_wrapper):
            result = getattr(args[0], target.method)(*args[1:], **kwargs)
        elif isinstance(target, utils.numpy_operator_wrapper):
            result = target.op(*args)
        elif target is utils.numpy_attr_wrapper:
            result = getattr(args[0], args[1])
        else:
            function: Any = np
            for part in name.split(".")[1:]:
                function = getattr(function, part)
            result = function(*args, **kwargs)
        return torch.as_tensor(np.asarray(result).copy())
    return None


def _to_numpy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy().copy()
    module = str(getattr(value, "__module__", ""))
    if module.startswith("torch._numpy") and hasattr(value, "__name__"):  # a dtype, say
        return getattr(np, value.__name__, value)
    return value


def aten_of(node: Node, args: Any, kwargs: Any) -> list[str]:
    """The ATen ops that a node runs, the one of its own name first."""
    function: Any = node.target
    seen: list[str] = []

    def around(op: Any, given: Any, named: Any) -> Any:
        seen.append(name_of(op))
        return op(*given, **named)

    with contextlib.suppress(Exception), OpMode(around):
        function(*copied(args), **kwargs)
    name = (numpy_name(node) or "").rpartition(".")[2]
    ops = dict.fromkeys(op for op in seen if not op.startswith(("aten.detach", "aten.clone", "aten.lift")))
    return sorted(ops, key=lambda op: op.split(".")[1] != name)[:MOST_OPS]
