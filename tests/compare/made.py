"""Calls made up by hand, and dumps of them in memory, for tests that need no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from graphprobe.numerics import stats_from_array
from graphprobe.records import TensorMeta
from graphprobe.store import Call, CallSlot, Scalar

KNOWN = ("min", "max", "mean", "std", "l2", "nan", "positive_inf", "negative_inf", "zeros")


class MemoryDump:
    """A `CallDump` of calls that somebody made up or recorded."""

    format = "memory"

    def __init__(
        self, calls: Sequence[Call] = (), values: dict[str, np.ndarray] | None = None, *, title: str = "memory"
    ) -> None:
        self.title = title
        self.facts: dict[str, str] = {}
        self.list = list(calls)
        self.arrays = values or {}
        self.read = 0

    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({c.rank for c in self.list}))

    def steps(self, rank: int) -> tuple[int, ...]:
        return tuple(sorted({c.step for c in self.list if c.rank == rank}))

    def calls(self, rank: int, step: int) -> Iterator[Call]:
        return iter([c for c in self.list if (c.rank, c.step) == (rank, step)])

    def values(self, call: Call, slot: CallSlot) -> np.ndarray:
        self.read += 1
        return self.arrays[slot.value]

    def problems(self) -> tuple[str, ...]:
        return ()

    def without_values(self) -> MemoryDump:
        calls = [replaced(c, slots=tuple(replaced(s, value="") for s in c.slots)) for c in self.list]
        return MemoryDump(calls, title=self.title)


replaced = msgspec.structs.replace


def tensor(
    name: str, role: str, array: np.ndarray, *, digest: bool = True, values: dict[str, Any] | None = None
) -> CallSlot:
    """A slot of an array; its values are kept in `values`."""
    stats = stats_from_array(array)
    key = ""
    if values is not None:
        key = f"v{len(values)}"
        values[key] = array
    found = {"digest": stats.digest, "digest_kind": "graphprobe"} if digest else {}
    meta = TensorMeta(array.dtype.name, array.shape)
    return CallSlot(name=name, role=role, meta=meta, stats=stats, known=KNOWN, value=key, **found)


def scalar(name: str, value: object) -> CallSlot:
    return CallSlot(name=name, role="input", scalar=Scalar(type(value).__name__, repr(value)))


def call(position: int, api: str, *slots: CallSlot, index: int = 0, **more: Any) -> Call:
    label = f"{api.rpartition('.')[2]}.{index}.{more.get('direction', 'forward')}"
    return Call(position=position, api=api, index=index, slots=slots, **{"kind": "api", "label": label, **more})


def chain(apis: list[str], *, seed: int = 0, scale: dict[int, float] | None = None) -> list[Call]:
    """A program in which each call gets what the one before gave; `scale` changes what a call gives."""
    values = np.random.default_rng(seed).standard_normal(64).astype(np.float32)
    calls, count = [], dict.fromkeys(apis, 0)
    for i, api in enumerate(apis):
        given = (np.roll(values, 1) * np.float32((scale or {}).get(i, 1.0))).astype(np.float32)
        slots = (tensor("input.0", "input", values), tensor("output.0", "output", given))
        calls.append(call(i, api, *slots, index=count[api]))
        count[api] += 1
        values = given
    return calls
