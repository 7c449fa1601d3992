"""Statistics that are still good: of memory that no op has written to since they were computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from graphprobe.engine.tensor_forms import Forms, TensorForm, meta_of
from graphprobe.engine.tensor_stats import stats_in_memory
from graphprobe.internals.tensors.plain_tensors import PLAIN_TYPES, is_plain
from graphprobe.probe.dump.tensors import live_stats
from graphprobe.records import TensorMeta, TensorStats

_forms = Forms()

Stats = TensorStats | Callable[[], TensorStats]


class StatsMemo:
    """The statistics of one call of a graph, by the memory they are of. For one thread.

    Good only for one who is told of every op of the graph. What overwrites memory without being declared to, it does
    not see; the values themselves, and the watch mode, show that.
    """

    def __init__(self) -> None:
        # By storage; then by address, dtype and number of items of what lies there without gaps, else by address and
        # form or meta, which is held so that no other one gets its id. A kind stands for its dtype.
        self._known: dict[int, dict[tuple[Any, ...], tuple[Stats, TensorForm | TensorMeta]]] = {}

    def written(self, values: Iterable[Any]) -> None:
        """These tensors have been, or may have been, written to: what is known of their memory no longer holds."""
        known = self._known
        for value in values:
            memory = _memory(value) if known else None
            if memory is not None:
                known.pop(memory, None)

    def look(self, tensor: torch.Tensor) -> tuple[TensorMeta, Stats]:
        """What a tensor is, and its statistics. Raises as `live_stats` does."""
        form = _forms.of(tensor) if is_plain(tensor) else None
        if form is None or form.kind is None:
            meta = meta_of(tensor)
            return meta, self._elsewhere(tensor, meta)
        kind = form.kind
        address = tensor.data_ptr()
        memory = address - int(tensor.storage_offset()) * kind[2]
        known = self._known.get(memory)
        if known is None:
            known = self._known[memory] = {}
        # Statistics and digests see the items in row-major order: the shape of contiguous ones makes no difference.
        key = (address, kind, form.count) if form.strides is None else (address, id(form))
        found = known.get(key)
        if found is None:
            stats = stats_in_memory(address, kind, form.items, form.strides, form.count)
            found = known[key] = (stats, form)
        return form.meta, found[0]

    def _elsewhere(self, tensor: torch.Tensor, meta: TensorMeta) -> Stats:
        """Of what is no plain tensor on the CPU; lazy views, which show other values than lie there, anew each time."""
        memory = _memory(tensor)
        if memory is None or tensor.is_neg() or tensor.is_conj():
            return live_stats(tensor)
        known = self._known.setdefault(memory, {})
        key = (tensor.data_ptr(), id(meta))
        if key not in known:
            known[key] = (live_stats(tensor), meta)
        return known[key][0]


def _memory(value: Any) -> int | None:
    """Address of the storage; None of what has none, or is empty."""
    if is_plain(value):
        return int(value.data_ptr() - value.storage_offset() * value.itemsize)
    if type(value) not in PLAIN_TYPES or value.layout is not torch.strided or value.is_meta:
        return None
    return int(value.untyped_storage().data_ptr()) or None
