"""A dump that kept values only, read as if it had kept their statistics: they are computed as the calls are read."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from graphprobe.errors import ArtifactNotFoundError, UsageError
from graphprobe.numerics.stats import stats_from_memory
from graphprobe.records import TensorStats
from graphprobe.store.calls import Call, CallDump, CallSlot


class WithStatistics:
    """A `CallDump` whose slots have statistics wherever it has statistics or whole values."""

    def __init__(self, dump: CallDump) -> None:
        self.title, self.format, self.facts = dump.title, dump.format, dump.facts
        self._dump = dump
        self._problems: dict[str, None] = {}

    def ranks(self) -> tuple[int, ...]:
        return self._dump.ranks()

    def steps(self, rank: int) -> tuple[int, ...]:
        return self._dump.steps(rank)

    def calls(self, rank: int, step: int) -> Iterator[Call]:
        for call in self._dump.calls(rank, step):
            if any(slot.stats is None and slot.value for slot in call.slots):
                call = msgspec.structs.replace(call, slots=tuple(self._filled(call, slot) for slot in call.slots))
            yield call

    def values(self, call: Call, slot: CallSlot) -> npt.NDArray[np.generic]:
        return self._dump.values(call, slot)

    def problems(self) -> tuple[str, ...]:
        return (*self._dump.problems(), *self._problems)

    def _filled(self, call: Call, slot: CallSlot) -> CallSlot:
        if slot.stats is not None or not slot.value or slot.sampled or slot.meta is None:
            return slot
        try:
            values = np.ascontiguousarray(self._dump.values(call, slot))
            stats = stats_from_memory(values.ctypes.data, slot.meta.dtype, slot.meta.shape)
        except (ArtifactNotFoundError, UsageError) as error:
            self._problems[str(error)] = None
            return slot
        digest = slot.digest or stats.digest
        kind = slot.digest_kind or "graphprobe"
        return msgspec.structs.replace(
            slot, stats=stats, known=TensorStats.__struct_fields__, digest=digest, digest_kind=kind
        )
