"""What a variable was when a guard on it failed, read without running any code of the program."""

from __future__ import annotations

import ast
import collections
import enum
import inspect
import re
import types
from typing import Any

from graphprobe.analysis.recompile_guards import ReadGuard

MAX_CHARACTERS = 60
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, collections.OrderedDict, collections.defaultdict)
_PLAIN = (bool, int, float, complex, str, type(None))


class _UnknownError(Exception):
    """The expression leads through something that only the program's code could answer."""


def value_in_frame(check: ReadGuard, f_locals: dict[str, Any], f_globals: dict[str, Any]) -> str | None:
    """The value that the check looked at, as text; None where it cannot be had, or would change something."""
    alias = check.kind == "alias-changed"
    if not check.source or check.kind == "object-freed" or (check.actual is not None and not alias):
        return None
    source = check.source.partition(" and ")[0] if alias else check.source
    try:
        value = _resolve(ast.parse(source, mode="eval").body, f_locals, f_globals)
        return _described(check, value)
    except (_UnknownError, SyntaxError, KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError):
        return None


def _resolve(node: ast.expr, f_locals: dict[str, Any], f_globals: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        if node.id == "G" and "G" not in f_locals:
            return f_globals
        return f_locals[node.id]
    if isinstance(node, ast.Subscript):
        holder = _resolve(node.value, f_locals, f_globals)
        key = ast.literal_eval(node.slice)
        if isinstance(holder, dict):
            return dict.__getitem__(holder, key)
        if isinstance(holder, list):
            return list.__getitem__(holder, key)
        if isinstance(holder, tuple):
            return tuple.__getitem__(holder, key)
        raise _UnknownError
    if isinstance(node, ast.Attribute):
        return _attribute(_resolve(node.value, f_locals, f_globals), node.attr)
    raise _UnknownError


def _attribute(owner: Any, name: str) -> Any:
    """Of the instance itself, or a plain value of its class; properties and `__getattr__` are the program's code."""
    if name == "__dict__":
        return object.__getattribute__(owner, "__dict__")
    value = inspect.getattr_static(owner, name)
    slot = isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType)
    if slot and type(owner).__module__ in ("builtins", "functools"):
        return getattr(owner, name)
    if hasattr(type(value), "__get__") and not isinstance(value, types.FunctionType):
        raise _UnknownError
    return value


def _described(check: ReadGuard, value: Any) -> str | None:
    import torch

    if check.kind == "keys-changed":
        return _keys(value)
    if check.dim is not None:
        if not isinstance(value, torch.Tensor):
            return None
        with torch._C.DisableTorchFunctionSubclass():
            return str(int(value.shape[check.dim]))
    if check.kind == "length-changed":
        return str(len(value)) if type(value) in _CONTAINERS else None
    if check.kind == "alias-changed":
        return "Tensor" if isinstance(value, torch.Tensor) else type(value).__name__
    if check.kind == "type-changed":
        kind = type(value)
        return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, torch.Tensor):
        return "a tensor"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value._name_}"
    if isinstance(value, _PLAIN) and type(value) in _PLAIN:
        return _short(repr(value))
    if isinstance(value, torch.dtype | torch.device | torch.memory_format | torch.layout):
        return str(value)
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
        return value.__qualname__
    return f"a {type(value).__qualname__}"


def _keys(value: Any) -> str | None:
    if not isinstance(value, dict) or len(value) > 20:
        return None
    keys = list(dict.keys(value))
    if not keys:
        return "0 keys"
    return _short(", ".join(map(repr, keys))) if all(type(key) in _PLAIN for key in keys) else None


def _short(text: str) -> str:
    text = re.sub(r"\s+", " ", text)
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"
