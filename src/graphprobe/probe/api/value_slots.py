"""From a live tensor to a slot: its statistics and, on request, its values, as they are at this moment.

What has been seen already is not looked at again: a tensor is known by its identity, memory and version counter as long
as it lives, and memory by its address; what the counter does not see (`LEAKS` in `plan`) is never taken as known.
Parameters, buffers and leaves are state; the rest is data, or a result.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import torch

from graphprobe.engine.tensor_stats import (
    Forms,
    TensorForm,
    meta_of,
    readable,
    stats_in_memory,
    stats_of,
    text_of,
)
from graphprobe.internals.operators.api_calls import own_buffers, own_parameters
from graphprobe.internals.quiet import quiet
from graphprobe.internals.tensors import (
    PLAIN_TYPES,
    is_backed,
    is_lazy,
    is_plain,
    is_wrapped,
    local_of,
    physical,
    without_transforms,
)
from graphprobe.probe.dump.tensors import PLAIN_SCALARS, _memory, _to_host, is_capturing, leaves, live_stats, scalar_of
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store.api_writer import ApiWriter, Handed, RawSlot, RawValue, Slot, value_name
from graphprobe.store.calls import Holder, SlotRole, WrittenSlot
from graphprobe.store.dump_dtypes import Array

_MANY_HELD = 65536
"""Tensors from which those that are gone are forgotten."""

_PARAMETER = torch.nn.Parameter
ENDS = 256
"""Elements at either end that a sample has in full."""

_CROWDED = 8192

OnTensor = Callable[[str, SlotRole, torch.Tensor], None]

INPUTS = tuple(f"input.{number}" for number in range(64))
_slots: dict[tuple[str, type, Any], Slot] = {}


class HeldTensors:
    """The tensors of the modules that were met. Keeps none alive; may be used from any thread."""

    def __init__(self) -> None:
        self._by_identity: dict[int, tuple[weakref.ref[torch.Tensor], Holder]] = {}
        self._by_address: dict[int, tuple[weakref.ref[torch.Tensor], Holder]] = {}
        self._roots: dict[int, weakref.ref[torch.nn.Module]] = {}

    def learn(self, module: torch.nn.Module, *, below: bool = False) -> None:
        """Those of a module, which may have got others since it was met last; `below`: and once, of all inside it."""
        if below:
            known = self._roots.get(id(module))
            if known is None or known() is not module:
                self._roots[id(module)] = weakref.ref(module)
                for one in module.modules():
                    self.learn(one)
                return
        for tensor in own_buffers(module).values():
            if tensor is not None:
                self._learn(tensor, "buffer")
        for parameter in own_parameters(module).values():
            if parameter is not None:
                self._learn(parameter, "parameter")

    def holder_of(self, tensor: torch.Tensor, address: int) -> Holder:
        """What keeps `tensor`, whose memory begins at `address`; what shares a parameter's memory is the parameter."""
        kind = type(tensor)
        # Parameter's own instance check runs in Python.
        if kind is torch.nn.Parameter or (kind is not torch.Tensor and isinstance(tensor, torch.nn.Parameter)):
            return "parameter"
        found = self._by_identity.get(id(tensor))
        if found is not None and found[0]() is tensor:
            return found[1]
        found = self._by_address.get(address)
        if found is not None and address:
            held = found[0]()
            if held is not None and held.data_ptr() == address:
                return found[1]
        try:
            return "leaf" if tensor.requires_grad and tensor.is_leaf else ""
        except RuntimeError:  # a view made without gradients and written to with them does not tell
            return ""

    def _learn(self, tensor: torch.Tensor, holder: Holder) -> None:
        known = self._by_identity.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return
        if len(self._by_identity) > _MANY_HELD:
            self._by_identity = {key: one for key, one in self._by_identity.items() if one[0]() is not None}
            self._by_address = {key: one for key, one in self._by_address.items() if one[0]() is not None}
        entry = (weakref.ref(tensor), holder)
        self._by_identity[id(tensor)] = entry
        try:
            self._by_address[tensor.data_ptr()] = entry
        except RuntimeError:  # no memory of its own
            return


class Known(msgspec.Struct, gc=False):
    """What was found of a tensor."""

    alive: Callable[[], torch.Tensor | None]
    version: int
    address: int
    meta: TensorMeta
    stats: TensorStats | Callable[[], TensorStats] | None
    payload: Handed | None
    sampled: bool
    missing: str


