"""A dump in memory, to be written in foreign layouts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store.calls import Call, CallSlot, Scalar, SlotRole

Array = np.ndarray[Any, Any]


class MemoryDump:
    """A `CallDump` of one rank and one step. Values lie by handle in `arrays`."""

    title, format = "memory", "graphprobe-api"

    def __init__(self) -> None:
        self.facts: dict[str, str] = {}
        self.arrays: dict[str, Array] = {}
        self._calls: list[Call] = []

    def add(self, api: str, index: int, *slots: CallSlot, direction: Any = "forward", **more: Any) -> Call:
        place = len(self._calls)
        kind = more.pop("kind", "api")
        more.setdefault("stack", ("model.py:3 in forward: x = self.fc(x)", "train.py:9 in <module>: model(x)"))
        call = Call(
            position=place, kind=kind, api=api, label=f"{api}.{index}.{direction}", direction=direction, index=index,
            slots=slots, **more,
        )  # fmt: skip
        self._calls.append(call)
        return call

    def slot(
        self, name: str, role: SlotRole, array: Array, *, dtype: str = "", requires_grad: bool | None = None
    ) -> CallSlot:
        """Of a numpy array; `bfloat16` is kept as unsigned integers, of float32 values that it can hold."""
        dtype = dtype or array.dtype.name
        wide = array.astype(np.float64).reshape(-1) if array.size else np.zeros(1)
        finite = wide[np.isfinite(wide)]
        stats = TensorStats(
            count=array.size,
            min=float(finite.min()) if finite.size else None,
            max=float(finite.max()) if finite.size else None,
            mean=float(finite.mean()) if finite.size else None,
            l2=float(np.sqrt((finite**2).sum())) if finite.size else None,
            nan=int(np.isnan(wide).sum()),
            positive_inf=int((wide == np.inf).sum()),
            negative_inf=int((wide == -np.inf).sum()),
        )
        handle = str(len(self.arrays))
        bits = (array.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else array
        self.arrays[handle] = bits
        return CallSlot(
            name=name, role=role, meta=TensorMeta(dtype, array.shape), stats=stats, known=("min", "max", "mean", "l2"),
            value=handle, requires_grad=requires_grad,
        )  # fmt: skip

    def ranks(self) -> tuple[int, ...]:
        return (0,)

    def steps(self, rank: int) -> tuple[int, ...]:
        return (0,)

    def calls(self, rank: int, step: int) -> Iterator[Call]:
        yield from self._calls

    def values(self, call: Call, slot: CallSlot) -> Array:
        return self.arrays[slot.value]

    def problems(self) -> tuple[str, ...]:
        return ()


def scalar(name: str, kind: str, text: str) -> CallSlot:
    return CallSlot(name=name, role="input", scalar=Scalar(kind, text))


def example() -> MemoryDump:
    """A linear layer, something in place in bfloat16, a list of tensors, a NaN, and two backwards."""
    dump = MemoryDump()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    half = np.array([1.5, -2.25, 3.0], dtype=np.float32)
    dump.add(
        "torch.nn.functional.linear",
        0,
        dump.slot("input.0", "input", x, requires_grad=True),
        dump.slot("kwarg.bias", "input", x[0]),
        dump.slot("output.0", "output", x * 2, requires_grad=True),
        module="net.fc",
    )
    dump.add(
        "torch.Tensor.mul_",
        0,
        dump.slot("input.0", "input", half, dtype="bfloat16"),
        scalar("input.1", "float", "2.0"),
        dump.slot("output.0", "output", half * 2, dtype="bfloat16"),
    )
    dump.add(
        "torch.cat",
        0,
        dump.slot("input.0.0", "input", x),
        dump.slot("input.0.1", "input", x + 1),
        scalar("kwarg.dim", "int", "0"),
        dump.slot("output.0", "output", np.array([np.nan, np.inf, 1], dtype=np.float32)),
    )
    dump.add("Linear", 0, dump.slot("output.0", "output", x), kind="module", module="net.fc")
    dump.add("torch.nn.functional.linear", 1, dump.slot("output.0", "output", x))
    dump.add(
        "torch.nn.functional.linear",
        0,
        dump.slot("grad_output.0", "grad_output", x),
        dump.slot("grad_input.0", "grad_input", x),
        dump.slot("grad_kwarg.bias", "grad_input", x[0]),
        direction="backward",
    )
    return dump
