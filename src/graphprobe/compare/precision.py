"""The precision of a run, learnt from the run itself: which dtype stands for which, and who is out of line."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from graphprobe.compare.marks import Mark
from graphprobe.compare.outline import OUTPUT_ROLES
from graphprobe.numerics.dtypes import DTYPES
from graphprobe.store.calls import Call

FEW = 4
"""Calls of a family from which it has a custom of its own."""

RARE = 0.1
CUSTOM = 0.8
"""Shares of a family: what is a custom, and what is an exception from it."""


def precision_of(marks: Iterable[Mark]) -> Counter[str]:
    """How often each dtype of the reference became which of the candidate."""
    return Counter(itertools.chain.from_iterable(mark.dtypes for mark in marks))


def coarsest(marks: Iterable[Mark]) -> float:
    """The largest u of the floating-point dtypes of either side; 0 without any."""
    return max((_roundoff(name) for pair in precision_of(marks) for name in pair.split(">")), default=0.0)


def out_of_line(marks: Sequence[Mark], cast: Mapping[int, int]) -> dict[int, tuple[int, str]]:
    """Calls in another precision than their peers.

    A pair of dtypes is out of line where at least `FEW` calls of the same operation have a custom, a pair that
    `CUSTOM` of them share, and this pair is rare among them; where the candidate's dtype is coarser than everything
    else that the program has for this dtype of the reference; or where one side alone converts what the call gets,
    though most of the program is as precise as on the other side.

    Args:
        cast: by number of the row, the side that alone converts what the call gets: 1 the candidate, 2 the reference.

    Returns:
        by number of the row: 1 where the candidate is the coarser, −1 where the reference is, 0 where the call is
        finer than its peers, which is no fault; and in words.
    """
    whole = precision_of(marks)
    families: dict[int, Counter[frozenset[str]]] = {}
    for mark in marks:
        if mark.dtypes:
            families.setdefault(mark.family, Counter())[frozenset(mark.dtypes)] += 1
    found: dict[int, tuple[int, str]] = {}
    for mark in marks:
        if not mark.dtypes:
            continue
        mine = frozenset(mark.dtypes)
        if all(map(_same, mine)):
            continue  # as precise as the reference, whatever its peers are
        family = families[mark.family]
        total = family.total()
        custom, most = family.most_common(1)[0]
        if total >= FEW and mine != custom and most >= CUSTOM * total and family[mine] <= max(1, RARE * total):
            found[mark.number] = _compared(mine, custom)
            continue
        side = cast.get(mark.number, 0)
        converted = [pair for pair in mine if side and _coarser(pair, side) and _unusual(pair, whole, side)]
        if converted:
            text = f"{_words(converted)}, which one side alone converts to, unlike most of the program"
            found[mark.number] = (1 if side == 1 else -1), text
            continue
        odd = [pair for pair in mine if not _same(pair) and _coarser_than_all(pair, whole)]
        if odd:
            found[mark.number] = 1, f"{_words(odd)}, unlike every other operation"
    return found


@functools.lru_cache(maxsize=256)
def _same(pair: str) -> bool:
    reference, candidate = pair.split(">")
    return reference == candidate


def _compared(mine: frozenset[str], custom: frozenset[str]) -> tuple[int, str]:
    text = f"{_words(mine - custom or mine)}, where {_words(custom - mine or custom)} is what its peers have"
    ours, usual = _coarsest(mine, 1), _coarsest(custom, 1)
    if ours > usual:
        return 1, text
    theirs, common = _coarsest(mine, 0), _coarsest(custom, 0)
    return (-1 if theirs > common else 0), text


def _coarsest(pairs: Iterable[str], side: int) -> float:
    return max((_roundoff(pair.split(">")[side]) for pair in pairs), default=0.0)


def _coarser(pair: str, side: int) -> bool:
    """Whether the candidate's dtype, 1, or the reference's, 2, is the coarser one."""
    reference, candidate = map(_roundoff, pair.split(">"))
    return candidate > reference if side == 1 else reference > candidate


def _unusual(pair: str, whole: Counter[str], side: int) -> bool:
    """Whether most values that have the finer dtype on the other side have it on both."""
    finer = pair.split(">")[side - 1]
    others = sum(n for p, n in whole.items() if p.split(">")[side - 1] == finer and not _same(p))
    return whole[f"{finer}>{finer}"] > others


def _coarser_than_all(pair: str, whole: Counter[str]) -> bool:
    """Whether this pair is rare in the program and its candidate coarser than all others of this reference dtype."""
    reference, candidate = pair.split(">")
    others = [p for p in whole if p != pair and p.startswith(reference + ">")]
    usual = sum(whole[p] for p in others)
    if not others or whole[pair] > RARE * usual:
        return False
    return all(_roundoff(candidate) > _roundoff(p.split(">")[1]) for p in others)


def coarsens(call: Call) -> bool:
    """Whether a call gives a coarser dtype than it gets."""
    made, got = ([s for s in call.slots if s.meta and (s.role in OUTPUT_ROLES) is out] for out in (True, False))
    worst = [max((_roundoff(slot.meta.dtype) for slot in slots if slot.meta), default=0.0) for slots in (made, got)]
    return worst[0] > worst[1]


def _roundoff(dtype: str) -> float:
    return DTYPES[dtype].unit_roundoff if dtype in DTYPES else 0.0


def _words(pairs: Iterable[str]) -> str:
    return ", ".join(sorted(pair.replace(">", " -> ") for pair in pairs))
