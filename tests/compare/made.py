"""Calls made up by hand, for tests that need no torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphprobe.numerics.stats import stats_from_array
from graphprobe.records import TensorMeta
from graphprobe.store.calls import Call, CallSlot, Scalar

KNOWN = ("min", "max", "mean", "std", "l2", "nan", "positive_inf", "negative_inf", "zeros")


def tensor(
    name: str, role: str, array: np.ndarray, *, digest: bool = True, values: dict[str, Any] | None = None
) -> CallSlot:
    """A slot of an array; its values are kept in `values`."""
    stats = stats_from_array(array)
    key = ""
    if values is not None:
        key = f"v{len(values)}"
        values[key] = array
    return CallSlot(
        name=name,
        role=role,
        meta=TensorMeta(array.dtype.name, array.shape),
        stats=stats,
        known=KNOWN,
        digest=stats.digest if digest else "",
        digest_kind="graphprobe" if digest else "",
        value=key,
    )


def scalar(name: str, value: object) -> CallSlot:
    return CallSlot(name=name, role="input", scalar=Scalar(type(value).__name__, repr(value)))


def call(position: int, api: str, *slots: CallSlot, index: int = 0, module: str = "", **more: Any) -> Call:
    label = more.pop("label", f"{api.rpartition('.')[2]}.{index}.{more.get('direction', 'forward')}")
    return Call(
        position=position,
        kind=more.pop("kind", "api"),
        api=api,
        label=label,
        index=index,
        module=module,
        slots=slots,
        **more,
    )


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
