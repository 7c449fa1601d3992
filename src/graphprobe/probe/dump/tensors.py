"""From a live value to what a writer takes: names of slots, texts of arguments, bytes or statistics of tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch

from graphprobe.engine.tensor_stats import finish, meta_of, readable, stats_async, stats_of
from graphprobe.errors import GraphprobeError
from graphprobe.internals.quiet import quiet
from graphprobe.internals.tensors import is_plain
from graphprobe.records import TensorStats
from graphprobe.store.calls import Scalar
from graphprobe.store.dump_dtypes import Array
from graphprobe.store.dump_queue import CopyPool
from graphprobe.store.dump_records import Buffer, Data, DumpValue, Side

MAX_TEXT = 4096
"""Longest text kept of an argument that is no tensor, in characters."""

PLAIN_SCALARS = frozenset({int, float, bool, str, type(None), complex})
_TOLD = (
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, slice, type(Ellipsis), Enum, range, bytes,
)  # fmt: skip
"""Types whose `repr` is the same in every process."""
_MAX_DEPTH = 8

_scalars: dict[tuple[type, Any], Scalar] = {}


def is_tensor(value: object) -> bool:
    """Whether `value` is a tensor, of any class."""
    return isinstance(value, torch.Tensor)


def slots_from_inputs(args: Sequence[object], kwargs: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    """Each tensor among the arguments and each argument without any, by slot, in order.

    The second positional argument is `input.1`, the third of a list in its place `input.1.2`, a keyword `kwarg.bias`.
    """
    for index, value in enumerate(args):
        yield from leaves(f"input.{index}", value)
    for name, value in kwargs.items():
        yield from leaves(f"kwarg.{name}", value)


def slots_from_outputs(result: object) -> Iterator[tuple[str, Any]]:
    """The same for what an op returned: a tensor is `output.0`, the second of a tuple `output.1`."""
    for index, value in enumerate(result if isinstance(result, list | tuple) else (result,)):
        yield from leaves(f"output.{index}", value)


def leaves(name: str, value: object, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The items of a list, tuple or mapping that has a tensor in it, by slot; of anything else the value itself."""
    if isinstance(value, torch.Tensor) or not has_tensor(value, depth):
        yield name, value
    else:
        for key, item in _items(value):
            yield from leaves(f"{name}.{key}", item, depth + 1)


def has_tensor(value: object, depth: int = 0) -> bool:
    """Whether there is a tensor in a list, tuple or mapping, or `value` is one."""
    if isinstance(value, torch.Tensor):
        return True
    return depth < _MAX_DEPTH and any(has_tensor(item, depth + 1) for _, item in _items(value))


def _items(value: object) -> Iterable[tuple[object, object]]:
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def scalar_of(value: Any) -> Scalar:
    """How an argument that is no tensor is kept; of a type with no text of its own, the name alone."""
    kind = type(value)
    if kind in PLAIN_SCALARS:
        # The sign of zero is in the text and not in the key.
        if kind is float and value == 0:
            return Scalar("float", repr(value))
        key = (kind, value)
        found = _scalars.get(key)
        if found is None:
            found = Scalar(kind.__name__, _cut(repr(value)))
            if len(_scalars) < 4096:
                _scalars[key] = found
        return found
    return Scalar(kind.__name__, _cut(_text(value, 0)))


def _text(value: Any, depth: int) -> str:
    kind = type(value)
    if kind in PLAIN_SCALARS or isinstance(value, _TOLD):
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


def dump_value(name: str, side: Side, tensor: torch.Tensor, *, stats: bool, pool: CopyPool) -> DumpValue:
    """The value of a slot as it is at this moment: what the program does to the tensor later does not change it.

    Args:
        tensor: of any class, layout, dtype and device; one whose values cannot be read makes a slot that says why.
        stats: keep the statistics in place of the values.
        pool: memory for copies, which goes back when nobody holds the value any more.
    """
    meta = meta_of(tensor)
    try:
        if stats:
            return DumpValue(name, side, meta, stats=live_stats(tensor))
        return DumpValue(name, side, meta, data=_data(tensor, pool))
    except Exception as error:
        failure = error
    # The writer calls this function, and puts the reason into the slot.
    return DumpValue(name, side, meta, data=lambda: _raise(failure))


