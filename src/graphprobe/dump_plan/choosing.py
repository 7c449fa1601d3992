"""Ops of a model's graph against the entries of a plan: which are dumped, without which inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from graphprobe.dump_plan.plan import Blacklisted, ModelEntry, NameRange, Side
from graphprobe.select import LayerMatcher, Match, OpFacts


class Chosen(msgspec.Struct, frozen=True):
    """An op that is dumped.

    Attributes:
        matches: the tokens that selected it; empty when everything is selected, or a range did it.
        blacklists: for each entry that selected the op, what it leaves out.
    """

    matches: tuple[Match, ...]
    blacklists: tuple[tuple[Blacklisted, ...], ...]

    def keeps(self, side: Side, index: int | None) -> bool:
        """Whether an input or output is dumped: one that any entry wants; `index` is None for a keyword argument."""
        return any(not any(found.leaves_out(side, index) for found in left_out) for left_out in self.blacklists)


class OpChooser:
    """Chooses the ops of one model's graphs, and can tell afterwards what was named and never found."""

    def __init__(self, entries: Sequence[ModelEntry]) -> None:
        self._entries = [(entry, LayerMatcher(entry.layers) if entry.layers else None) for entry in entries]
        self._ranges_found: set[tuple[int, NameRange]] = set()
        self._backwards: set[tuple[int, NameRange]] = set()
        self.left_out = False
        """Whether a blacklist has left out an op that an entry selects."""

    def choose(self, ops: Sequence[OpFacts]) -> list[Chosen | None]:
        """For each op of one graph, in the order it runs, how it is dumped; None if it is not."""
        matches: list[list[Match]] = [[] for _ in ops]
        blacklists: list[list[tuple[Blacklisted, ...]]] = [[] for _ in ops]
        for number, (entry, matcher) in enumerate(self._entries):
            found = matcher.choose(ops) if matcher else [()] * len(ops)
            ranged = self._in_ranges(number, entry.ranges, ops)
            everything = matcher is None and not entry.ranges
            for at, op in enumerate(ops):
                if not (everything or found[at] or at in ranged):
                    continue
                left_out = tuple(item for item in entry.blacklist if item.applies(op))
                if all(item.positions for item in left_out):
                    matches[at].extend(found[at])
                    blacklists[at].append(left_out)
                else:
                    self.left_out = True
        return [
            Chosen(tuple(dict.fromkeys(matches[at])), tuple(blacklists[at])) if blacklists[at] else None
            for at in range(len(ops))
        ]

    def complaints(self) -> list[str]:
        """One sentence for each name that selected nothing in any graph so far, or two kinds of things in two."""
        result = []
        for number, (entry, matcher) in enumerate(self._entries):
            result += [f"{entry.where}: {text}" for text in (matcher.complaints() if matcher else ())]
            for found in entry.ranges:
                if (number, found) in self._ranges_found:
                    continue
                backwards = (number, found) in self._backwards
                why = "runs backwards" if backwards else "has an end that no graph has"
                result.append(f"{entry.where}: the range from {found.begin!r} to {found.end!r} {why}")
        return result

    def _in_ranges(self, number: int, ranges: tuple[NameRange, ...], ops: Sequence[OpFacts]) -> set[int]:
        chosen: set[int] = set()
        for found in ranges:
            begin, end = _position(found.begin, ops), _position(found.end, ops)
            if begin is None or end is None:
                continue
            (self._ranges_found if begin <= end else self._backwards).add((number, found))
            chosen.update(range(begin, end + 1))
        return chosen


def _position(name: str, ops: Sequence[OpFacts]) -> int | None:
    """The first op of that name, else the first in another case."""
    exact = next((at for at, op in enumerate(ops) if name in op.names), None)
    if exact is not None:
        return exact
    folded = name.lower()
    return next((at for at, op in enumerate(ops) if any(other.lower() == folded for other in op.names)), None)
