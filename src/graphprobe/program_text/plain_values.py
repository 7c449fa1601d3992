"""Values as Python that a person can read: tensors with few elements as lists, the others from a file."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import torch

MOST_INLINE = 64
"""Values of a tensor that are written out; one with more lies in the file."""
WIDTH = 110

_EXACT = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Unwritable(Exception):
    """Why something cannot be told as Python, in words."""


def joined(head: str, parts: Sequence[str], tail: str) -> str:
    """`head`, the parts with commas between them, `tail`: on one line where it is short enough."""
    line = f"{head}{', '.join(parts)}{tail}"
    if len(line) <= WIDTH and "\n" not in line:
        return line
    if all(len(part) <= 24 and "\n" not in part and "=" not in part for part in parts):
        inner = textwrap.fill(", ".join(parts), WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    else:
        inner = "\n".join(f"{part}," for part in parts)
    return f"{head}\n{textwrap.indent(inner, '    ')}\n{tail}"


def number_text(value: Any) -> str:
    """A number; `inf` and `nan` by the calls that make them."""
    if isinstance(value, complex):
        return f"complex({number_text(value.real)}, {number_text(value.imag)})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def short_number(value: Any, dtype: torch.dtype) -> str:
    """A number with as few digits as tell it from all others of its dtype."""
    if isinstance(value, float) and math.isfinite(value) and dtype != torch.float64:
        for digits in range(1, 17):
            text = repr(float(f"{value:.{digits}g}"))
            if torch.tensor(float(text), dtype=dtype).item() == value:
                return text
    return number_text(value)


def list_text(values: Any, number: Callable[[Any], str]) -> str:
    """Nested lists of numbers."""
    if isinstance(values, list):
        return joined("[", [list_text(value, number) for value in values], "]")
    return number(values)


def dense_text(tensor: torch.Tensor) -> str | None:
    """An expression for a contiguous tensor with the same values; None where they are too many."""
    shape, dtype, count = tuple(tensor.shape), tensor.dtype, tensor.numel()
    given = f"dtype={dtype}"
    sizes = ", ".join(map(str, shape)) if shape else "()"
    if count == 0:
        return f"torch.zeros({sizes}, {given})"
    if not (dtype.is_floating_point or dtype.is_complex or dtype in _EXACT):
        return None
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return None
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().reshape(-1)
    bits = flat.contiguous().view(torch.uint8).reshape(count, -1)
    if count > 1 and bool((bits == bits[0]).all()):
        value = flat[0].item()
        if value in (0, 1) and not (value == 0 and str(value).startswith("-")) and dtype != torch.bool:
            name = "ones" if value else "zeros"
            return f"torch.{name}({sizes}{'' if dtype == torch.get_default_dtype() else f', {given}'})"
        return f"torch.full(({sizes},), {short_number(value, dtype)}, {given})"
    if count > MOST_INLINE:
        return None
    values = list_text(flat.reshape(shape).tolist(), lambda value: short_number(value, dtype))
    usual = dtype in (torch.get_default_dtype(), torch.int64, torch.bool)
    text = f"torch.tensor({values}{'' if usual else f', {given}'})"
    return text if _remade(values, dtype, flat) else None


def _remade(values: str, dtype: torch.dtype, flat: torch.Tensor) -> bool:
    """Whether the text gives the same bits; those of a NaN count only as being one."""
    made = torch.tensor(eval(values, {"float": float, "complex": complex}), dtype=dtype).reshape(-1)
    same = made.view(torch.uint8).reshape(len(flat), -1) == flat.contiguous().view(torch.uint8).reshape(len(flat), -1)
    return bool((same.all(1) | (flat != flat)).all())


def strides_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Those that a contiguous tensor of its shape has."""
    found: list[int] = []
    step = 1
    for size in reversed(tensor.shape):
        found.insert(0, step)
        step *= max(size, 1)
    return tuple(found)
