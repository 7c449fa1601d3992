"""Shows the calls of a dump, and which made NaN or infinity or passed them on: a heat map and a table."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from graphprobe.compare.randomness import is_undefined
from graphprobe.errors import GraphprobeError
from graphprobe.numerics.dtypes import DTYPES
from graphprobe.numerics.stats import stats_from_memory
from graphprobe.records import TensorStats
from graphprobe.report.document import Section, Tone
from graphprobe.report.html.heat import (
    COLUMN_KEY,
    MAGNITUDE,
    MOST_CALLS,
    NONFINITE,
    RANGE,
    ROW_KEY,
    Heat,
    calls_sections,
)
from graphprobe.report.html.sources import Sources
from graphprobe.report.html.table import Cell, Column, Table
from graphprobe.store.calls import Call, CallDump, CallSlot

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

WITH_SLOTS = 2_000
"""Calls whose slots are shown with their details: the first ones, and as many of those that are not finite."""

READ_BYTES = 256 << 20
"""Values that are read for their statistics, where the dump has values alone."""

COLUMNS = (
    Column(name="#", kind="number", help="Position in its step, in the order of execution"),
    Column(name="health", kind="verdict", tones=WORDS, help="What its results hold, and whether it got that already"),
    Column(name="call", wide=True, help="The call's name in the dump"),
    Column(name="max", kind="number", help="Largest finite number of its results"),
    Column(name="min", kind="number", help="Lowest finite number of its results"),
    Column(name="NaN", kind="number", help="Elements of its results that are NaN"),
    Column(name="Inf", kind="number", help="Elements of its results that are infinite"),
    Column(name="module", wide=True, help="The module that was running"),
    Column(name="line", kind="source", help="The line of the program"),
    Column(name="range", kind="number", help="Largest magnitude as a share of the largest number of its dtype"),
    Column(name="l2", kind="number", help="Root of the sum of squares of its first result"),
    Column(name="result", help="Dtype and shape of its first result"),
    Column(name="api", help="What was called"),
    Column(name="kind", help="api, module, optimizer, node or kernel"),
    Column(name="step", kind="number", help="Training step"),
    Column(name="rank", kind="number", help="Process"),
    Column(name="direction", help="Forward or backward"),
    Column(name="notes", wide=True, help="What a reader should know"),
    Column(name=ROW_KEY, kind="number", hidden=True),
    Column(name=COLUMN_KEY, kind="number", hidden=True),
)

SLOT_HEAD = ("value", "dtype, shape", "min", "max", "mean", "l2", "NaN", "+Inf", "−Inf", "zeros", "note")


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


def dump_sections(
    dump: CallDump, sources: Sources, said: dict[str, str], suffix: str = ""
) -> tuple[list[Section], Health]:
    """The heat map, where there is more than one cell, and the table; nothing without calls.

    Args:
        said: by the text of a finding, which notes of calls repeat, the word for such a call.
        suffix: of the sections' ids.
    """
    table = Table("Calls" if not suffix else "Compiled operations", COLUMNS)
    heat, judge = Heat((NONFINITE, RANGE, MAGNITUDE)), HealthJudge(said)
    reader = _StatisticsReader(dump)
    left = 0
    for call in calls_of(dump):
        if table.rows >= MOST_CALLS:
            left += 1
            continue
        stats = {slot.name: found for slot in call.slots if (found := reader.stats(call, slot)) is not None}
        judged = {slot.name: found for slot in call.slots if (found := _told(slot, stats)) is not None}
        word = judge.word(call, judged)
        _add(call, stats, judged, word, table, heat)
        if word not in HARMLESS:
            table.start_here()
            sources.link(sources.short(call.source))
        if table.rows <= WITH_SLOTS or (word not in HARMLESS and table.with_more < 2 * WITH_SLOTS):
            table.more(SLOT_HEAD, [_slot(slot, stats.get(slot.name)) for slot in call.slots])
    constant = ("step", "rank", "direction", "kind", "notes", "module")
    notes = [f"{left:,} more calls are in the dump." if left else "", reader.note]
    return calls_sections(table, heat, sources, constant=constant, notes=notes, suffix=suffix), judge.health


def calls_of(dump: CallDump) -> Iterator[Call]:
    """All calls, step by step of each rank."""
    for rank in dump.ranks():
        for step in dump.steps(rank):
            yield from dump.calls(rank, step)


class _StatisticsReader:
    """Statistics of slots: those of the dump, else of the values, up to a budget."""

    def __init__(self, dump: CallDump) -> None:
        self._dump = dump
        self._left = READ_BYTES
        self.note = ""

    def stats(self, call: Call, slot: CallSlot) -> TensorStats | None:
        """None of what is no tensor, and where the dump tells too little."""
        if slot.meta is None:
            return None
        if slot.stats is not None and (not slot.known or "max" in slot.known or "nan" in slot.known):
            return slot.stats
        if not slot.value or slot.sampled:
            return None
        size = math.prod(slot.meta.shape) * 8
        if size > self._left:
            self.note = f"Only the values that fit in {READ_BYTES >> 20} MiB were read; other calls are “not measured”."
            return None
        self._left -= size
        try:
            values = self._dump.values(call, slot)
            plain = values if values.flags.c_contiguous else values.copy()
            return stats_from_memory(plain.ctypes.data, slot.meta.dtype, plain.shape)
        except (GraphprobeError, OSError, ValueError):
            return None


def _told(slot: CallSlot, stats: dict[str, TensorStats]) -> TensorStats | None:
    return told(slot, stats[slot.name]) if slot.name in stats else None


def _add(
    call: Call,
    stats: dict[str, TensorStats],
    judged: dict[str, TensorStats],
    word: str,
    table: Table,
    heat: Heat,
) -> None:
    results = [(slot, stats[slot.name]) for slot in call.slots if slot.role in RESULTS and slot.name in stats]
    first = next((slot for slot in call.slots if slot.role in RESULTS and slot.meta is not None), None)
    counted = [judged[slot.name] for slot, _ in results if slot.name in judged]
    nan = float(sum(one.nan for one in counted)) if counted else None
    infinite = float(sum(map(infinite_of, counted))) if counted else None
    highest = max((one.max for _, one in results if _is_number(one.max)), default=None)  # type: ignore[type-var]
    lowest = min((one.min for _, one in results if _is_number(one.min)), default=None)  # type: ignore[type-var]
    share = max((found for slot, one in results if (found := _share(slot, one)) is not None), default=None)
    magnitude = None if highest is None or lowest is None else max(abs(highest), abs(lowest))
    broken = None if nan is None or infinite is None else nan + infinite
    seen = (broken, share, magnitude) if word != "uninitialised" else (None, None, None)
    at = heat.add(call.module, (call.rank, call.step, int(call.direction == "backward")), seen)
    cells: tuple[Cell, ...] = (
        call.position,
        word,
        call.label,
        highest,
        lowest,
        nan,
        infinite,
        call.module,
        call.source,
        share,
        results[0][1].l2 if results else None,
        _form(first) if first is not None else "",
        call.api,
        call.kind,
        call.step,
        call.rank,
        call.direction,
        "; ".join(call.notes),
        at[0],
        at[1],
    )
    table.add(cells)


def _share(slot: CallSlot, stats: TensorStats) -> float | None:
    """The largest magnitude as a share of what the dtype holds; infinite where the value is."""
    facts = DTYPES.get(slot.meta.dtype) if slot.meta is not None else None
    if facts is None or facts.is_exact:
        return None
    if infinite_of(stats):
        return math.inf
    ends = [abs(end) for end in (stats.min, stats.max) if end is not None and end == end]
    return max(ends) / facts.largest if ends else None


def _is_number(value: float | None) -> bool:
    """Of other tools the largest number of a tensor with NaN is NaN."""
    return value is not None and value == value


def _form(slot: CallSlot) -> str:
    assert slot.meta is not None
    return f"{slot.meta.dtype}[{', '.join(map(str, slot.meta.shape))}]"


def _slot(slot: CallSlot, stats: TensorStats | None) -> list[Cell]:
    if slot.meta is None:
        text = slot.scalar.text if slot.scalar is not None else ""
        return [slot.name, f"{slot.scalar.type if slot.scalar is not None else ''}", *[None] * 8, text or slot.missing]
    if stats is None:
        return [slot.name, _form(slot), *[None] * 8, slot.missing]
    return [
        slot.name,
        _form(slot),
        stats.min,
        stats.max,
        stats.mean,
        stats.l2,
        stats.nan,
        stats.positive_inf,
        stats.negative_inf,
        stats.zeros,
        slot.missing,
    ]
