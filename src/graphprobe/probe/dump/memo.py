"""Statistics that are still good: of memory that no op has written to since they were computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from graphprobe.engine.tensor_stats import stats_of_plain
from graphprobe.probe.dump.tensors import live_stats
from graphprobe.records import TensorMeta, TensorStats

Stats = TensorStats | Callable[[], TensorStats]

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


class StatsMemo:
    """The statistics of one call of a graph, by the memory they are of. For one thread.

    Good only for one who is told of every op of the graph. What overwrites memory without being declared to, it does
    not see; the values themselves, and the watch mode, show that.
    """

    def __init__(self) -> None:
        # By storage; then by address, dtype and number of items of what lies there without gaps, else by address and
        # meta, which is held so that no other one gets its id.
        self._known: dict[int, dict[tuple[Any, ...], tuple[Stats, TensorMeta]]] = {}

    def written(self, values: Iterable[Any]) -> None:
        """These tensors have been, or may have been, written to: what is known of their memory no longer holds."""
        known = self._known
        for value in values:
            memory = _memory(value) if known else None
            if memory is not None:
                known.pop(memory, None)

    def stats(self, tensor: torch.Tensor, meta: TensorMeta) -> Stats:
        """The statistics of a tensor that `meta` is of. Raises as `live_stats` does."""
        memory = _memory(tensor)
        if memory is None or tensor.is_neg() or (tensor.is_complex() and tensor.is_conj()):
            return live_stats(tensor)
        known = self._known.get(memory)
        if known is None:
            known = self._known[memory] = {}
        address = tensor.data_ptr()
        # Statistics and digests see the items in row-major order: the shape of contiguous ones makes no difference.
        dense = tensor.is_contiguous()
        key = (address, tensor.dtype, tensor.numel()) if dense else (address, id(meta))
        found = known.get(key)
        if found is None:
            stats = stats_of_plain(tensor) if tensor.is_cpu else live_stats(tensor)
            found = known[key] = (stats, meta)
        return found[0]


def _memory(value: Any) -> int | None:
    """Address of the storage; None of what has none, or is empty."""
    if type(value) not in _PLAIN or value.layout is not torch.strided or value.is_meta:
        return None
    return int(value.untyped_storage().data_ptr()) or None
