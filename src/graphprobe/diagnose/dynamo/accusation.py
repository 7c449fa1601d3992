"""What Dynamo got wrong: a node of its graph, or a piece of the user's code."""

from __future__ import annotations

import builtins
from typing import Any

import msgspec
from torch.fx import Node

from graphprobe.diagnose.dynamo.frame_places import users_source
from graphprobe.engine.naming import module_of, op_of
from graphprobe.internals.names import require

utils: Any = require("torch._dynamo", "utils", purpose="naming functions of numpy's")

WRAPPED = "wrapped_"

_OPERATORS = """
    sub subtract, mul multiply, truediv true_divide, floordiv floor_divide, neg negative, eq equal, ne not_equal,
    lt less, le less_equal, gt greater, ge greater_equal
"""
OPERATORS: dict[str, str] = dict(map(str.split, _OPERATORS.split(",")))
"""Functions of numpy's that go under other names as operators."""


class Accused(msgspec.Struct):
    """What Dynamo got wrong, where it comes from, and what is wrong.

    Attributes:
        op: the op, or what the Python code calls.
        also: what it may be, too, the likeliest first.
        called_from: the program's line that leads to a source in a library.
    """

    op: str
    node: str | None
    source: str | None
    module: str | None
    reason: str
    also: list[str] = []
    called_from: str | None = None


def accuse(node: Node, reason: str) -> Accused:
    """A node as the one that is to blame."""
    return Accused(numpy_name(node) or op_of(node), node.name, users_source(node), module_of(node), reason)


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
