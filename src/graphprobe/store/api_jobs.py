"""A call on its way from the program to the disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store.api_records import ApiSlot
from graphprobe.store.calls import CallDirection, CallKind, CompiledRegion, Holder, Scalar, SlotRole

Array = np.ndarray[Any, Any]


class Handed:
    """Values that were handed in, as the slots that have them know them.

    `name` is equal for equal bits, dtype and count. Where the digest comes from a device, the writing thread sets it.
    """

    __slots__ = ("name",)

    def __init__(self, name: str | None) -> None:
        self.name = name


class RawValue(msgspec.Struct, gc=False):
    """Values of one tensor, 1-d and row-major; handed in before every call that has them.

    Attributes:
        handed: what the slots hold.
        stats: needed where the name is not known yet.
        dtype, items: of the values, and how many.
        data: their bytes, which nobody changes any more, or a function that waits for them.
        sample: step of the sample; None: all values.
        size_bytes: what they take while they wait.
    """

    handed: Handed
    stats: Callable[[], TensorStats] | None
    dtype: str
    items: int
    data: Array | Callable[[], Array]
    sample: int | None
    size_bytes: int


class RawSlot(msgspec.Struct, gc=False):
    """One argument or result of which the writing thread has yet to find something out: as `api_records.ApiSlot`.

    Never changed once it is made, so that one object may stand in several calls.
    """

    name: str
    role: SlotRole
    meta: TensorMeta | None = None
    stats: TensorStats | Callable[[], TensorStats] | None = None
    scalar: Scalar | None = None
    payload: Handed | None = None
    sampled: bool = False
    missing: str = ""
    requires_grad: bool = False
    held: Holder = ""


Slot = ApiSlot | RawSlot


class RawCall(msgspec.Struct, gc=False):
    """One call. Its position is given where it is written, so that it is the order of the file.

    `number` is its `index`; `size_bytes` is what it takes while it waits. A struct is made in a third of the time of
    a named tuple, and the garbage collector need not look at it.
    """

    step: int
    kind: CallKind
    api: str
    label: str
    direction: CallDirection
    number: int
    module: str
    source: str
    stack: tuple[str, ...]
    thread: str
    slots: Sequence[Slot]
    notes: tuple[str, ...]
    size_bytes: int
    compiled: CompiledRegion | None = None


def value_name(digest: str, dtype: str, count: int, *, sample: int | None = None) -> str:
    """Equal for values of equal bits; `sample` is the step of a sample, None for all values."""
    return f"{digest}.{dtype}.{count}" if sample is None else f"{digest}.{dtype}.{count}.every{sample}"
