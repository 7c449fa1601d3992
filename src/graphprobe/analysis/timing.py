"""Where compile time went: phases, passes, functions and caches of a profile, slowest first."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from graphprobe.analysis.timing_names import FRAMES, gloss, phase_name
from graphprobe.analysis.timing_records import Profile, Span


class Row(msgspec.Struct):
    """A phase, or a pass, over the whole profile.

    Attributes:
        self_ns: time in it and in nothing inside it. Rows of phases add up to the time of compiling.
        total_ns: time in it, with what is inside.
        cpu_ns: processor time of the thread, in it and in nothing inside it.
        longest_ns: its longest single span.
        unnamed_ns: the part of `self_ns` that frames around phases spend outside of them.
    """

    name: str
    what: str = ""
    self_ns: int = 0
    total_ns: int = 0
    cpu_ns: int = 0
    count: int = 0
    longest_ns: int = 0
    unnamed_ns: int = 0


class FunctionRow(msgspec.Struct):
    """One compile id: a function and its backward. `compiles` counts what torch has recorded for the id."""

    compile_id: str
    function: str | None = None
    where: str | None = None
    forward_ns: int = 0
    backward_ns: int = 0
    compiles: int = 0
    failure: str | None = None
    recompile_reason: str | None = None


class CacheRow(msgspec.Struct):
    """A cache: how often it had what was asked for. Counts are of graphs, and of libraries for C++ kernels."""

    cache: str
    hits: int = 0
    misses: int = 0
    bypassed: int = 0
    disabled: int = 0
    reasons: list[str] = []


class TimingSummary(msgspec.Struct):
    """What a profile comes to.

    Attributes:
        compile_ns: wall time inside Dynamo's and AOTAutograd's compiles (the outermost spans), backwards included.
        named_ns: the part of it that a named phase explains.
        imports_ns: imports of the compiler before the first compile; not part of `compile_ns`.
        elsewhere_ns: C++ builds on threads that only build; they run beside `compile_ns`, and are not part of it.
        warm: a cache had something, so that this is not the time of a compile from nothing.
    """

    compile_ns: int
    named_ns: int
    imports_ns: int
    elsewhere_ns: int
    elsewhere_count: int
    compile_cpu_ns: int
    phases: list[Row]
    passes: list[Row]
    functions: list[FunctionRow]
    caches: list[CacheRow]
    warm: bool

    @property
    def accounted(self) -> float:
        """Share of the time of compiling that named phases explain, 0 to 1; 1 when nothing was compiled."""
        return self.named_ns / self.compile_ns if self.compile_ns else 1.0


def summary_of(profile: Profile) -> TimingSummary:
    """Phases by own time, passes by total time, functions by total time."""
    spans = profile.spans
    roots = [_root(spans, index) for index in range(len(spans))]
    inside = [index for index in range(len(spans)) if _compiles(spans[roots[index]])]
    compile_roots = [spans[index] for index in inside if spans[index].parent < 0]
    phases = _phases(spans, inside)
    beside = [span for span in spans if span.parent < 0 and span.kind in ("build", "load")]
    caches = _caches(profile)
    return TimingSummary(
        compile_ns=sum(span.end_ns - span.begin_ns for span in compile_roots),
        named_ns=sum(row.self_ns - row.unnamed_ns for row in phases),
        imports_ns=sum(span.end_ns - span.begin_ns for span in spans if span.parent < 0 and span.kind == "import"),
        elsewhere_ns=sum(span.end_ns - span.begin_ns for span in beside),
        elsewhere_count=len(beside),
        compile_cpu_ns=sum(span.cpu_ns for span in compile_roots),
        phases=phases,
        passes=_passes(spans),
        functions=_functions(profile, compile_roots),
        caches=caches,
        warm=any(row.hits for row in caches),
    )


def self_times(spans: list[Span]) -> list[tuple[int, int]]:
    """Of each span, wall and processor time that are in none of the spans inside it, in ns."""
    own = [[span.end_ns - span.begin_ns, span.cpu_ns] for span in spans]
    for span in spans:
        if span.parent >= 0:
            own[span.parent][0] -= span.end_ns - span.begin_ns
            own[span.parent][1] -= span.cpu_ns
    return [(wall, cpu) for wall, cpu in own]


def enclosing(spans: list[Span], index: int) -> Iterator[int]:
    """Indices of the spans around one, the nearest first."""
    while (index := spans[index].parent) >= 0:
        yield index


def _root(spans: list[Span], index: int) -> int:
    return next((outer for outer in enclosing(spans, index) if spans[outer].parent < 0), index)


def _compiles(root: Span) -> bool:
    """Imports before the first compile, and builds on a thread of their own, are no compile by themselves."""
    return root.kind in ("phase", "pass")


def _phases(spans: list[Span], chosen: list[int]) -> list[Row]:
    own = self_times(spans)
    parents = {span.parent for span in spans}
    rows: dict[str, Row] = {}
    for index in chosen:
        span = spans[index]
        name = phase_name(span.name, span.kind)
        row = rows.setdefault(name, Row(name, gloss(name)))
        row.self_ns += own[index][0]
        # A backend of the user's own has no phases inside: then the frame is the phase.
        row.unnamed_ns += own[index][0] if name in FRAMES and index in parents else 0
        row.cpu_ns += own[index][1]
        row.count += 1
        row.longest_ns = max(row.longest_ns, span.end_ns - span.begin_ns)
        if all(phase_name(spans[o].name, spans[o].kind) != name for o in enclosing(spans, index)):
            row.total_ns += span.end_ns - span.begin_ns
    return sorted(rows.values(), key=lambda row: (-row.self_ns, row.name))


def _passes(spans: list[Span]) -> list[Row]:
    own = self_times(spans)
    rows: dict[str, Row] = {}
    for index, span in enumerate(spans):
        if span.kind != "pass":
            continue
        name = span.name.removeprefix("pass.")
        row = rows.setdefault(name, Row(name))
        row.self_ns += own[index][0]
        row.cpu_ns += own[index][1]
        row.count += 1
        row.longest_ns = max(row.longest_ns, span.end_ns - span.begin_ns)
        if all(spans[outer].name != span.name for outer in enclosing(spans, index)):
            row.total_ns += span.end_ns - span.begin_ns
    return sorted(rows.values(), key=lambda row: (-row.total_ns, row.name))


def _functions(profile: Profile, roots: list[Span]) -> list[FunctionRow]:
    rows: dict[str, FunctionRow] = {}
    for span in roots:
        row = rows.setdefault(span.compile_id or "-", FunctionRow(span.compile_id or "-"))
        if span.name == "entire_backward_compile":
            row.backward_ns += span.end_ns - span.begin_ns
        else:
            row.forward_ns += span.end_ns - span.begin_ns
    for compiled in profile.compiles:
        row = rows.setdefault(compiled.compile_id or "-", FunctionRow(compiled.compile_id or "-"))
        row.compiles += 1
        row.failure = row.failure or compiled.failure
        row.recompile_reason = row.recompile_reason or compiled.recompile_reason
        if row.function is None and compiled.function is not None:
            row.function = compiled.function
            row.where = None if compiled.file is None else f"{compiled.file}:{compiled.line}"
    return sorted(rows.values(), key=lambda row: (-row.forward_ns - row.backward_ns, row.compile_id))


def _caches(profile: Profile) -> list[CacheRow]:
    rows: dict[str, CacheRow] = {}
    for event in profile.caches:
        row = rows.setdefault(event.cache, CacheRow(event.cache))
        row.hits += event.state == "hit"
        row.misses += event.state == "miss"
        row.bypassed += event.state == "bypass"
        row.disabled += event.state == "disabled"
        if event.reason and event.reason not in row.reasons:
            row.reasons = [*row.reasons, event.reason]
    loaded = [span.detail for span in profile.spans if span.kind == "load"]
    if loaded:
        built = {span.detail for span in profile.spans if span.kind == "build"}
        missed = sum(path in built for path in loaded)
        rows["cpp"] = CacheRow("cpp", hits=len(loaded) - missed, misses=missed)
    return list(rows.values())
