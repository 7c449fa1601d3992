"""A profile of compile time: its file, its phases, passes, functions and caches, slowest first, and two compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from graphprobe.errors import UsageError
from graphprobe.records import Int64
from graphprobe.store.files import read_or_refuse
from graphprobe.store.schema import UNREADABLE, json_from_value

FORMAT = "graphprobe-profile"
VERSION = 1

Kind = Literal["phase", "pass", "import", "build", "load"]

FRAMES = frozenset(
    "dynamo entire_frame_compile compile_attempt backend_compile create_aot_dispatcher_function "
    "compile_fx.<locals>.fw_compiler_base compile_fx.<locals>.bw_compiler inductor_compile fx_codegen_and_compile "
    "GraphLowering.compile_to_fn code_gen entire_backward_compile".split()
)
"""These only hold other phases: what they spend between those has no name of its own."""

GLOSSES = {
    "additional_fake_tensor_prop": "shapes and dtypes of every node before the post-grad passes",
    "aot_collect_metadata": "AOTAutograd runs the graph for aliases and mutations",
    "aot_trace_joint_graph": "AOTAutograd traces forward and backward, decompositions included",
    "aot_trace_inference_graph": "AOTAutograd traces, decompositions included",
    "async_compile.wait": "waits for kernels that are compiled in other threads or processes",
    "autograd_cache_key": "hash of the graph for AOTAutograd's cache",
    "build_guards": "Dynamo builds and checks the guards",
    "bytecode_tracing": "Dynamo traces the function",
    "compile_file": "the C++ compiler",
    "cpp_build": "a C++ file is built, without the compiler's own time",
    "fake_tensor_update": "shapes and dtypes again, after passes",
    "fx_graph_cache_key": "hash of the graph for Inductor's cache",
    "fx_graph_cache_save": "a compiled graph is written to Inductor's cache",
    "gc": "garbage collection after a compile",
    "GraphLowering.codegen": "Inductor generates code",
    "GraphLowering.run": "Inductor lowers each node to its IR",
    "imports": "modules that are imported while compiling",
    "inductor_codecache_torch_key": "hash of torch's sources for the cache keys",
    "insert_deferred_runtime_asserts": "checks of symbolic shapes are put into the graph",
    "load_library": "a compiled kernel is loaded",
    "log_graphs": "graphs are formatted for torch's logs",
    "min_cut_rematerialization_partition": "the joint graph is cut into forward and backward",
    "pattern_registration": "patterns of Inductor's passes are traced, once a process",
    "print_graph": "graphs are formatted for torch's logs",
    "precompile_header": "the header of C++ kernels is preprocessed and hashed, once a process",
    "PyCodeCache.load_by_key_path": "the generated module is loaded",
    "PythonWrapperCodegen.generate": "Inductor writes the wrapper around the kernels",
    "_recursive_joint_graph_passes": "joint-graph passes that have no name",
    "_recursive_post_grad_passes": "post-grad passes that have no name",
    "_recursive_pre_grad_passes": "pre-grad passes that have no name",
    "Scheduler.__init__": "dependencies between IR nodes",
    "Scheduler.codegen": "Inductor generates the kernels",
    "Scheduler.fused_nodes": "Inductor decides what to fuse",
    "TritonBundler.collect": "Triton kernels are put into the cache",
    "vector_isa_check": "does this processor run what the C++ compiler makes, once a process",
}
"""By name of a phase: what is done in it."""

_NUMBERED = re.compile(r"^(compile_attempt|bytecode_hooks)_\d+$")


class Span(msgspec.Struct, frozen=True, omit_defaults=True):
    """One piece of work on one thread, from its beginning to its end.

    Attributes:
        name: torch's name of the phase; `pass.<group>.<name>` for a pass, the module's name for an import.
        begin_ns, end_ns: since the profile began, by a clock that only goes forward.
        cpu_ns: of the processor, by this thread alone; a C++ compiler that it waits for does not count.
        thread: index in the profile's `threads`.
        parent: index of the span around it, -1 for none.
        compile_id: torch's, None outside a compile.
        kind: `build` is a run of the C++ compiler, `load` a library being loaded.
        detail: the file of a build or load; the function that torch times under another name.
        unfinished: True when it was not seen to end: its end is that of the span around it, or of the profile.
    """

    name: str
    begin_ns: Int64
    end_ns: Int64
    cpu_ns: Int64
    thread: Int64 = 0
    parent: Int64 = -1
    compile_id: str | None = None
    kind: Kind = "phase"
    detail: str = ""
    unfinished: bool = False


class Compile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One compile of one function, forward or backward, as torch's own record has it.

    Attributes:
        failure: type of the exception that ended it, None when it came through.
        recompile_reason: the guard that failed, None for a first compile.
        calls: operations in Dynamo's graph.
    """

    compile_id: str | None
    direction: Literal["forward", "backward"] = "forward"
    function: str | None = None
    file: str | None = None
    line: Int64 | None = None
    failure: str | None = None
    recompile_reason: str | None = None
    calls: Int64 | None = None


class CacheEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a graph cache answered: `cache` is `aot_autograd` or `fx_graph`, `state` hit, miss, bypass or disabled."""

    cache: str
    state: str
    compile_id: str | None = None
    reason: str | None = None


class Profile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A profile.

    Attributes:
        program: what was run, empty for a block of a program.
        wall_ns, cpu_ns: from the beginning to the end of the profile; `cpu_ns` of all threads of the process.
        threads: names, in order of appearance.
        exit_code, error: how the program ended, when a program was run.
        notes: what could not be seen, and why.
        own_passes: by setting, the program's function that it names as a pass, with its place.
    """

    graphprobe: str
    torch: str
    python: str
    began_unix_ns: Int64
    wall_ns: Int64
    cpu_ns: Int64
    spans: list[Span]
    compiles: list[Compile]
    caches: list[CacheEvent]
    threads: list[str]
    program: str = ""
    exit_code: Int64 | None = None
    error: str | None = None
    notes: list[str] = []
    own_passes: dict[str, str] = {}


class _File(msgspec.Struct):
    format: str
    version: Int64
    profile: Profile


def write_profile(profile: Profile, path: str | Path) -> None:
    """Write the profile as JSON; whatever lies at `path` is replaced."""
    data = json_from_value(_File(FORMAT, VERSION, profile))
    Path(path).write_bytes(msgspec.json.format(data, indent=1) + b"\n")


def read_profile(path: str | Path) -> Profile:
    """The profile in a file.

    Raises:
        UsageError: there is no such file, or it holds something else, or spans that do not fit together.
    """
    data = read_or_refuse(path, UsageError)
    hint = "expected a file that graphprobe profile has written"
    try:
        head = msgspec.json.decode(data)
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise UsageError(f"{path} is no profile", hint=hint)
        if head.get("version") != VERSION:
            raise UsageError(f"{path} has version {head.get('version')!r}, and this graphprobe reads {VERSION}")
        profile = msgspec.convert(head, _File).profile
    except UNREADABLE as error:
        raise UsageError(f"{path} is no profile: {error}", hint=hint) from error
    for index, span in enumerate(profile.spans):
        # Parents come first: a tree by construction, whatever a damaged file says.
        if not (-1 <= span.parent < index and 0 <= span.thread < len(profile.threads) and span.end_ns >= span.begin_ns):
            raise UsageError(f"{path} is no profile: span {index} ({span.name}) does not fit the others", hint=hint)
    return profile


def phase_name(name: str, kind: str) -> str:
    """The row of the table that a span belongs to: attempts are one phase, so are imports, and each group of passes."""
    if kind == "import":
        return "imports"
    if kind == "pass":
        group, dot, _ = name.removeprefix("pass.").partition(".")  # some passes of torch have none
        return f"passes in {group if dot else 'no group'}"
    numbered = _NUMBERED.match(name)
    return numbered.group(1) if numbered else name


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
    roots = [[index, *enclosing(spans, index)][-1] for index in range(len(spans))]
    # Imports before the first compile, and builds on a thread of their own, are no compile by themselves.
    inside = [index for index in range(len(spans)) if spans[roots[index]].kind in ("phase", "pass")]
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


def _phases(spans: list[Span], chosen: list[int]) -> list[Row]:
    rows = _rows(spans, chosen, lambda span: phase_name(span.name, span.kind))
    for row in rows:
        row.what = "between the phases inside it" if row.name in FRAMES else GLOSSES.get(row.name, "")
    return sorted(rows, key=lambda row: (-row.self_ns, row.name))


def _passes(spans: list[Span]) -> list[Row]:
    passes = [index for index, span in enumerate(spans) if span.kind == "pass"]
    rows = _rows(spans, passes, lambda span: span.name.removeprefix("pass."))
    return sorted(rows, key=lambda row: (-row.total_ns, row.name))


def _rows(spans: list[Span], chosen: Iterable[int], name_of: Callable[[Span], str]) -> Iterable[Row]:
    own = self_times(spans)
    parents = {span.parent for span in spans}
    rows: dict[str, Row] = {}
    for index in chosen:
        span, name = spans[index], name_of(spans[index])
        row = rows.setdefault(name, Row(name))
        row.self_ns += own[index][0]
        # A backend of the user's own has no phases inside: then the frame is the phase.
        row.unnamed_ns += own[index][0] if name in FRAMES and index in parents else 0
        row.cpu_ns += own[index][1]
        row.count += 1
        row.longest_ns = max(row.longest_ns, span.end_ns - span.begin_ns)
        if all(name_of(spans[outer]) != name for outer in enclosing(spans, index)):
            row.total_ns += span.end_ns - span.begin_ns
    return rows.values()


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
    left, right = {row.name: row for row in before}, {row.name: row for row in after}
    changes = []
    for name in left | right:
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
