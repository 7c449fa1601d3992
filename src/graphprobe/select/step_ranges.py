"""Steps: `"0|3-5|10"` is step 0, steps 3 to 5 and step 10."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from graphprobe.errors import SettingError

MAX_STEP = 2**63 - 1
MAX_TEXT = 100_000
"""Longest text that is read, in characters; a longer one is refused before any of it is looked at."""

_MAX_DIGITS = len(str(MAX_STEP))
_HINT = "steps are separated by |, a range is first-last: 0|3-5|10"


class StepSelection(msgspec.Struct, frozen=True):
    """A set of steps, kept as ranges however long they are.

    Attributes:
        ranges: (first, last), both included, ascending; no two overlap or touch.
    """

    ranges: tuple[tuple[int, int], ...]

    def __contains__(self, step: object) -> bool:
        if not isinstance(step, int):
            return False
        at = bisect_right(self.ranges, step, key=lambda found: found[0]) - 1
        return at >= 0 and step <= self.ranges[at][1]

    def __str__(self) -> str:
        """The shortest text that gives this selection back."""
        return "|".join(str(first) if first == last else f"{first}-{last}" for first, last in self.ranges)

    @property
    def last(self) -> int:
        """The highest step: after it nothing is left to dump."""
        return self.ranges[-1][1]


def steps_from_text(text: str) -> StepSelection:
    """The selection that `text` describes: `item|item|…`, an item being a step or a range `first-last`.

    Time is linear in the text but for the sorting of ranges that are out of order; a range is never written out.

    Raises:
        SettingError: the text is empty, malformed or longer than `MAX_TEXT`, a range runs backwards, a step is negative
            or larger than `MAX_STEP`.
    """
    if len(text) > MAX_TEXT:
        raise SettingError(f"{len(text)} characters are too many for a list of steps", hint=f"at most {MAX_TEXT}")
    return StepSelection(_merged(sorted(_range(item, number) for number, item in enumerate(text.split("|"), 1))))


def _range(item: str, number: int) -> tuple[int, int]:
    first, dash, last = item.partition("-")
    if not item.strip():
        raise SettingError(f"item {number} of the steps is empty", hint=_HINT)
    if not dash:
        step = _step(first, item)
        return step, step
    begin, end = _step(first, item), _step(last, item)
    if begin > end:
        raise SettingError(f"the range of steps {item!r} runs backwards", hint=f"write {end}-{begin}")
    return begin, end


def _step(digits: str, item: str) -> int:
    shown = repr(item if len(item) <= 40 else item[:40] + "…")
    if not (digits.isascii() and digits.isdigit()):
        raise SettingError(f"{shown} is neither a step nor a range of steps", hint=_HINT)
    digits = digits.lstrip("0") or "0"
    # Counted before it is converted: int() of very many digits takes quadratic time.
    if len(digits) > _MAX_DIGITS or int(digits) > MAX_STEP:
        raise SettingError(f"the step in {shown} is too large", hint=f"the largest step is {MAX_STEP}")
    return int(digits)


def _merged(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for first, last in ranges:
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)
