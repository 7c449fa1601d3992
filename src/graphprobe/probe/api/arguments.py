"""Arguments and results of a call, taken apart into tensors and the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import torch

from graphprobe.probe.api.value_slots import PLAIN
from graphprobe.store.api_records import ApiSlot, Slot
from graphprobe.store.calls import Scalar, SlotRole
from graphprobe.store.dump_records import MAX_TEXT

OnTensor = Callable[[str, SlotRole, torch.Tensor], None]

INPUTS = tuple(f"input.{number}" for number in range(64))
OUTPUTS = tuple(f"output.{number}" for number in range(64))
_PLAIN_SCALARS = frozenset({int, float, bool, str, type(None), complex})
_TOLD = (
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, slice, type(Ellipsis), Enum, range, bytes,
)  # fmt: skip
"""Types whose `repr` is the same in every process."""
_MAX_DEPTH = 8

_cache: dict[tuple[type, Any], Scalar] = {}
_slots: dict[tuple[str, type, Any], Slot] = {}


def output_name(number: int) -> str:
    """`output.3`."""
    return OUTPUTS[number] if number < len(OUTPUTS) else f"output.{number}"


def take(name: str, role: SlotRole, value: Any, slots: list[Slot], on_tensor: OnTensor, depth: int = 0) -> None:
    """Put `value` into `slots` under `name`; each tensor in it, however deep, goes to `on_tensor` in its place."""
    kind = type(value)
    if kind in PLAIN:
        on_tensor(name, role, value)
    elif kind in _PLAIN_SCALARS:
        slots.append(scalar_slot(name, role, value))
    elif isinstance(value, torch.Tensor):
        on_tensor(name, role, value)
    elif depth < _MAX_DEPTH and isinstance(value, list | tuple) and has_tensor(value):
        for number, item in enumerate(value):
            take(f"{name}.{number}", role, item, slots, on_tensor, depth + 1)
    elif depth < _MAX_DEPTH and isinstance(value, Mapping) and has_tensor(value):
        for key, item in value.items():
            take(f"{name}.{key}", role, item, slots, on_tensor, depth + 1)
    else:
        slots.append(ApiSlot(name, role, None, None, scalar_of(value)))


def scalar_slot(name: str, role: SlotRole, value: Any) -> Slot:
    """The slot of a number, a text or None; programs pass the same ones again and again."""
    if value == 0 or role != "input":  # the sign of zero is in the text and not in the key
        return ApiSlot(name, role, None, None, scalar_of(value))
    key = (name, type(value), value)
    found = _slots.get(key)
    if found is None:
        found = ApiSlot(name, role, None, None, scalar_of(value))
        if len(_slots) < 4096:
            _slots[key] = found
    return found


def has_tensor(value: Any, depth: int = 0) -> bool:
    """Whether there is a tensor in a list, tuple or mapping, or `value` is one."""
    if isinstance(value, torch.Tensor):
        return True
    if depth < _MAX_DEPTH and isinstance(value, list | tuple):
        return any(has_tensor(item, depth + 1) for item in value)
    if depth < _MAX_DEPTH and isinstance(value, Mapping):
        return any(has_tensor(item, depth + 1) for item in value.values())
    return False


def scalar_of(value: Any) -> Scalar:
    """How an argument that is no tensor is kept; of a type with no text of its own, the name alone."""
    kind = type(value)
    if kind in _PLAIN_SCALARS:
        # The sign of zero is in the text and not in the key.
        if kind is float and value == 0:
            return Scalar("float", repr(value))
        key = (kind, value)
        found = _cache.get(key)
        if found is None:
            found = Scalar(kind.__name__, _cut(repr(value)))
            if len(_cache) < 4096:
                _cache[key] = found
        return found
    return Scalar(kind.__name__, _cut(_text(value, 0)))


def _text(value: Any, depth: int) -> str:
    kind = type(value)
    if kind in _PLAIN_SCALARS or isinstance(value, _TOLD):
        return repr(value)
    if depth < _MAX_DEPTH and isinstance(value, list | tuple) and len(value) <= MAX_TEXT:
        inner = ", ".join(_text(item, depth + 1) for item in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if depth < _MAX_DEPTH and isinstance(value, dict) and len(value) <= MAX_TEXT:
        inner = ", ".join(f"{_text(key, depth + 1)}: {_text(item, depth + 1)}" for key, item in value.items())
        return f"{{{inner}}}"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{getattr(value, '__module__', '')}.{value.__qualname__}"
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return str(value)
    return f"<{kind.__module__}.{kind.__qualname__}>"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"
