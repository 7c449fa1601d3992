"""Shape, dtype and strides: compared before any number is, and findings of their own."""

from __future__ import annotations

from typing import Literal

import msgspec


class Layout(msgspec.Struct, frozen=True):
    """What a tensor is before its numbers count.

    Attributes:
        shape: sizes.
        dtype: torch's name without the prefix.
        stride: in elements; None where nobody recorded it, or the layout has none.
    """

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...] | None = None


class LayoutDifference(msgspec.Struct, frozen=True):
    """One difference; `kind` is the kind of the finding it becomes. Only a wrong shape forbids comparing numbers."""

    kind: Literal["wrong_shape", "wrong_dtype", "wrong_stride"]
    candidate: str
    reference: str


def layout_differences(candidate: Layout, reference: Layout) -> tuple[LayoutDifference, ...]:
    """How two tensors differ before their numbers do; empty when they do not.

    Strides are compared where both are known and the shapes agree, over dimensions of more than one element: those
    of other dimensions, and of empty tensors, address nothing.
    """
    found = []
    if candidate.shape != reference.shape:
        found.append(LayoutDifference("wrong_shape", str(list(candidate.shape)), str(list(reference.shape))))
    if candidate.dtype != reference.dtype:
        found.append(LayoutDifference("wrong_dtype", candidate.dtype, reference.dtype))
    if candidate.shape == reference.shape and None not in (candidate.stride, reference.stride):
        mine, theirs = _effective(candidate), _effective(reference)
        if mine != theirs:
            found.append(LayoutDifference("wrong_stride", str(list(mine)), str(list(theirs))))
    return tuple(found)


def _effective(layout: Layout) -> tuple[int, ...]:
    """The strides that address something, 0 for the others."""
    if layout.stride is None or 0 in layout.shape:
        return ()
    return tuple(step if size > 1 else 0 for size, step in zip(layout.shape, layout.stride, strict=True))
