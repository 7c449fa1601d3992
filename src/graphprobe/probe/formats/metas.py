"""Shape, stride, dtype and device of a graph's inputs, as literals for a generated script."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphprobe.internals.quiet import hint


def input_meta(value: object) -> object:
    """A tensor's shape, stride, dtype, device as a dict, symbolic sizes by their hints; a number as itself; else None.

    An unbacked size, which has no hint, becomes 2.
    """
    if isinstance(value, torch.Tensor):
        strided = value.layout is torch.strided
        return {
            "shape": [_number(n) for n in value.shape],
            "stride": [_number(n) for n in value.stride()] if strided else [],
            "dtype": str(value.dtype).removeprefix("torch."),
            "device": str(value.device),
            "requires_grad": value.requires_grad,
        }
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _number(value)
    return value if isinstance(value, (bool, int, float, str)) else None


def input_metas(values: Sequence[object]) -> list[object]:
    """`input_meta` of each."""
    return [input_meta(value) for value in values]


def _number(value: object) -> int | float | bool:
    found = hint(value)
    return 2 if found is None else found


def metas_text(metas: Sequence[object]) -> str:
    """A Python literal of the metas, one input a line."""
    return "[\n" + "".join(f"    {meta!r},\n" for meta in metas) + "]"
