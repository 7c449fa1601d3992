"""Several ranks of one run: one dump of them all, and what should be equal on every rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from graphprobe.compare.outline import fingerprint
from graphprobe.compare.randomness import is_undefined, overwrites
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
        relation: `replicated`: equal everywhere. `sharded`: of other shapes on other ranks, or each a shard of a
            distributed tensor. `differs`: of one shape and not equal, so either sharded evenly or out of step; a
            parameter under data parallelism must not. `changed_unseen`: sharded, and on some ranks not what the
            optimizer's step before has left, though no call that was recorded gave it; on the others it is.
            `undecided`: the dump has neither digests nor statistics.
        ranks: of each group of ranks that agree, its members.
        step: of the first call that has it; of a value that differs, the first step in which it does.
        odd: ranks that have gone their own way: they are fewer, or their value was written by a call that the others
            do not make; empty where nothing tells.
        written_by: the label of that call on the first of them, or empty.
    """

    what: str
    relation: str
    ranks: tuple[tuple[int, ...], ...]
    step: int
    odd: tuple[int, ...] = ()
    written_by: str = ""


class _Held(msgspec.Struct, frozen=True, gc=False):
    """A held value at one place of one rank: fingerprint, shape, whether it is a shard, and the call that gave it.

    left: whether it is what a call gave; None where the optimizer has not left the parameter otherwise before.
    """

    mark: object
    shape: tuple[int, ...]
    shard: bool
    writer: str
    left: bool | None = None


def shared_values(dump: CallDump) -> list[Shared]:
    """Compares parameters and buffers across the ranks of one dump, in every step that all have.

    A value is found by module, operation, index and slot. Of API calls, those inputs count that the dump says a module
    or the program holds; where it does not say, those of two dimensions or more that no earlier call gave, which are
    weights as a rule. Memory that nobody has written to yet does not count, and neither does what a call overwrites.

    Raises:
        UsageError: the dump has one rank only.
    """
    ranks = dump.ranks()
    if len(ranks) < 2:
        raise UsageError(f"{dump.title} has {len(ranks)} rank", hint="pass the folders of two ranks or more")
    steps = set(dump.steps(ranks[0])).intersection(*(dump.steps(rank) for rank in ranks[1:]))
    if not steps:
        raise UsageError(f"the ranks of {dump.title} have no step in common")
    result: dict[str, Shared] = {}
    writers: dict[int, dict[object, str]] = {rank: {} for rank in ranks}
    left: dict[int, dict[str, object]] = {rank: {} for rank in ranks}
    for step in sorted(steps):
        places: dict[str, dict[int, _Held]] = {}
        labels: dict[int, set[str]] = {rank: set() for rank in ranks}
        for rank in ranks:
            for what, value in _states(dump, rank, step, writers[rank], labels[rank], left[rank]):
                places.setdefault(what, {}).setdefault(rank, value)
        for what, found in places.items():
            if len(found) > 1 and (what not in result or result[what].relation == "replicated"):
                related = _related(what, found, step, labels)
                if what not in result or related.relation != "replicated":
                    result[what] = related
            unseen = _changed_unseen(what, found, step)
            if unseen is not None and result[what].relation == "sharded":
                result[what] = unseen
    return list(result.values())


def _changed_unseen(what: str, found: dict[int, _Held], step: int) -> Shared | None:
    """A value that something changed between two steps of the optimizer, on some of its ranks."""
    changed = tuple(rank for rank, value in found.items() if value.left is False)
    kept = tuple(rank for rank, value in found.items() if value.left)
    if not changed or not kept:
        return None
    return Shared(what=what, relation="changed_unseen", ranks=(kept, changed), step=step, odd=changed)


def _states(
    dump: CallDump, rank: int, step: int, writers: dict[object, str], labels: set[str], left: dict[str, object]
) -> Iterator[tuple[str, _Held]]:
    """What is held in a step. Kept up to date: `writers`, by fingerprint the call that gave it last; `labels` of all
    calls of the step; `left`, by parameter what the optimizer's last step made of it."""
    given: set[object] = set()
    unwritten: set[object] = set()
    for call in dump.calls(rank, step):
        labels.add(call.label)
        shard = any(note.startswith("a DTensor ") and "(S" in note for note in call.notes)
        for slot in call.slots:
            if slot.meta is None or slot.role not in ("parameter", "buffer", "input"):
                continue
            mark = fingerprint(slot)
            if mark in unwritten or overwrites(call):
                continue
            named = slot.role in ("parameter", "buffer")
            before = left.get(slot.name.removeprefix("parameter.")) if call.kind == "optimizer" else None
            known = None if before is None or mark is None else mark in writers
            held = _Held(mark, slot.meta.shape, shard, writers.get(mark, ""), known)
            if slot.role == "input" and slot.held is not None:
                if slot.held:
                    yield f"{call.label}.{slot.name}", held
                continue
            weight = slot.role == "input" and len(slot.meta.shape) >= 2 and mark is not None and mark not in given
            weight = weight and slot.name not in ("input.0", "kwarg.input") and call.direction == "forward"
            if named or weight:
                path = call.module or call.label
                yield f"{path}.{slot.name}" if named else f"{call.label}.{slot.name}", held
        outputs = {m for s in call.slots if s.role == "output" and (m := fingerprint(s)) is not None}
        given |= outputs
        if is_undefined(call):
            unwritten |= outputs
        if call.direction == "forward":
            writers.update(dict.fromkeys(outputs, call.label))
        if call.kind == "optimizer":
            left.update({s.name.removeprefix("output."): fingerprint(s) for s in call.slots if s.role == "output"})


def _related(what: str, found: dict[int, _Held], step: int, labels: dict[int, set[str]]) -> Shared:
    groups: dict[object, list[int]] = {}
    for rank, value in found.items():
        groups.setdefault((value.mark, value.shape), []).append(rank)
    ranks = tuple(tuple(group) for group in groups.values())
    if any(value.mark is None for value in found.values()):
        relation = "undecided"
    elif len({value.shape for value in found.values()}) > 1 or all(value.shard for value in found.values()):
        relation = "sharded"
    else:
        relation = "replicated" if len(groups) == 1 else "differs"
    if relation != "differs":
        return Shared(what=what, relation=relation, ranks=ranks, step=step)
    odd = _odd(found, ranks, labels)
    return Shared(
        what=what, relation=relation, ranks=ranks, step=step, odd=odd, written_by=found[odd[0]].writer if odd else ""
    )


def _odd(found: dict[int, _Held], ranks: tuple[tuple[int, ...], ...], labels: dict[int, set[str]]) -> tuple[int, ...]:
    """The ranks outside of the largest group. Of two groups of one size, the one whose value was written by a call
    that the other does not make; or by nothing that was recorded, where the other's was."""
    by_size = sorted(ranks, key=len)
    if len(by_size[-1]) > len(by_size[-2]):
        return tuple(sorted(rank for group in by_size[:-1] for rank in group))
    if len(ranks) != 2:
        return ()
    writers = [found[group[0]].writer for group in ranks]
    known = [set().union(*(labels[rank] for rank in group)) for group in ranks]
    for group, mine, other, others in zip(ranks, writers, writers[::-1], known[::-1], strict=True):
        if (mine and mine not in others and not mine.startswith("Optimizer.")) or (other and not mine):
            return group
    return ()
