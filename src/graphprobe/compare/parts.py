"""What one run has whole and the other in parts: of several ranks, each has a part of a batch or weight that a single
one has whole; and a step may take its batch in several parts, whose gradients add up."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence

import msgspec

from graphprobe.compare.outline import OUTPUT_ROLES, Outline
from graphprobe.compare.result import SlotResult
from graphprobe.store.calls import CallDump

SPLIT = 0.6
"""Share of the calls that must be there several times, with other shapes, for the batch of a step to count as split."""

UNEVEN = 0
"""In place of the number of parts: two ranks of one number of ranks, whose parts need not be of one size."""


def world_of(dump: CallDump) -> int:
    """How many ranks the run had, of which the dump may have fewer."""
    told = dump.facts.get("world_size", "")
    return max(int(told) if told.isdecimal() and len(told) < 10 else 1, len(dump.ranks()), 1)


def parts_between(candidate: CallDump, reference: CallDump) -> int:
    """Into how many parts one of the runs splits what the other has whole: the ratio of their ranks, at least 1.

    1 too where the one is no multiple of the other.
    """
    few, many = sorted((world_of(candidate), world_of(reference)))
    return many // few if many % few == 0 else 1


def split_between(mine: Outline, theirs: Outline) -> int:
    """Into how many parts a step of one run splits the batch that the other takes at once; 1 where neither does.

    Then most of what the one calls, the other calls as many times more, with other shapes.
    """
    paths = Counter(mine.path), Counter(theirs.path)
    strong = Counter(mine.strong), Counter(theirs.strong)
    for few, many in ((0, 1), (1, 0)):
        ratios = Counter[int]()
        for path, count in paths[few].items():
            more = paths[many].get(path, 0)
            ratios[more // count if more % count == 0 else 0] += count
        parts, calls = max(((k, n) for k, n in ratios.items() if k > 1), key=lambda one: one[1], default=(1, 0))
        alike = (strong[few] & strong[many]).total()
        if parts > 1 and calls > SPLIT * paths[few].total() and alike < (1 - SPLIT) * paths[few].total():
            return parts
    return 1


def is_part(mine: Sequence[int], theirs: Sequence[int], parts: int) -> bool:
    """Whether two shapes differ in one dimension or two, in which the one has `parts` times as much, but for a rest."""
    if len(mine) != len(theirs):
        return False
    differing = [sorted(pair) for pair in zip(mine, theirs, strict=True) if pair[0] != pair[1]]
    if len(differing) not in (1, 2):  # a part of the batch, of a part of the columns
        return False
    return parts == UNEVEN or all(small in (large // parts, -(-large // parts)) for small, large in differing)


def with_parts(slots: list[SlotResult], parts: int) -> list[SlotResult]:
    """What is a part is told and not accused, and neither is what the same call made of it."""
    found = [_as_part(slot, parts) for slot in slots]
    if all(slot.basis != "part" or not _has_shape(slot) for slot in found):
        return found
    return [
        msgspec.structs.replace(
            slot, basis="part", level=0.0, z=0.0, fault=None, verdict="ok", reason="made from a part: not compared"
        )
        if slot.role in OUTPUT_ROLES and (slot.level or slot.fault)
        else slot
        for slot in found
    ]


def _as_part(slot: SlotResult, parts: int) -> SlotResult:
    a, b = slot.candidate, slot.reference
    if slot.fault not in ("shape", "scalar") or a is None or b is None:
        return slot
    if _has_shape(slot):
        assert a.shape is not None and b.shape is not None
        sizes: tuple[Sequence[int], Sequence[int]] = a.shape, b.shape
    else:
        sizes = _sizes(a.text), _sizes(b.text)
    if not is_part(*sizes, parts):
        return slot
    what = "parts of two ranks" if parts == UNEVEN else f"one of {parts} parts"
    return msgspec.structs.replace(slot, basis="part", fault=None, reason=f"{slot.reason}: {what}")


def _has_shape(slot: SlotResult) -> bool:
    return all(side is not None and side.shape is not None for side in (slot.candidate, slot.reference))


def _sizes(text: str) -> tuple[int, ...]:
    """The sizes that an argument is: one number or several; none for anything else."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ()
    items = value if isinstance(value, list | tuple) else (value,)
    return tuple(items) if all(type(item) is int for item in items) else ()
