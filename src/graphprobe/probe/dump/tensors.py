"""From a live tensor to what the writer takes: its bytes, or its statistics, without waiting for a device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from graphprobe.engine.tensor_stats import finish, meta_of, readable, stats_async, stats_of
from graphprobe.errors import GraphprobeError
from graphprobe.internals.quiet import is_fake, quiet
from graphprobe.internals.tensors import PLAIN_TYPES
from graphprobe.records import TensorStats
from graphprobe.store.dump_queue import Array, CopyPool
from graphprobe.store.dump_records import Buffer, Data, DumpValue, Side


def is_tensor(value: object) -> bool:
    """Whether `value` is a tensor, of any class."""
    return isinstance(value, torch.Tensor)


def dump_value(name: str, side: Side, tensor: torch.Tensor, *, stats: bool, pool: CopyPool) -> DumpValue:
    """The value of a slot as it is at this moment: what the program does to the tensor later does not change it.

    Args:
        name, side: of the slot.
        tensor: of any class, layout, dtype and device; one whose values cannot be had gives a slot that says why.
        stats: keep the statistics in place of the values.
        pool: memory for copies; it gets each back when nobody holds the value any more.
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
    if not _is_plain(tensor):
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


def _memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy; the view keeps the tensor alive."""
    size_bytes = tensor.numel() * tensor.element_size()
    if not size_bytes:
        return memoryview(b"")
    array = (ctypes.c_uint8 * size_bytes).from_address(tensor.data_ptr())
    array.tensor = tensor  # type: ignore[attr-defined]  # ctypes arrays take attributes
    return memoryview(array).cast("B")


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in PLAIN_TYPES
        and tensor.layout is torch.strided
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_quantized
        and not is_fake(tensor)
    )


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
