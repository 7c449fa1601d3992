"""Two profiles compared: which phases and passes took more time, and which less."""

from __future__ import annotations

import msgspec

from graphprobe.analysis.timing import CacheRow, Row, TimingSummary, summary_of
from graphprobe.analysis.timing_records import Profile


class TimingChange(msgspec.Struct):
    """A phase or a pass in both profiles; times in ns, of its own for a phase and with all inside for a pass.

    Attributes:
        delta_ns: after minus before.
        count_before, count_after: 0 where the profile has none.
    """

    name: str
    what: str
    before_ns: int
    after_ns: int
    delta_ns: int
    count_before: int
    count_after: int


class TimingDiff(msgspec.Struct):
    """Changes, the largest first, whether up or down.

    Attributes:
        compile_before_ns, compile_after_ns: wall time of compiling.
        notes: why the two cannot simply be compared: one ran from a warm cache, on another torch, failed.
    """

    compile_before_ns: int
    compile_after_ns: int
    phases: list[TimingChange]
    passes: list[TimingChange]
    notes: list[str]


def compare_profiles(before: Profile, after: Profile) -> TimingDiff:
    """Pair phases and passes by name. Profiles of quite different programs can be paired, too, and say little."""
    one, two = summary_of(before), summary_of(after)
    return TimingDiff(
        compile_before_ns=one.compile_ns,
        compile_after_ns=two.compile_ns,
        phases=_changes(one.phases, two.phases, "self_ns"),
        passes=_changes(one.passes, two.passes, "total_ns"),
        notes=_notes(before, one, after, two),
    )


def _changes(before: list[Row], after: list[Row], time: str) -> list[TimingChange]:
    left = {row.name: row for row in before}
    right = {row.name: row for row in after}
    changes = []
    for name in [*left, *(name for name in right if name not in left)]:
        a, b = left.get(name, Row(name)), right.get(name, Row(name))
        spent = getattr(a, time), getattr(b, time)
        changes.append(TimingChange(name, a.what or b.what, *spent, spent[1] - spent[0], a.count, b.count))
    return sorted(changes, key=lambda change: (-abs(change.delta_ns), change.name))


def _notes(before: Profile, one: TimingSummary, after: Profile, two: TimingSummary) -> list[str]:
    notes = []
    caches = {row.cache: row for row in one.caches}, {row.cache: row for row in two.caches}
    for name in sorted({*caches[0], *caches[1]}):
        hits = [rows.get(name, CacheRow(name)).hits for rows in caches]
        if bool(hits[0]) != bool(hits[1]):
            side = "first" if hits[0] else "second"
            notes.append(f"only the {side} profile had hits in the cache {name}: {max(hits)}")
    if before.torch != after.torch:
        notes.append(f"torch {before.torch} against {after.torch}")
    for name, profile in (("first", before), ("second", after)):
        if profile.error is not None:
            notes.append(f"the program of the {name} profile failed: {profile.error}")
    if len(before.compiles) != len(after.compiles):
        notes.append(f"{len(before.compiles)} compiles against {len(after.compiles)}")
    return notes
