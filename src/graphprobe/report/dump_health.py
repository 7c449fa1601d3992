"""What each call of a dump did to NaN and infinity: made them, passed them on, or neither."""

from __future__ import annotations

import math

import msgspec

from graphprobe.compare.randomness import is_undefined
from graphprobe.records import TensorStats
from graphprobe.report.document import Tone
from graphprobe.store.calls import Call, CallSlot

WORDS: dict[str, Tone] = {
    "overflows": "bad",
    "overwritten": "bad",
    "raised": "bad",
    "makes_NaN": "bad",
    "makes_infinity": "bad",
    "passes_on": "warn",
    "writes_infinity": "info",
    "finite": "good",
    "uninitialised": "info",
    "not_measured": "info",
}
"""What a call did. The first three are findings of the dump's observers. `writes_infinity`: the program says so, as in
a mask; `uninitialised`: memory as it was, `torch.empty`, whose numbers say nothing."""

HARMLESS = ("finite", "writes_infinity", "uninitialised", "not_measured")

RESULTS = ("output", "grad_input", "grad_parameter")
"""Roles of what a call gives."""


class Health(msgspec.Struct):
    """What was seen in all calls.

    Attributes:
        calls: how many.
        words: how many of each of `WORDS`.
        first: the first call of each, in the order of steps.
        begins: the first call that made NaN or infinity of what was finite, and its word.
    """

    calls: int = 0
    words: dict[str, int] = {}
    first: dict[str, Call] = {}
    begins: tuple[str, Call] | None = None


class HealthJudge:
    """Judges calls in the order of execution."""

    def __init__(self, said: dict[str, str]) -> None:
        """`said`: by the text of a finding, which the notes of its call repeat, the word for such a call."""
        self._said = said
        self._spoiled: set[tuple[object, ...]] = set()
        self.health = Health()

    def word(self, call: Call, stats: dict[str, TensorStats]) -> str:
        """The word for a call; `stats` are those of its slots, by name, as `told` gives them."""
        word = self._word(call, stats)
        health = self.health
        health.calls += 1
        health.words[word] = health.words.get(word, 0) + 1
        health.first.setdefault(word, call)
        if word in ("makes_NaN", "makes_infinity") and health.begins is None:
            health.begins = word, call
        if word not in HARMLESS:
            self._spoiled.add(_identity(call))
        return word

    def _word(self, call: Call, stats: dict[str, TensorStats]) -> str:
        for note in call.notes:
            word = self._said.get(note.removeprefix("overflow: "))
            if word:
                return word
        if is_undefined(call):
            return "uninitialised"
        results = [stats[slot.name] for slot in call.slots if slot.role in RESULTS and slot.name in stats]
        if not results:
            return "not_measured"
        nan, infinite = sum(one.nan for one in results), sum(map(infinite_of, results))
        if not nan and not infinite:
            return "finite"
        given = [stats[slot.name] for slot in call.slots if slot.role not in RESULTS and slot.name in stats]
        # A backward computes with what its forward has kept, too.
        if any(one.nan or infinite_of(one) for one in given) or _identity(call) in self._spoiled:
            return "passes_on"
        if not nan and any(slot.scalar is not None and "inf" in slot.scalar.text for slot in call.slots):
            return "writes_infinity"
        return "makes_NaN" if nan else "makes_infinity"


def told(slot: CallSlot, stats: TensorStats) -> TensorStats | None:
    """What the statistics of a slot say of NaN and infinity; None where they say nothing.

    Other tools count neither, but their largest and lowest numbers are of all elements, so that these are NaN or
    infinite where an element is; that one is then counted.
    """
    if stats is not slot.stats or not slot.known or "nan" in slot.known:
        return stats
    if "count" in slot.known or stats.max is None or stats.min is None:
        return None  # a dump of ours without this column: its largest number is of the finite elements
    if stats.max != stats.max or stats.min != stats.min:
        return msgspec.structs.replace(stats, nan=1)
    return msgspec.structs.replace(
        stats, positive_inf=int(math.isinf(stats.max)), negative_inf=int(math.isinf(stats.min))
    )


def infinite_of(stats: TensorStats) -> int:
    """How many elements are infinite."""
    return stats.positive_inf + stats.negative_inf


def _identity(call: Call) -> tuple[object, ...]:
    """The same for a call and for its backward."""
    return call.rank, call.step, call.kind, call.api, call.index
