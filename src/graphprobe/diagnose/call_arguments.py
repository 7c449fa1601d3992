"""The arguments of a recorded call, put together again, and the function of torch that it names."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import get_overridable_functions

from graphprobe.internals.operators.op_mode import Overload
from graphprobe.numerics.dtypes import limit_named
from graphprobe.store.calls import Scalar

REFUSED = frozenset(
    "backward register_hook register_post_accumulate_grad_hook share_memory_ numpy tolist storage untyped_storage "
    "requires_grad_ __reduce_ex__ __reduce__ __setstate__ __deepcopy__ data_ptr __dlpack__ module_load pin_memory "
    "set_ cuda cpu from_file __setitem__ resize_ resize_as_".split()
)
"""Methods that compute nothing, or do something besides."""

PLAIN_TYPES = frozenset(
    "Tensor int float bool number Scalar SymInt ScalarType Layout Device MemoryFormat complex".split()
)
"""Types of arguments, in an operator's schema, by which it can only compute; optional ones and lists of them, too."""

TEXTS = frozenset(
    "approximate driver ord UPLO reduce rounding_mode mode side indexing equation norm padding_mode padding".split()
)
"""Arguments that are texts and say how to compute. What else is a text may name a file, a group or a device."""

_SIZE = re.compile(r"^torch\.Size\((.*)\)$")
_DTYPE = re.compile(r"^torch\.(\w+)$")
_DEVICE = re.compile(r"^(torch\.)?device\(|^'(cpu|cuda|npu|xpu|mps|hpu|mlu|musa)(:\d+)?'$")


class NotReplayableError(Exception):
    """The call cannot be made again; the text says why."""


@functools.cache
def _allowed() -> frozenset[Callable[..., Any]]:
    """What torch itself calls an operation on tensors. Nothing else that a dump may name is ever called."""
    return frozenset(f for functions in get_overridable_functions().values() for f in functions)


@functools.lru_cache(maxsize=1024)
def function_of(api: str) -> Callable[..., Any]:
    """The function that `torch.nn.functional.linear`, `torch.Tensor.add_`, `aten.mm.default` name.

    Raises:
        NotReplayableError: there is none, or it is no operation on tensors.
    """
    parts = api.removeprefix("torch.ops.").split(".")
    if parts[-1] in REFUSED:
        raise NotReplayableError(f"{api} is not an operation that can be repeated")
    if parts[0] in ("aten", "prims"):
        return _overload(api, parts)
    if parts[0] != "torch":
        raise NotReplayableError(f"{api} is no function of torch")
    value: Any = torch
    for part in parts[1:]:
        value = getattr(value, part, None)
        if value is None:
            raise NotReplayableError(f"this torch has no {api}")
    try:
        known = value in _allowed()
    except TypeError:
        known = False
    if not known:
        raise NotReplayableError(f"{api} is not one of torch's operations on tensors")
    found: Callable[..., Any] = value
    return found


def _overload(api: str, parts: list[str]) -> Callable[..., Any]:
    space = getattr(torch.ops, parts[0])
    packet = getattr(space, parts[1], None)
    overload = getattr(packet, parts[2] if len(parts) > 2 else "default", None)
    if not isinstance(overload, Overload):
        raise NotReplayableError(f"this torch has no {api}")
    inner = parts[1].strip("_")
    if parts[1] in REFUSED or inner in REFUSED or not _only_computes(overload):
        raise NotReplayableError(f"{api} is not an operation that only computes with tensors")
    found: Callable[..., Any] = overload
    return found


def _only_computes(overload: Overload) -> bool:
    """By its schema: it gives tensors, and all it takes are tensors, numbers, and texts that say how to compute."""
    schema = overload._schema
    if not schema.returns or not all(_plain(str(each.type)) for each in schema.returns):
        return False
    given = [(each.name, str(each.type)) for each in schema.arguments]
    if not any("Tensor" in kind for _, kind in given):
        return False
    return all(_plain(kind) or ("str" in kind and name in TEXTS) for name, kind in given)