def _raise(error: Exception) -> Buffer:
    raise error


def live_stats(tensor: torch.Tensor) -> TensorStats | Callable[[], TensorStats]:
    """Its statistics at this moment; of one on a device, a function that waits for them."""
    if tensor.is_cpu:
        return stats_of(tensor)
    # Not under an active mode: `stats_async` leaves them by itself, the copy does not.
    row = stats_async(tensor)
    with quiet():
        wait = _to_host(row)
    return lambda: finish(wait())


def _data(tensor: torch.Tensor, pool: CopyPool) -> Data:
    if not is_plain(tensor) or tensor.is_quantized:
        tensor = _plain(tensor)
    if tensor.is_cpu and tensor.is_contiguous():
        return _Copy(tensor, pool)
    with quiet():
        if tensor.is_cpu:
            copy = tensor.detach().contiguous()
            return lambda: _memory(copy)
        wait = _to_host(tensor.detach().contiguous())
    return lambda: _memory(wait())


class _Copy:
    """A copy of a contiguous CPU tensor's bytes, which goes back to its pool together with the last reference."""

    __slots__ = ("_array", "_pool")

    def __init__(self, tensor: torch.Tensor, pool: CopyPool) -> None:
        view = _memory(tensor)
        self._array = pool.copy(view) if view.nbytes else np.empty(0, np.uint8)
        self._pool = pool

    def __call__(self) -> Array:
        return self._array

    def __del__(self) -> None:
        self._pool.give_back((self._array,))


def _to_host(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Start to copy a contiguous tensor to pinned memory; the result waits for the copy and returns it.

    The copy is queued on the current stream behind what writes the tensor, and before whatever reuses its memory.
    """
    if tensor.device.type != "cuda":
        copy = tensor.to("cpu")
        return lambda: copy
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(tensor.device))

    def wait() -> torch.Tensor:
        done.synchronize()
        return pinned

    return wait


def read_back(rows: Sequence[torch.Tensor]) -> list[list[float]]:
    """Numbers of equally many each, with one wait for each device."""
    on: dict[torch.device, list[int]] = {}
    for index, row in enumerate(rows):
        on.setdefault(row.device, []).append(index)
    found: dict[int, list[float]] = {}
    with quiet():
        for indices in on.values():
            found |= zip(indices, torch.stack([rows[index] for index in indices]).tolist(), strict=True)
    return [found[index] for index in range(len(rows))]


def _memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy; the view keeps the tensor alive."""
    size_bytes = tensor.numel() * tensor.element_size()
    if not size_bytes:
        return memoryview(b"")
    array = (ctypes.c_uint8 * size_bytes).from_address(tensor.data_ptr())
    array.tensor = tensor  # type: ignore[attr-defined]  # ctypes arrays take attributes
    return memoryview(array).cast("B")


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a plain tensor; the errors of `readable` say why there are none."""
    try:
        return readable(tensor)
    except GraphprobeError as error:
        raise ValueError(f"{error}; {error.hint}" if error.hint else str(error)) from error


def device_index(values: Any) -> int:
    """Index of the device that the first tensor on an accelerator is on; 0 when all are on the CPU."""
    for value in values:
        if isinstance(value, torch.Tensor) and not value.is_cpu:
            return max(value.get_device(), 0)
    return 0


def stream_of(tensor: torch.Tensor) -> int:
    """Identifier of the current stream of the tensor's device, 0 on the CPU."""
    return int(torch.cuda.current_stream(tensor.device).stream_id) if tensor.is_cuda else 0


def is_capturing() -> bool:
    """Whether work of this thread goes into a CUDA graph: then nothing may be copied to the host."""
    cuda: Any = torch.cuda  # not annotated
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
