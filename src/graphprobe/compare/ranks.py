"""Several ranks of one run: one dump of them all, and what should be equal on every rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from graphprobe.compare.outline import fingerprint
from graphprobe.errors import UsageError
from graphprobe.store.calls import Call, CallDump, CallSlot


class MergedDump:
    """The dumps of several processes as one, see `store.calls.CallDump`."""

    format = "merged"

    def __init__(self, title: str, parts: Mapping[int, CallDump]) -> None:
        self.title = title
        self._parts = dict(sorted(parts.items()))
        self.facts = {"ranks": str(len(self._parts))}
        for part in self._parts.values():
            self.facts |= {k: v for k, v in part.facts.items() if k not in self.facts}

    def ranks(self) -> tuple[int, ...]:
        """The ranks of the index."""
        return tuple(self._parts)

    def _part(self, rank: int) -> tuple[CallDump, int]:
        """The part, and the rank it calls itself; a folder of one rank is what the index says, whatever it says."""
        part = self._parts[rank]
        own = part.ranks()
        return part, rank if rank in own else own[0]

    def steps(self, rank: int) -> tuple[int, ...]:
        """The steps of a rank."""
        part, own = self._part(rank)
        return part.steps(own)

    def calls(self, rank: int, step: int) -> Iterator[Call]:
        """The calls of a rank, which bear the rank of the index."""
        part, own = self._part(rank)
        for call in part.calls(own, step):
            yield call if call.rank == rank else msgspec.structs.replace(call, rank=rank)

    def values(self, call: Call, slot: CallSlot) -> npt.NDArray[np.generic]:
        """Values of a slot."""
        part, own = self._part(call.rank)
        return part.values(msgspec.structs.replace(call, rank=own), slot)

    def problems(self) -> tuple[str, ...]:
        """Of all parts, each with its rank."""
        return tuple(f"rank {rank}: {text}" for rank, part in self._parts.items() for text in part.problems())


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """A value that several ranks have at the same place.

    Attributes:
        what: `module.slot`, or `label.slot`.
        relation: `replicated`: equal everywhere. `sharded`: of other shapes on other ranks. `differs`: of one shape
            and not equal, so either sharded evenly or out of step; a parameter under data parallelism must not.
            `undecided`: the dump has neither digests nor statistics.
        ranks: of each group of ranks that agree, its members.
        step: of the first call that has it.
    """

    what: str
    relation: str
    ranks: tuple[tuple[int, ...], ...]
    step: int


def shared_values(dump: CallDump) -> list[Shared]:
    """Compares parameters and buffers across the ranks of one dump, at the first step that all have.

    A value is found by module, operation, index and slot. Of API calls, those inputs count that the dump says a module
    or the program holds; where it does not say, those of two dimensions or more that no earlier call gave, which are
    weights as a rule.

    Raises:
        UsageError: the dump has one rank only.
    """
    ranks = dump.ranks()
    if len(ranks) < 2:
        raise UsageError(f"{dump.title} has {len(ranks)} rank", hint="pass the folders of two ranks or more")
    steps = set(dump.steps(ranks[0])).intersection(*(dump.steps(rank) for rank in ranks[1:]))
    if not steps:
        raise UsageError(f"the ranks of {dump.title} have no step in common")
    step = min(steps)
    places: dict[str, dict[int, tuple[object, tuple[int, ...]]]] = {}
    for rank in ranks:
        for what, value in _states(dump, rank, step):
            places.setdefault(what, {}).setdefault(rank, value)
    return [_related(what, found, step) for what, found in places.items() if len(found) > 1]


def _states(dump: CallDump, rank: int, step: int) -> Iterator[tuple[str, tuple[object, tuple[int, ...]]]]:
    given: set[object] = set()
    for call in dump.calls(rank, step):
        for slot in call.slots:
            if slot.meta is None or slot.role not in ("parameter", "buffer", "input"):
                continue
            mark = fingerprint(slot)
            named = slot.role in ("parameter", "buffer")
            if slot.role == "input" and slot.held is not None:
                if slot.held:
                    yield f"{call.label}.{slot.name}", (mark, slot.meta.shape)
                continue
            weight = slot.role == "input" and len(slot.meta.shape) >= 2 and mark is not None and mark not in given
            weight = weight and slot.name not in ("input.0", "kwarg.input") and call.direction == "forward"
            if named or weight:
                path = call.module or call.label
                yield f"{path}.{slot.name}" if named else f"{call.label}.{slot.name}", (mark, slot.meta.shape)
        given.update(m for s in call.slots if s.role == "output" and (m := fingerprint(s)) is not None)


def _related(what: str, found: dict[int, tuple[object, tuple[int, ...]]], step: int) -> Shared:
    shapes = {shape for _, shape in found.values()}
    groups: dict[object, list[int]] = {}
    for rank, value in found.items():
        groups.setdefault(value, []).append(rank)
    if any(mark is None for mark, _ in found.values()):
        relation = "undecided"
    elif len(shapes) > 1:
        relation = "sharded"
    else:
        relation = "replicated" if len(groups) == 1 else "differs"
    return Shared(what=what, relation=relation, ranks=tuple(tuple(g) for g in groups.values()), step=step)
