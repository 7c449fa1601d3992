"""Statistics of torch tensors: on the CPU, and on an accelerator by torch operators alone, without waiting for it.

`stats_async` leaves a few numbers on the device; they are copied to the host with those of other tensors whenever that
suits, and `finish` makes a `TensorStats` of them. Definitions and digest are those of `numerics.stats`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from graphprobe.errors import UsageError
from graphprobe.internals.quiet import is_fake, quiet
from graphprobe.internals.tensors import PLAIN_TYPES, is_backed, is_plain
from graphprobe.numerics import stats, stats_numpy
from graphprobe.numerics.item_kinds import ITEM_KINDS, kind_of, table_address
from graphprobe.records import TensorMeta, TensorStats

THREADED_BYTES = 512 * 1024
"""Smaller tensors are done before a second thread has woken up."""

_BY_DTYPE: dict[torch.dtype, Kind] = {
    getattr(torch, name): (kind.number, table_address(kind), kind.size) for name, kind in ITEM_KINDS.items()
}

Kind = tuple[int, int, int]
"""Of a dtype: the number of its `ItemKind`, the address of its table of values or 0, bytes an item."""

_MOST = 8192
"""Forms that are known at a time; a program whose sizes never come back begins afresh."""

SYMBOLIC = -1
"""In place of a size that is no number, as the ragged one of a nested tensor."""

RAW_LENGTH = 13 + stats_numpy.LANES
"""Numbers that `stats_async` leaves: counts, floats as their bits, and the lanes of the digest."""

CHUNK_BYTES = 32 << 20
"""Read at a time; memory in use on the device is about ten times that at most, for 8-bit dtypes forty times."""

_WORDS = stats_numpy.BLOCK_BYTES // 4


def stats_of(tensor: torch.Tensor, *, threads: int | None = None) -> TensorStats:
    """Statistics and digest of a CPU tensor, in one pass over its memory.

    Args:
        tensor: any shape and strides, of a dtype of `numerics.ITEM_KINDS`; a conjugated or negated view counts
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
        kind_of(text_of(tensor.dtype))  # raises
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


class TensorForm(msgspec.Struct, gc=False):
    """What all plain tensors of one dtype, shape and strides have in common.

    `items` is how many there are; the shape where there are `strides`: gaps between them, or another order. Without a
    `kind` statistics do not know the dtype.
    """

    meta: TensorMeta
    kind: Kind | None
    count: int
    items: int | tuple[int, ...]
    strides: tuple[int, ...] | None


class Forms:
    """The forms of the plain tensors seen so far. May be used from any thread."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[torch.dtype, torch.Size, tuple[int, ...]], TensorForm] = {}

    def of(self, tensor: torch.Tensor) -> TensorForm:
        """The form of a tensor that `is_plain`; while it is kept, the same object for the same form."""
        key = (tensor.dtype, tensor.shape, tensor.stride())
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            found = self._known[key] = _form(tensor)
        return found


def _form(tensor: torch.Tensor) -> TensorForm:
    shape, strides, count = tuple(tensor.shape), tensor.stride(), tensor.numel()
    no_gaps = tensor.is_contiguous()
    items, strides_or_none = (count, None) if no_gaps else (shape, strides)
    return TensorForm(meta_of(tensor), plain_kind(tensor), count, items, strides_or_none)


def meta_of(tensor: torch.Tensor) -> TensorMeta:
    """What the tensor is; of a layout without strides, none are given."""
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    try:
        return _meta(tensor.dtype, tensor.shape, strides, tensor.device)
    except TypeError:  # a symbolic size has no hash
        return _made(tensor.dtype, tensor.shape, strides, tensor.device)


def _made(dtype: torch.dtype, shape: torch.Size, strides: tuple[int, ...], device: torch.device) -> TensorMeta:
    # Asking a symbolic size for its number could add a guard to a graph that is being traced.
    sizes, steps = (tuple(n if type(n) is int else SYMBOLIC for n in numbers) for numbers in (shape, strides))
    return TensorMeta(text_of(dtype), sizes, steps, text_of(device))


_meta = functools.lru_cache(maxsize=_MOST)(_made)


@functools.cache
def text_of(value: torch.dtype | torch.device) -> str:
    """`float32`, `cuda:0`: torch's name without the prefix."""
    return str(value).removeprefix("torch.")


