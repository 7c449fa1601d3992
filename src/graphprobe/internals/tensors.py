"""Finds the plain tensor inside one that wraps it (`vmap`, `grad`, DTensor, nested), its memory; the leaves of trees.

`is_neg()` and `is_conj()` give it up for a moment, and a thread that waits for it takes it: the program would stand
still for as long as that thread likes, at every value that is looked at. What torch notes of a tensor when it saves
one tells the same, and keeps it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.fx import Graph
from torch.multiprocessing import reductions
from torch.utils import _pytree

from graphprobe.internals.names import require
from graphprobe.internals.quiet import quiet

PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
"""Classes that keep their values in a storage of their own, as it seems."""

_lazy: Callable[[torch.Tensor], Any] = torch._C._get_tensor_metadata  # type: ignore[attr-defined]
"""`{}`, or what is still to be done to the items: `{"neg": True}`, `{"conj": True}`."""
_STRIDED = torch.strided

_weak: Any = reductions.StorageWeakRef  # not annotated

_PURPOSE = "recording calls inside torch.vmap and torch.func"

is_wrapped: Callable[[Any], bool] = require("torch._C._functorch", "is_functorch_wrapped_tensor", purpose=_PURPOSE)
"""Whether a transform of functorch stands between the program and a tensor's memory."""
_is_batched: Callable[[Any], bool] = require("torch._C._functorch", "is_batchedtensor", purpose=_PURPOSE)
_batch_dim: Callable[[Any], int] = require("torch._C._functorch", "maybe_get_bdim", purpose=_PURPOSE)
_unwrap: Callable[[Any], torch.Tensor] = require("torch._C._functorch", "get_unwrapped", purpose=_PURPOSE)

LEVELS = ("torch._functorch", "torch._C._functorch", "torch.autograd.forward_ad")
"""Modules of the functions that Dynamo puts around what is transformed, as prefixes."""


def is_plain(tensor: Any) -> bool:
    """Whether the items of `tensor` lie on the CPU as they are: no subclass, no layout of its own, no lazy view, and
    memory for all of them."""
    if type(tensor) not in PLAIN_TYPES or not tensor.is_cpu or tensor.layout is not _STRIDED:
        return False
    return not is_lazy(tensor) and is_backed(tensor)


class InputMemory:
    """The inputs of compiled code, those of a class that says nothing of its memory as plain tensors of that memory.

    Compiled code takes such an input for its memory. Where torch calls an operator, it asks the class, and may refuse
    it. What the code gives back of its inputs is what it would have been: `restored`.
    """

    def __init__(self, given: Iterable[Any]) -> None:
        self._kept: dict[int, tuple[Any, Any]] = {}
        self.values = [self._plain(value) for value in given]

    def _plain(self, value: Any) -> Any:
        kind = type(value)
        if kind in PLAIN_TYPES or not isinstance(value, torch.Tensor):
            return value
        if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            return value
        plain = value.as_subclass(torch.Tensor)
        self._kept[id(plain)] = (plain, value)
        return plain

    def restored(self, result: Any) -> Any:
        """What the code gave, with its inputs as they came."""
        if not self._kept or not isinstance(result, (list, tuple)):
            return result
        return type(result)([self._kept.get(id(value), (None, value))[1] for value in result])


def is_backed(tensor: torch.Tensor) -> bool:
    """Whether the storage of a strided tensor has memory, and room for its items.

    FSDP takes it away between the uses of a parameter, by `resize_(0)`, and leaves the tensor with its shape; a
    subclass that wraps other tensors has a storage with a size and no address.
    """
    items = tensor.numel()
    if not items:
        return True
    if not tensor.is_contiguous():
        items = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    try:
        size_bytes: int = tensor.untyped_storage().nbytes()
    except RuntimeError:  # inside a functorch transform
        return False
    if tensor.data_ptr() == tensor.storage_offset() * tensor.itemsize:
        return False
    return size_bytes >= (tensor.storage_offset() + items) * tensor.itemsize


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether it shows its memory negated or conjugated."""
    return bool(_lazy(tensor))


def without_transforms() -> AbstractContextManager[Any]:
    """A block in which operators work on plain tensors, and wrap nothing."""
    made: AbstractContextManager[Any] = require(
        "torch._functorch.pyfunctorch", "temporarily_clear_interpreter_stack", purpose=_PURPOSE
    )()
    return made


def physical(tensor: torch.Tensor) -> tuple[torch.Tensor, str]:
    """The tensor that has the memory, and in words what the program does not see of it; empty for a plain tensor."""
    batches = []
    while is_wrapped(tensor):
        if _is_batched(tensor):
            batches.append(_batch_dim(tensor))
        tensor = _unwrap(tensor)
    if not batches:
        return tensor, ""
    dims = ", ".join(map(str, batches))
    return tensor, f"inside torch.vmap: values of the whole batch, batched dimension {dims} of the recorded shape"


def local_of(tensor: torch.Tensor) -> tuple[torch.Tensor, str]:
    """The plain tensor that holds the values, and a note that says what is recorded; any other tensor as it is, and no
    note."""
    if tensor.layout is torch.jagged:
        values = getattr(tensor, "_values", None)
        if isinstance(values, torch.Tensor):
            return values, "a nested tensor: what is recorded are the values of all its parts, one after the other"
        return tensor, ""
    module = sys.modules.get("torch.distributed.tensor")  # where nobody has loaded it, there is no DTensor
    kind = getattr(module, "DTensor", None)
    if kind is None or not isinstance(tensor, kind):
        return tensor, ""
    local = getattr(tensor, "_local_tensor", None)
    if not isinstance(local, torch.Tensor):
        return tensor, ""
    placed = ", ".join(str(placement) for placement in getattr(tensor, "placements", ()))
    return local, f"a DTensor {list(tensor.shape)} ({placed}): what is recorded is the part of this rank"


def has_levels(graph: Graph) -> bool:
    """Whether values of the graph live in levels of `vmap`, `grad`, `jvp` or what is made of them."""
    return any(
        n.op == "call_function" and str(getattr(n.target, "__module__", "")).startswith(LEVELS) for n in graph.nodes
    )


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
    for value in values:
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


def tree_leaves(tree: Any) -> list[Any]:
    """The leaves of nested containers, registered ones included, in order."""
    found: list[Any] = _pytree.tree_leaves(tree)
    return found


def tree_map(change: Callable[[Any], Any], tree: Any) -> Any:
    """`tree` with `change` applied to each leaf."""
    return _pytree.tree_map(change, tree)


def structure_of(tree: Any) -> str:
    """The containers of a nested value as text: their types, lengths and keys, with a star for each leaf."""
    return str(_pytree.tree_structure(tree))
