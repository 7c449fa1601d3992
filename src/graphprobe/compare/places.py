"""The rows of a comparison by their positions on either side: what stands around a row, and above it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphprobe.compare.marks import Mark


class Places:
    """Rows by position, on either side."""

    def __init__(self, marks: Sequence[Mark], *, alike: bool) -> None:
        self._marks = marks
        self.alike = alike
        self._rows: dict[tuple[int, int, int, int], Mark] = {}
        self._forwards: dict[tuple[int, int, int], Mark] = {}
        self._instead: dict[int, int] = {}
        for m in marks:
            self._rows[(m.rank, m.step, 2 if m.side == 2 else 1, m.position)] = m
            if m.side == 0:
                self._rows[(m.rank, m.step, 2, m.partner)] = m
            if not m.backward:
                self._forwards.setdefault((m.rank, m.step, m.me), m)
        for m in marks:
            if m.side == 1 and m.opposite >= 0:
                other = self.at(m, 2, m.opposite)
                if other is not None:
                    self._instead[m.number], self._instead[other.number] = other.number, m.number

    def at(self, like: Mark, side: int, position: int) -> Mark | None:
        """The row of a call of the candidate (1) or the reference (2) in the rank and step of `like`."""
        return self._rows.get((like.rank, like.step, side, position))

    def forward_of(self, mark: Mark) -> Mark | None:
        """The row of the forward call of a backward."""
        return self._forwards.get((mark.rank, mark.step, mark.me)) if mark.backward else None

    def instead_of(self, mark: Mark) -> Mark | None:
        """The call of the other side that stands in the place of one without a partner."""
        number = self._instead.get(mark.number, -1)
        return self._marks[number] if number >= 0 else None

    def follows_forward(self, mark: Mark) -> bool:
        """Whether it is the backward of a recorded call, and that says nothing: dumps of some formats and devices
        lack backwards of calls that were made."""
        return not self.alike and self.forward_of(mark) is not None

    def first_lone(self, mark: Mark) -> Mark:
        """Upstream of a call without a partner, the first of its chain of such calls that changes what it got."""
        found = mark
        while True:
            sources = (self.at(mark, mark.side, p) for *_, a, b in mark.wired if (p := max(a, b)) >= 0)
            before = next((m for m in sources if m is not None and m.side == mark.side), None)
            if before is None or before.position >= mark.position or before.backward != mark.backward:
                return found
            mark = before
            found = found if before.kept else before

    def lone_above(self, mark: Mark, side: int, position: int, *, most: int) -> list[Mark]:
        """The calls without a partner that change what they get the value of a position went through, up to `most`."""
        found: dict[int, Mark] = {}
        open_ends = [position]
        while open_ends and len(found) < most:
            one = self.at(mark, side, open_ends.pop())
            if one is None or one.side != side or one.number in found:
                continue
            found.update({} if one.kept else {one.number: one})
            open_ends.extend(p for *_, a, b in one.wired if 0 <= (p := max(a, b)) < one.position)
        return list(found.values())

    def before(self, mark: Mark) -> Mark | None:
        """The last paired call before a row, of its direction."""
        return next((m for m in self._back_from(mark) if not m.side and m.kind != "module"), None)

    def last_lone(self, mark: Mark) -> Mark | None:
        """The nearest call without a partner before a row, of its direction, that changes what it got."""
        return next((m for m in self._back_from(mark) if m.side and not m.kept), None)

    def _back_from(self, mark: Mark) -> Iterator[Mark]:
        """The rows before one, the nearest first, of its rank, step and direction."""
        for number in range(mark.number - 1, -1, -1):
            m = self._marks[number]
            if (m.rank, m.step) != (mark.rank, mark.step):
                return
            if m.backward == mark.backward:
                yield m


def container_of(mark: Mark) -> tuple[int, int, bool, int]:
    """The module that a row is about; the root has no path."""
    return mark.rank, mark.step, mark.backward, mark.modules[-1] if mark.modules else 0


def recorded_inside(marks: Sequence[Mark]) -> set[tuple[int, int, bool, int]]:
    """Modules of which calls inside were recorded: what they give is what those gave."""
    return {(m.rank, m.step, m.backward, path) for m in marks if m.kind != "module" for path in (0, *m.modules)}


def steps_of_data(marks: Sequence[Mark]) -> dict[int, Mark]:
    """The row in which the reference first got a value from outside, or drew it, of those that differ."""
    found: dict[int, Mark] = {}
    for m in marks:
        if m.given[1]:
            found.setdefault(m.given[1], m)
    return found
