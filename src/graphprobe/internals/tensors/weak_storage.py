"""Memory of a tensor, watched without keeping it alive."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing import reductions

from graphprobe.internals.quiet import quiet

_weak: Any = getattr(reductions, "StorageWeakRef", None)  # not annotated


class WeakStorages:
    """The storages of some tensors, to be known again while they live. The program frees them as if nobody looked."""

    __slots__ = ("_held", "_ids")

    def __init__(self, values: Iterable[object]) -> None:
        """What is no tensor, or has no storage, counts for nothing."""
        storages = _storages(values)
        # What a weak reference is to is not freed whole: nothing else gets its id.
        self._held = [_weak(storage) for storage in storages.values()]
        self._ids = frozenset(storages)

    def shared(self, ids: frozenset[int]) -> int:
        """How many of the storages are among those that `storage_ids` has named, which still live."""
        return len(self._ids & ids)


def storage_ids(values: Iterable[object]) -> frozenset[int]:
    """Identifiers of the storages of those values that are tensors and have one; good for as long as these live."""
    return frozenset(_storages(values))


def _storages(values: Iterable[object]) -> dict[int, torch.UntypedStorage]:
    found = {}
    for value in values if _weak is not None else ():
        if isinstance(value, torch.Tensor):
            try:
                storage = value.untyped_storage()
                found[storage._cdata] = storage
            except Exception:  # no storage: sparse, or a subclass that keeps its values elsewhere
                continue
    return found


class WeakMemory:
    """The memory a tensor lies in, and how it lies there. The program frees the memory as if nobody looked."""

    __slots__ = ("_dtype", "_free", "_offset", "_size", "_stride", "_weak", "device")

    def __init__(self, tensor: torch.Tensor) -> None:
        """`tensor` is strided and has a storage.

        Raises:
            RuntimeError: it has none.
        """
        storage = tensor.untyped_storage()
        self._free = torch.UntypedStorage._free_weak_ref  # kept: torch may be gone before the last of these
        self._weak = storage._weak_ref()
        self._dtype, self._offset = tensor.dtype, tensor.storage_offset()
        self._size, self._stride = tuple(tensor.shape), tuple(tensor.stride())
        self.device = tensor.device

    def __del__(self) -> None:
        weak = getattr(self, "_weak", None)
        if weak is not None:
            self._free(weak)

    @property
    def gone(self) -> bool:
        """Whether the program has freed it."""
        return bool(torch.UntypedStorage._expired(self._weak))

    def tensor(self) -> torch.Tensor | None:
        """What lies there now, as a tensor that keeps the memory alive; None when it is gone."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self._weak)
        if storage is None:
            return None
        with quiet():
            empty = torch.empty(0, dtype=self._dtype, device=self.device)
            return empty.set_(storage, self._offset, self._size, self._stride)


def version_of(tensor: torch.Tensor) -> int | None:
    """How often operators have changed the tensor in place; None of one made in inference mode, which has no count."""
    return None if tensor.is_inference() else int(tensor._version)


def span_of(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Address of the storage, and of the first byte and the one after the last that the tensor may lie on.

    Raises:
        RuntimeError: it has no storage.
    """
    memory = tensor.untyped_storage().data_ptr()
    begin = tensor.data_ptr()
    if not tensor.numel():
        return memory, begin, begin
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return memory, begin, begin + (last + 1) * tensor.element_size()