def _plain(kind: str) -> bool:
    """`Tensor`, `Optional[List[int]]` and their like."""
    return all(word in PLAIN_TYPES for word in re.findall(r"[A-Za-z]+", kind) if word not in ("Optional", "List"))


def is_own(scalar: Scalar) -> bool:
    """Whether an argument belongs to the run it was recorded in: a dtype, a limit of a dtype, or a device."""
    dtype = _DTYPE.match(scalar.text)
    if scalar.type == "float" and limit_named(float(scalar.text)):
        return True
    return _DEVICE.match(scalar.text) is not None or (dtype is not None and _dtype(dtype.group(1)) is not None)


def _dtype(name: str) -> torch.dtype | None:
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else None


def value_of(scalar: Scalar) -> Any:
    """What a recorded `repr` stands for.

    Raises:
        NotReplayableError: it is an object of which there is no more than the `repr`.
    """
    text = scalar.text
    if _DEVICE.match(text):
        return torch.device("cpu")
    size = _SIZE.match(text)
    if size:
        text = size.group(1)
    found = _DTYPE.match(text)
    if found:
        value = getattr(torch, found.group(1), None)
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return value
    if text in ("nan", "inf", "-inf"):
        return float(text)
    try:
        value = _literal(text)
    except (ValueError, SyntaxError, TypeError) as error:
        raise NotReplayableError(f"an argument of type {scalar.type} is known as {text[:60]!r} only") from error
    return torch.Size(value) if size else value


def _literal(text: str) -> Any:
    """A literal, in which slices and an ellipsis may stand."""
    tree = ast.parse(text.strip(), mode="eval").body
    return _built(tree)


def _built(node: ast.expr) -> Any:
    if isinstance(node, ast.Tuple):
        return tuple(_built(item) for item in node.elts)
    if isinstance(node, ast.List):
        return [_built(item) for item in node.elts]
    if isinstance(node, ast.Name) and node.id in ("Ellipsis", "nan", "inf"):
        return ... if node.id == "Ellipsis" else float(node.id)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "slice" and not node.keywords:
        return slice(*(_built(item) for item in node.args))
    if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch."):
        value = getattr(torch, node.attr, None)
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return value
    return ast.literal_eval(node)


def arguments_from(values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """`(args, kwargs)` from values by slot: `input.0`, `input.2.1` (second of the list in third place), `kwarg.bias`.

    Raises:
        NotReplayableError: a place in between is missing.
    """
    args: dict[int, Any] = {}
    kwargs: dict[str, Any] = {}
    for name, value in values.items():
        head, _, rest = name.partition(".")
        if head == "input":
            first, _, inner = rest.partition(".")
            _put(args, int(first), inner, value)
        elif head == "kwarg":
            first, _, inner = rest.partition(".")
            _put(kwargs, first, inner, value)
    if sorted(args) != list(range(len(args))):
        raise NotReplayableError(f"of the positional arguments only {sorted(args)} were recorded")
    return [_settled(args[i]) for i in range(len(args))], {k: _settled(v) for k, v in kwargs.items()}


def _put(into: dict[Any, Any], key: Any, inner: str, value: Any) -> None:
    if not inner:
        into[key] = value
        return
    nested = into.setdefault(key, {})
    if not isinstance(nested, dict):
        raise NotReplayableError(f"argument {key} is recorded both whole and in parts")
    first, _, rest = inner.partition(".")
    _put(nested, int(first) if first.isdecimal() else first, rest, value)


def _settled(value: Any) -> Any:
    """Nested places as a list, nested names as a dict."""
    if not isinstance(value, dict):
        return value
    if all(isinstance(key, int) for key in value):
        if sorted(value) != list(range(len(value))):
            raise NotReplayableError(f"of a list only the places {sorted(value)} were recorded")
        return [_settled(value[i]) for i in range(len(value))]
    return {key: _settled(item) for key, item in value.items()}