class Values:
    """Makes slots of tensors. One for a dump; may be used from any thread.

    Attributes:
        held: what keeps tensors between calls.
        notes: what there is to say of the tensors of the call at hand; whoever makes the call takes it.
    """

    def __init__(self, *, keep: bool, sample: int | None, writer: ApiWriter) -> None:
        """`keep`: values, not only statistics; `sample`: every so many of the middle; `writer`: gets the values."""
        self._keep = keep
        self._sample = sample
        self._writer = writer
        self._handed = writer.known
        self._known: dict[int, Known] = {}
        self._memory: dict[tuple[int, int, torch.dtype], Known] = {}
        self._forms = Forms()
        self._unwatched: set[int] = set()
        self.held = HeldTensors()
        self.notes: list[str] = []

    def slot(self, name: str, role: SlotRole, tensor: torch.Tensor) -> Slot:
        """The slot of a tensor of any class, layout and device; one whose values cannot be had says why."""
        cls = type(tensor)
        if cls not in PLAIN_TYPES:
            return self._special(name, role, tensor)
        try:
            address = tensor.data_ptr()
            version = tensor._version
        except RuntimeError:  # no memory, or made in inference mode
            return self._special(name, role, tensor)
        known = self._known.get(id(tensor))
        if (
            known is None
            or known.version != version
            or known.address != address
            or known.alive() is not tensor
            or known.meta.shape != tensor.shape
        ):
            known = self._found(tensor, address, version)
        held: Holder = ""
        if role == "input":
            held = "parameter" if cls is _PARAMETER else self.held.holder_of(tensor, address)
        stats = known.stats
        if known.payload is None and not callable(stats):
            return WrittenSlot(
                name, role, known.meta, stats, None, "", False, known.missing, tensor.requires_grad, held
            )
        return RawSlot(
            name, role, known.meta, stats, None, known.payload, known.sampled, known.missing, tensor.requires_grad, held
        )

    def forget(self, tensor: torch.Tensor) -> None:
        """Nothing is known of a tensor any more: it may have been written to."""
        known = self._known.pop(id(tensor), None)
        if known is not None:
            self._memory.pop((known.address, tensor.numel(), tensor.dtype), None)

    def forget_all(self) -> None:
        """Nothing is known any more: memory was written to by something that does not say where."""
        self._known.clear()
        self._memory.clear()

    def unwatch(self, tensor: torch.Tensor) -> None:
        """The program has got at the memory itself: from now on it is looked at each time."""
        try:
            memory = tensor.untyped_storage()
            begin = memory.data_ptr()
        except Exception:  # no storage: then it is never taken as known
            return
        if begin not in self._unwatched:
            self._unwatched.add(begin)
            end = begin + memory.nbytes()
            self._known = {key: known for key, known in self._known.items() if not begin <= known.address < end}
            self._memory = {key: known for key, known in self._memory.items() if not begin <= key[0] < end}

    def _found(self, tensor: torch.Tensor, address: int, version: int) -> Known:
        form: TensorForm | None = None
        whole: tuple[int, int, torch.dtype] | None = None
        if is_plain(tensor):
            form = self._forms.of(tensor)
            meta = form.meta
            if form.strides is None:
                whole = (address, form.count, tensor.dtype)
        else:
            meta = meta_of(tensor)
            if tensor.is_contiguous() and not is_lazy(tensor):
                whole = (address, tensor.numel(), tensor.dtype)
        watched = not self._unwatched or tensor.untyped_storage().data_ptr() not in self._unwatched
        alive = weakref.ref(tensor)
        if whole is not None and watched:
            same = self._memory.get(whole)
            if same is not None and same.version == version and same.alive() is not None:
                found = same.stats, same.payload, same.sampled, same.missing
                known = self._known[id(tensor)] = Known(alive, version, address, meta, *found)
                return known
        if form is not None and form.kind is not None and not self._keep:  # the usual case, without a detour
            stats = stats_in_memory(address, form.kind, form.items, form.strides, form.count)
            known = Known(alive, version, address, meta, stats, None, False, "")
        else:
            known = Known(alive, version, address, meta, *self._look(tensor))
        if watched:
            if len(self._known) > _CROWDED:
                self._tidy()
            self._known[id(tensor)] = known
            if whole is not None:
                self._memory[whole] = known
        return known

    def _special(self, name: str, role: SlotRole, tensor: torch.Tensor) -> Slot:
        requires_grad, meta = tensor.requires_grad, None
        held: Holder = self._special_holder(tensor) if role == "input" else ""
        try:
            with quiet():
                transformed = is_wrapped(tensor)
                inner, note = physical(tensor) if transformed else local_of(tensor)
                if note and note not in self.notes:
                    self.notes.append(note)
                with without_transforms() if transformed else contextlib.nullcontext():
                    meta = meta_of(inner)
                    found = self._look(readable(inner))
        except Exception as error:
            return RawSlot(name, role, meta, missing=_why(error), requires_grad=requires_grad, held=held)
        return RawSlot(name, role, meta, found[0], None, found[1], found[2], found[3], requires_grad, held)

    def _special_holder(self, tensor: torch.Tensor) -> Holder:
        """Of a tensor whose memory cannot be asked for as it is; inside a transform, of the one below."""
        try:
            below = physical(tensor)[0] if is_wrapped(tensor) else tensor
            return self.held.holder_of(below, 0)
        except Exception:  # a tensor of a class of its own may answer nothing
            return ""

    def _look(
        self, tensor: torch.Tensor
    ) -> tuple[TensorStats | Callable[[], TensorStats] | None, Handed | None, bool, str]:
        try:
            if is_lazy(tensor):
                tensor = readable(tensor)
            if tensor.is_cpu:
                stats = stats_of(tensor)
                if not self._keep or not stats.count:
                    return stats, None, False, ""
                payload, sampled = self._payload(tensor, stats.digest)
                return stats, payload, sampled, ""
            if tensor.layout is torch.strided and not tensor.is_meta and not is_backed(tensor):
                return None, None, False, "its storage has no memory for it"
            if is_capturing():
                return None, None, False, "work of this stream goes into a CUDA graph: nothing can be copied meanwhile"
            return self._look_at_device(tensor)
        except Exception as error:
            return None, None, False, _why(error)

    def _payload(self, tensor: torch.Tensor, digest: str) -> tuple[Handed, bool]:
        count, dtype = tensor.numel(), text_of(tensor.dtype)
        every = self._every(count)
        kept = count if every is None else 2 * ENDS + -(-(count - 2 * ENDS) // every)
        name = value_name(digest, dtype, kept, sample=every)
        handed = Handed(name)
        if name in self._handed:
            return handed, every is not None
        if every is None and tensor.is_contiguous():
            data = self._writer.pool.copy(_memory(tensor))
        else:
            with quiet():
                flat = sampled_values(tensor, every)
            data = self._writer.pool.copy(_memory(flat))
        self._handed.add(name)
        self._writer.hand_in(RawValue(handed, None, dtype, kept, data, every, data.nbytes))
        return handed, every is not None

    def _look_at_device(self, tensor: torch.Tensor) -> tuple[Callable[[], TensorStats], Handed | None, bool, str]:
        waits: Any = live_stats(tensor)
        stats = functools.cache(waits)
        if not self._keep or not tensor.numel():
            return stats, None, False, ""
        every = self._every(tensor.numel())
        with quiet():
            flat = sampled_values(tensor, every)
            wait = _to_host(flat)
        count, size_bytes = flat.numel(), flat.numel() * flat.element_size()
        handed = Handed(None)
        self._writer.hand_in(
            RawValue(handed, stats, text_of(tensor.dtype), count, lambda: _array(wait()), every, size_bytes)
        )
        return stats, handed, every is not None, ""

    def _every(self, count: int) -> int | None:
        """Step of the sample of so many elements; None where all are kept."""
        return self._sample if self._sample is not None and self._sample > 1 and count > 2 * ENDS else None

    def _tidy(self) -> None:
        for one, entry in list(self._known.items()):
            if entry.alive() is None:
                self._known.pop(one, None)
        if len(self._known) > _CROWDED // 2:
            self._known.clear()
        self._memory.clear()


def sampled_values(tensor: torch.Tensor, every: int | None) -> torch.Tensor:
    """The first 256, every n-th of the middle, the last 256; all without `every`. 1-d, row-major."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat if every is None else torch.cat((flat[:ENDS], flat[ENDS:-ENDS:every], flat[-ENDS:]))


def _array(tensor: torch.Tensor) -> Array:
    return np.frombuffer(_memory(tensor), dtype=np.uint8)


def _why(error: Exception) -> str:
    hint = getattr(error, "hint", "")
    return f"{error}; {hint}" if hint else str(error) or type(error).__name__


def take(name: str, role: SlotRole, value: Any, slots: list[Slot], on_tensor: OnTensor) -> None:
    """Put `value` into `slots` under `name`; each tensor in it, however deep, goes to `on_tensor` in its place."""
    kind = type(value)
    if kind in PLAIN_TYPES:
        on_tensor(name, role, value)
    elif kind in PLAIN_SCALARS:
        slots.append(scalar_slot(name, role, value))
    else:
        for leaf, item in leaves(name, value):
            if isinstance(item, torch.Tensor):
                on_tensor(leaf, role, item)
            else:
                slots.append(scalar_slot(leaf, role, item))


def scalar_slot(name: str, role: SlotRole, value: Any) -> Slot:
    """The slot of what is no tensor; programs pass the same numbers and texts again and again."""
    if type(value) not in PLAIN_SCALARS or value == 0 or role != "input":  # the sign of zero is in the text alone
        return WrittenSlot(name, role, None, None, scalar_of(value))
    key = (name, type(value), value)
    found = _slots.get(key)
    if found is None:
        found = WrittenSlot(name, role, None, None, scalar_of(value))
        if len(_slots) < 4096:
            _slots[key] = found
    return found
