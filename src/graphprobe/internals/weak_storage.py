"""Memory of a tensor, watched without keeping it alive."""

from __future__ import annotations

import torch

from graphprobe.internals.quiet import quiet


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
