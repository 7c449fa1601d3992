"""Statistics of torch tensors on the CPU; `device_stats` does the same on an accelerator without waiting for it."""

from __future__ import annotations

import torch

from graphprobe.errors import UsageError
from graphprobe.internals.quiet import is_fake, quiet
from graphprobe.internals.tensors.plain_tensors import PLAIN_TYPES, is_backed, is_plain
from graphprobe.numerics import stats
from graphprobe.numerics.item_kinds import KINDS, kind_of, table_address
from graphprobe.records import TensorStats

THREADED_BYTES = 512 * 1024
"""Smaller tensors are done before a second thread has woken up."""

_BY_DTYPE: dict[torch.dtype, Kind] = {
    getattr(torch, name): (kind.number, table_address(kind), kind.size)
    for name, kind in KINDS.items()
    if hasattr(torch, name)  # older releases lack the newest 8-bit and 4-bit formats
}

Kind = tuple[int, int, int]
"""Of a dtype: the number of its `ItemKind`, the address of its table of values or 0, bytes an item."""


def stats_of(tensor: torch.Tensor, *, threads: int | None = None) -> TensorStats:
    """Statistics and digest of a CPU tensor, in one pass over its memory.

    Args:
        tensor: any shape and strides, of a dtype of `numerics.item_kinds.KINDS`; a conjugated or negated view counts
            with the values it shows. Elements of `float4_e2m1fn_x2` are counted singly, two to a byte.
        threads: at most so many; None: as many as torch uses. It changes the time and no bit of the result.

    Raises:
        UsageError: the tensor has no memory on the CPU that could be read (sparse, meta, fake, on an accelerator, a
            subclass without storage of its own), or statistics know no such dtype (quantised).
    """
    found = plain_kind(tensor)
    if found is None:
        tensor = readable(tensor)
        found = _BY_DTYPE[tensor.dtype]
        if not tensor.is_cpu:
            raise UsageError(
                f"the tensor is on {tensor.device}, not on the CPU",
                hint="use stats_async, which does not wait for the device, or pass tensor.cpu()",
            )
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:  # inside a functorch transform
        raise _unreadable(tensor, str(error).splitlines()[0]) from error
    count = tensor.numel()
    if tensor.is_contiguous():
        return stats_in_memory(address, found, count, None, count, threads)
    return stats_in_memory(address, found, tuple(tensor.shape), tensor.stride(), count, threads)


def plain_kind(tensor: torch.Tensor) -> Kind | None:
    """How to read the items of a tensor where they lie; None where there is more to it, see `stats_of`."""
    return _BY_DTYPE.get(tensor.dtype) if is_plain(tensor) else None


def stats_in_memory(
    address: int,
    kind: Kind,
    items: int | tuple[int, ...],
    strides: tuple[int, ...] | None,
    count: int,
    threads: int | None = None,
) -> TensorStats:
    """`stats_of` what lies at an address: `items` is their number, `count`, or their shape if there are strides."""
    number, table, size = kind
    if count * size < THREADED_BYTES:
        threads = 1
    elif threads is None:
        threads = torch.get_num_threads()
    return stats.compute(TensorStats, address, number, items, strides, threads, table)


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a plain strided tensor, conjugation and negation carried out.

    Raises:
        UsageError: there is no memory that could be read, or statistics know no such dtype.
    """
    if is_fake(tensor):
        raise _unreadable(tensor, "it is fake or on the meta device: it has a shape and no values")
    if tensor.layout is not torch.strided:
        raise UsageError(
            f"the tensor has layout {tensor.layout}, not torch.strided", hint="pass its values(), or to_dense()"
        )
    if tensor.dtype not in _BY_DTYPE:
        kind_of(str(tensor.dtype).removeprefix("torch."))
        raise UsageError(f"this torch has no {tensor.dtype}", hint="update torch")
    with quiet():
        if type(tensor) not in PLAIN_TYPES:
            tensor = tensor.as_subclass(torch.Tensor)
        try:
            if not is_backed(tensor):
                size_bytes = tensor.untyped_storage().nbytes()
                emptied = f"its storage has {size_bytes} bytes, as FSDP leaves it between two uses"
                room = size_bytes >= tensor.numel() * tensor.itemsize
                raise _unreadable(tensor, "its class keeps the values in other tensors" if room else emptied)
        except RuntimeError as error:
            raise _unreadable(tensor, str(error).splitlines()[0]) from error
        return tensor.detach().resolve_conj().resolve_neg()


def _unreadable(tensor: torch.Tensor, why: str) -> UsageError:
    return UsageError(
        f"a {type(tensor).__name__} of shape {tuple(tensor.shape)} has no memory to read: {why}",
        hint="pass the plain tensors inside it, or the values of a real run",
    )
