"""Statistics that are still good: of memory that no op has written to since they were computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from graphprobe.probe.dump.tensors import meta_of
from graphprobe.records import TensorStats
from graphprobe.store.dump_records import DumpValue, Side

Stats = TensorStats | Callable[[], TensorStats]


class StatsMemo:
    """The statistics of one call of a graph, by the memory they are of. For one thread.

    Good only for one who is told of every op of the graph. What overwrites memory without being declared to, it does
    not see; the values themselves, and the watch mode, show that.
    """

    def __init__(self) -> None:
        self._known: dict[int, dict[Any, Stats]] = {}

    def written(self, values: Iterable[Any]) -> None:
        """These tensors have been, or may have been, written to: what is known of their memory no longer holds."""
        for value in values:
            memory = _memory(value)
            if memory is not None:
                self._known.pop(memory, None)

    def value(self, name: str, side: Side, tensor: torch.Tensor, make: Callable[[], DumpValue]) -> DumpValue:
        """The value of a slot, with known statistics if there are any; else what `make` returns."""
        memory = _memory(tensor)
        if memory is None:
            return make()
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
        known = self._known.setdefault(memory, {})
        stats = known.get(key)
        if stats is not None:
            return DumpValue(name, side, meta_of(tensor), stats=stats)
        made = make()
        if made.stats is not None:
            known[key] = made.stats
        return made


def _memory(value: Any) -> int | None:
    """Address of the storage; None of what has none, or is empty."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided or value.is_meta:
        return None
    return int(value.untyped_storage().data_ptr()) or None
