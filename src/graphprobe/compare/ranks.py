"""Several ranks of one run: one dump of them all, and what should be equal on every rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from graphprobe.compare.outline import fingerprint, is_constant
from graphprobe.compare.randomness import is_undefined, overwrites
from graphprobe.compare.slots import weight_name
from graphprobe.errors import UsageError
from graphprobe.store.calls import Call, CallDump, CallSlot

_Groups = tuple[tuple[int, ...], ...]
_Left = dict[str, dict[object, str]]
_Writer = tuple[str, str]
"""Label of a call, and the line of the program that made it."""


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
        name: of the parameter or buffer, `blocks.1.norm.running_mean`; empty where nothing tells.
        relation: `replicated`: equal everywhere. `sharded`: of other shapes on other ranks, or each a shard of a
            distributed tensor. `own_data`: a buffer in which a call that all ranks make has left what it computes from
            the data of its rank. `differs`: of one shape and not equal, so either sharded evenly or out of step; a
            parameter under data parallelism must not; or sharded, and changed between two steps of the optimizer by a
            call that some ranks make alone. `changed_unseen`: the same, though no call that was recorded gave it.
            `undecided`: the dump has neither digests nor statistics.
        ranks: of each group of ranks that agree, its members.
        step: of the first call that has it; of a value that differs, the first step in which it does.
        odd: ranks that have gone their own way: they are fewer, or their value was written by a call that the others
            do not make; empty where nothing tells.
        written_by: the label of that call on the first of them, or empty.
        line: the line of the program that made the call.
    """

    what: str
    name: str = ""
    relation: str
    ranks: _Groups
    step: int
    odd: tuple[int, ...] = ()
    written_by: str = ""
    line: str = ""


class _Held(msgspec.Struct, frozen=True, gc=False):
    """A held value at one place of one rank: fingerprint, shape, whether it is a shard, and the call that returned it;
    whether it is a buffer; its name.

    stepped: the optimizer has stepped the parameter before.
    """

    mark: object
    shape: tuple[int, ...]
    shard: bool
    writer: _Writer
    buffer: bool
    name: str
    stepped: bool = False


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
    writers: dict[int, dict[object, _Writer]] = {rank: {} for rank in ranks}
    left: dict[int, _Left] = {rank: {} for rank in ranks}
    for step in sorted(steps):
        places: dict[str, dict[int, _Held]] = {}
        made: dict[int, set[_Writer]] = {rank: set() for rank in ranks}
        for rank in ranks:
            for what, value in _states(dump, rank, step, writers[rank], made[rank], left[rank]):
                places.setdefault(what, {}).setdefault(rank, value)
        for what, found in places.items():
            if len(found) > 1 and (what not in result or result[what].relation == "replicated"):
                related = _related(what, found, step, made)
                if what not in result or related.relation != "replicated":
                    result[what] = related
            changed = _changed_alone(what, found, step, made)
            if changed is not None and result[what].relation == "sharded":
                result[what] = changed
    return list(result.values())


def _changed_alone(what: str, found: dict[int, _Held], step: int, made: dict[int, set[_Writer]]) -> Shared | None:
    """A shard that was changed between two steps of the optimizer by what the other ranks do not call."""
    stepped = {rank: _as_made(value.writer) for rank, value in found.items() if value.stepped}
    changed = tuple(r for r, by in stepped.items() if all(by not in made[other] for other in found if other != r))
    kept = tuple(rank for rank in stepped if rank not in changed)
    if not changed or not kept:
        return None
    relation = "differs" if found[changed[0]].writer[0] else "changed_unseen"
    return _told(what, found, relation, (kept, changed), step, changed)


def _as_made(writer: _Writer) -> _Writer:
    """A call without its number, which is another one where a rank has made more such calls before."""
    return ".".join(part for part in writer[0].split(".") if not part.isdecimal()), writer[1]


def _told(
    what: str, found: dict[int, _Held], relation: str, ranks: _Groups, step: int, odd: tuple[int, ...] = ()
) -> Shared:
    value = found[odd[0] if odd else ranks[0][0]]
    by, line = value.writer if odd else ("", "")
    return Shared(
        what=what, name=value.name, relation=relation, ranks=ranks, step=step, odd=odd, written_by=by, line=line
    )