def stats_async(tensor: torch.Tensor) -> torch.Tensor:
    """Starts the statistics of `tensor` on its device, and does not wait.

    Returns:
        int64, shape (RAW_LENGTH,), on the same device; `finish` reads it once it is on the host. Make no assumption
        about its order: it may change.

    Raises:
        UsageError: as `tensor_stats.stats_of`, except that any device will do.
    """
    plain = readable(tensor)
    with quiet():
        flat = plain.contiguous().reshape(-1)
        size = flat.element_size()
        if (flat.storage_offset() * size) % 4:
            flat = flat.clone()  # 32-bit words are read
        items = CHUNK_BYTES // size
        pieces = [flat[begin : begin + items] for begin in range(0, max(flat.numel(), 1), items)]
        exponent = _exponent(pieces)
        rows = [_sums(_values(piece), exponent) for piece in pieces]
        lanes = torch.zeros(stats_numpy.LANES, dtype=torch.int64, device=flat.device)
        for index, piece in enumerate(pieces):
            lanes = lanes + _digest_lanes(piece.view(torch.uint8), index * (CHUNK_BYTES // stats_numpy.BLOCK_BYTES))
        counts, floats = _merge(rows)
        elements = flat.numel() * (2 if plain.dtype == torch.float4_e2m1fn_x2 else 1)
        sizes = [torch.full((1,), n, dtype=torch.int64, device=flat.device) for n in (elements, flat.numel() * size)]
        return torch.cat([*sizes, counts, floats.view(torch.int64), exponent.reshape(1), lanes])


def finish(host_values: torch.Tensor | Sequence[int]) -> TensorStats:
    """The statistics that one row of `stats_async`, copied to the host, stands for."""
    row = host_values.tolist() if isinstance(host_values, torch.Tensor) else list(host_values)
    if len(row) != RAW_LENGTH:
        raise ValueError(f"{len(row)} numbers; stats_async leaves {RAW_LENGTH}")
    count, size_bytes, nan, positive_inf, negative_inf, zeros, finite = row[:7]
    low, high, total, deviation, squares = np.array(row[7:12], dtype=np.int64).view(np.float64).tolist()
    exponent = row[12]
    digest = stats_numpy.finish(np.array(row[13:], dtype=np.int64).view(np.uint64), size_bytes)
    if not finite:
        return TensorStats(count, None, None, None, None, None, nan, positive_inf, negative_inf, zeros, digest)
    return TensorStats(
        count,
        low + 0.0,
        high + 0.0,
        _scaled(total / finite, exponent),
        _scaled(math.sqrt(max(deviation, 0.0) / finite), exponent),
        _scaled(math.sqrt(squares), exponent),
        nan,
        positive_inf,
        negative_inf,
        zeros,
        digest,
    )


def _scaled(value: float, exponent: int) -> float:
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(math.inf, value)


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """2**exponent as float64, exactly; -1022 <= exponent <= 1023."""
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)


def _times_power_of_two(x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """In two steps, because 2**exponent alone may be out of range."""
    half = torch.div(exponent, 2, rounding_mode="trunc")
    return x * _power_of_two(half) * _power_of_two(exponent - half)


def _values(piece: torch.Tensor) -> torch.Tensor:
    """The elements as float64; of complex numbers the modulus."""
    if piece.is_complex():
        parts = torch.view_as_real(piece).to(torch.float64)
        re, im = parts[..., 0].abs(), parts[..., 1].abs()
        infinite = torch.isinf(re) | torch.isinf(im)
        if piece.dtype == torch.complex128:
            larger = torch.fmax(re, im)
            exponent = torch.frexp(torch.where(torch.isfinite(larger), larger, 0.0)).exponent.to(torch.int64)
            re, im = (_times_power_of_two(part, -exponent) for part in (re, im))
            found = _times_power_of_two(torch.sqrt(re * re + im * im), exponent)
        else:
            found = torch.sqrt(re * re + im * im)
        return torch.where(infinite, math.inf, found)
    if piece.dtype == torch.float4_e2m1fn_x2:
        byte = piece.view(torch.uint8).to(torch.int64)
        code = torch.stack([byte & 15, byte >> 4], dim=1).reshape(-1)
        exponent, half = (code >> 1) & 3, (code & 1).to(torch.float64) / 2
        magnitude = torch.where(exponent == 0, half, (1 + half) * _power_of_two(exponent - 1))
        return torch.where(code >= 8, -magnitude, magnitude)
    if piece.dtype.is_floating_point and piece.element_size() == 1:
        return piece.to(torch.float32).to(torch.float64)
    return piece.to(torch.float64)


def _exponent(pieces: list[torch.Tensor]) -> torch.Tensor:
    """Exponent e such that values times 2**-e have squares in range; 0 for what is narrower than float64."""
    device = pieces[0].device
    if pieces[0].dtype not in (torch.float64, torch.complex128) or not pieces[0].numel():
        return torch.zeros((), dtype=torch.int64, device=device)
    values = (_values(piece).abs() for piece in pieces)
    largest = torch.stack([torch.where(torch.isfinite(v), v, 0.0).amax() for v in values]).amax()
    exponent = (torch.frexp(largest).exponent.to(torch.int64) - 1).clamp(-1022, 1022)
    return torch.where(exponent.abs() >= 450, exponent, 0)


def _sums(values: torch.Tensor, exponent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of one piece: int64 (nan, +inf, -inf, zeros, finite) and float64 (min, max, sum, deviation, squares)."""
    finite = torch.isfinite(values)
    count = finite.sum()
    counts = (torch.isnan(values).sum(), (values == math.inf).sum(), (values == -math.inf).sum(), (values == 0).sum())
    if values.numel():
        low = torch.where(finite, values, math.inf).amin()
        high = torch.where(finite, values, -math.inf).amax()
    else:
        low, high = (torch.full((), x, dtype=torch.float64, device=values.device) for x in (math.inf, -math.inf))
    scaled = torch.where(finite, values, 0.0) * _power_of_two(-exponent)
    total = scaled.sum()
    away = torch.where(finite, scaled - total / count.clamp(min=1), 0.0)
    floats = (low, high, total, (away * away).sum(), (scaled * scaled).sum())
    return torch.stack([*counts, count]), torch.stack(floats)


def _merge(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The pieces as one; squared distances to the common mean after the theorem of parallel axes."""
    counts, floats = (torch.stack(column) for column in zip(*rows, strict=True))
    finite = counts[:, 4]
    present = finite.clamp(min=1)
    total = floats[:, 2].sum()
    gaps = floats[:, 2] / present - total / finite.sum().clamp(min=1)
    deviation = (floats[:, 3] + gaps * gaps * finite).sum()
    merged = (floats[:, 0].amin(), floats[:, 1].amax(), total, deviation, floats[:, 4].sum())
    return counts.sum(dim=0), torch.stack(merged)


@functools.cache
def _keys(device: torch.device) -> torch.Tensor:
    """`digest_numpy.block_keys` as int32 on `device`; copied there once."""
    return torch.from_numpy(stats_numpy.block_keys().astype(np.int32)).to(device, non_blocking=True)


def _signed(value: int) -> int:
    """An unsigned 64-bit constant as the int64 of the same bits."""
    return value - (1 << 64) if value >> 63 else value


def _splitmix(x: torch.Tensor) -> torch.Tensor:
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB)
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def _digest_lanes(data: torch.Tensor, first_block: int) -> torch.Tensor:
    """What `digest_numpy.add_bytes` adds to the lanes, as int64 of the same bits."""
    whole = data.numel() // stats_numpy.BLOCK_BYTES
    stripes = data.numel() // stats_numpy.STRIPE_BYTES * stats_numpy.STRIPE_BYTES
    end = whole * stats_numpy.BLOCK_BYTES
    keys = _keys(data.device)
    lanes = _block_lanes(data[:end].view(torch.int32).reshape(whole, _WORDS), keys, first_block)
    begin = (stripes - end) // 2
    if stripes > end:
        lanes = lanes + _block_lanes(data[end:stripes].view(torch.int32)[None], keys[:begin], first_block + whole)
    if data.numel() > stripes:  # the bytes after the last stripe make one of their own, filled with zeros
        rest = torch.nn.functional.pad(data[stripes:], (0, stats_numpy.STRIPE_BYTES - (data.numel() - stripes)))
        last = keys[begin : begin + stats_numpy.STRIPE_BYTES // 2]
        lanes = lanes + _block_lanes(rest.view(torch.int32)[None], last, first_block + whole)
    return lanes


def _block_lanes(words: torch.Tensor, keys: torch.Tensor, first_block: int) -> torch.Tensor:
    """Of 32-bit words, shape (blocks, words): the 16 lanes, each block times its multiplier, modulo 2**64."""
    words = (words ^ ((words >> 15) & 0x1FFFF)).view(torch.int16)
    products = (words.to(torch.int32) * keys).reshape(len(words), words.shape[1] // 32, stats_numpy.LANES, 2)
    state = products.sum(dim=(1, 3), dtype=torch.int64) & 0xFFFFFFFF
    index = torch.arange(first_block, first_block + len(words), dtype=torch.int64, device=words.device)
    return (state * (_splitmix(index) | 1)[:, None]).sum(dim=0)
