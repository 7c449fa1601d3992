"""A dump in memory, to be written in foreign layouts."""

from typing import Any

import numpy as np

from compare import made
from graphprobe.numerics import stats_from_array
from graphprobe.records import TensorMeta
from graphprobe.store.calls import Call, CallSlot, Scalar, SlotRole

Array = np.ndarray[Any, Any]


class MemoryDump(made.MemoryDump):
    """A dump to which calls are added; values are in `arrays` by their handles."""

    format = "graphprobe-api"

    def add(self, api: str, index: int, *slots: CallSlot, direction: Any = "forward", **more: Any) -> Call:
        more = {"stack": ("model.py:3 in forward: x = self.fc(x)", "train.py:9 in <module>: model(x)"), **more}
        label = f"{api}.{index}.{direction}"
        call = made.call(len(self.list), api, *slots, index=index, label=label, direction=direction, **more)
        self.list.append(call)
        return call

    def slot(
        self, name: str, role: SlotRole, array: Array, *, dtype: str = "", requires_grad: bool | None = None
    ) -> CallSlot:
        """Of a numpy array; `bfloat16` is kept as unsigned integers, of float32 values that it can hold."""
        handle = str(len(self.arrays))
        self.arrays[handle] = (array.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else array
        meta, known = TensorMeta(dtype or array.dtype.name, array.shape), ("min", "max", "mean", "l2")
        return CallSlot(
            name=name, role=role, meta=meta, stats=stats_from_array(array), known=known, value=handle,
            requires_grad=requires_grad,
        )  # fmt: skip


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