def _states(
    dump: CallDump, rank: int, step: int, writers: dict[object, _Writer], made: set[_Writer], left: _Left
) -> Iterator[tuple[str, _Held]]:
    """What is held in a step. Kept up to date: `writers`, by fingerprint the call that returned it last; `made`, all
    calls of the step; `left`, by label what each optimizer made of the parameters last, with their names."""
    given: set[object] = set()
    unwritten: set[object] = set()
    for call in dump.calls(rank, step):
        made.add(_as_made((call.label, call.source)))
        for slot in call.slots:
            if slot.meta is None or slot.role not in ("parameter", "buffer", "input"):
                continue
            mark = fingerprint(slot)
            if mark in unwritten or overwrites(call):
                continue
            named = slot.role in ("parameter", "buffer")
            own = slot.name.partition(".")[2] if named else weight_name(call.api, slot.name)
            name = f"{call.module}.{own}" if own and call.module and call.kind != "optimizer" else own
            name = name or next((known[mark] for known in left.values() if mark in known), "")
            name += " (shard)" * call.has_shard
            kept = "buffer" in (slot.role, slot.held), name, mark is not None and call.label in left
            held = _Held(mark, slot.meta.shape, call.has_shard, writers.get(mark, ("", "")), *kept)
            if slot.role == "input" and slot.held is not None:
                if slot.held:
                    yield f"{call.label}.{slot.name}", held
                continue
            weight = slot.role == "input" and len(slot.meta.shape) >= 2 and mark is not None and mark not in given
            weight = weight and slot.name not in ("input.0", "kwarg.input") and call.direction == "forward"
            if named or weight:
                path = call.module or call.label
                yield f"{path}.{slot.name}" if named else f"{call.label}.{slot.name}", held
        results = {m: s for s in call.slots if s.role == "output" and (m := fingerprint(s)) is not None}
        given |= results.keys()
        if is_undefined(call):  # memory that was freed may still hold a value that another call returned
            unwritten |= {m for m, s in results.items() if m not in writers and not is_constant(s)}
        elif call.direction == "forward":
            writers.update(dict.fromkeys(results, (call.label, call.source)))
        if call.kind == "optimizer":
            left[call.label] = {m: s.name.removeprefix("output.") for m, s in results.items()}


def _related(what: str, found: dict[int, _Held], step: int, made: dict[int, set[_Writer]]) -> Shared:
    groups: dict[object, list[int]] = {}
    for rank, value in found.items():
        groups.setdefault((value.mark, value.shape), []).append(rank)
    ranks = tuple(tuple(group) for group in groups.values())
    if any(value.mark is None for value in found.values()):
        relation = "undecided"
    elif len({value.shape for value in found.values()}) > 1 or all(value.shard for value in found.values()):
        relation = "sharded"
    else:
        by = {value.writer[0] for value in found.values()}
        own = all(value.buffer for value in found.values()) and len(by) == 1 and "" not in by
        relation = "replicated" if len(groups) == 1 else "own_data" if own else "differs"
    odd = _odd(found, ranks, made) if relation == "differs" else ()
    return _told(what, found, relation, ranks, step, odd)


def _odd(found: dict[int, _Held], ranks: _Groups, made: dict[int, set[_Writer]]) -> tuple[int, ...]:
    """The ranks outside of the largest group. Of two groups of one size, the one whose value was written by a call
    that the other does not make; or by nothing that was recorded, where the other's was."""
    by_size = sorted(ranks, key=len)
    if len(by_size[-1]) > len(by_size[-2]):
        return tuple(sorted(rank for group in by_size[:-1] for rank in group))
    if len(ranks) != 2:
        return ()
    writers = [found[group[0]].writer for group in ranks]
    known = [set[_Writer]().union(*(made[rank] for rank in group)) for group in ranks]
    for group, mine, other, own, others in zip(ranks, writers, writers[::-1], known, known[::-1], strict=True):
        alone = mine[0] and _as_made(mine) not in others and not mine[0].startswith("Optimizer.")
        if alone or (other[0] and not mine[0] and _as_made(other) in own):
            return group
    return ()
