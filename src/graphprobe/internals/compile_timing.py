"""Taps for timing: torch's timed phases, passes, C++ builds and loads, cache lookups, and imports meanwhile."""

from __future__ import annotations

import importlib.machinery
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

import msgspec

from graphprobe.internals.bus import Advice, Patch, Subscription, advised
from graphprobe.internals.dynamo.compile_facts import compiled_now, frames_from
from graphprobe.internals.importhook import StandInLoader
from graphprobe.internals.inductor.inductor_taps import pass_patches

COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch")
"""Packages whose import counts also outside of a compile: the first use of torch.compile loads them."""

UTILS = "torch._dynamo.utils"
EVENTS = "ChromiumEventLogger"

CACHES = {"fx_graph_cache": "fx_graph", "autograd_cache": "aot_autograd"}
"""Beginnings of the events by which torch's caches tell what they had."""

METRICS = {"fail_type": "failure", "recompile_reason": "recompile_reason", "graph_op_count": "calls"}
"""torch's names of the facts of a compile, and ours."""

_PASSES = "torch._inductor.fx_passes"
_GRAPHS = "torch._functorch._aot_autograd.graph_compile"


@dataclass(slots=True, eq=False)
class OpenSpan:
    """A span that has begun; `end_ns` is -1 until it ends. Times are those of `time.perf_counter_ns`."""

    name: str
    kind: str
    thread: int
    parent: OpenSpan | None
    compile_id: str | None
    detail: str
    unfinished: bool = False
    end_ns: int = -1
    cpu_ns: int = field(default_factory=time.thread_time_ns)
    begin_ns: int = field(default_factory=time.perf_counter_ns)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.index = -1
        self.stack: list[OpenSpan] = []


class SpanRecorder:
    """Spans of all threads, in the order in which they began.

    Attributes:
        spans: grows while `on`.
        threads: names of the threads that have spans.
        failure: the first error of the recorder's own; after it nothing is recorded any more.
    """

    def __init__(self) -> None:
        self.spans: list[OpenSpan] = []
        self.threads: list[str] = []
        self.failure: str | None = None
        self.on = True
        self._local = _Thread()
        self._lock = threading.Lock()

    @property
    def inside(self) -> OpenSpan | None:
        """The innermost span that is open on this thread."""
        stack = self._local.stack
        return stack[-1] if stack else None

    def begin(self, name: str, kind: str = "phase", *, compile_id: str | None = None, detail: str = "") -> OpenSpan:
        """Open a span in the one that is open on this thread; its compile id is inherited where none is given."""
        local = self._local
        if local.index < 0:
            with self._lock:
                local.index = len(self.threads)
                self.threads.append(threading.current_thread().name)
        parent = local.stack[-1] if local.stack else None
        if compile_id is None and parent is not None:
            compile_id = parent.compile_id
        span = OpenSpan(name, kind, local.index, parent, compile_id, detail)
        local.stack.append(span)
        self.spans.append(span)
        return span

    def end(self, span: OpenSpan) -> None:
        """Close the span, and those in it that nobody has closed; nothing if it is closed already."""
        now, cpu = time.perf_counter_ns(), time.thread_time_ns()
        stack = self._local.stack
        if span not in stack:
            return
        while True:
            inner = stack.pop()
            inner.end_ns = now
            inner.cpu_ns = cpu - inner.cpu_ns
            if inner is span:
                return
            inner.unfinished = True

    def end_named(self, name: str) -> None:
        """Close the innermost open span of that name; nothing when it began before the recorder did."""
        span = next((span for span in reversed(self._local.stack) if span.name == name), None)
        if span is not None:
            self.end(span)

    def close(self) -> None:
        """Stop, and end what is still open, of whatever thread, in the span around it or now."""
        self.on = False
        now = time.perf_counter_ns()
        for span in self.spans:
            if span.end_ns < 0:
                outer = span.parent.end_ns if span.parent is not None else now
                # A thread's processor time cannot be read from another one.
                span.end_ns, span.cpu_ns, span.unfinished = max(outer, span.begin_ns), 0, True

    def quietly(self, call: Callable[[], Any]) -> Any:
        """`call()`, or None when recording is over or fails: the observed program must not see our faults."""
        if not self.on:
            return None
        try:
            return call()
        except Exception as error:
            self.failure = self.failure or f"{type(error).__name__}: {error}"
            self.on = False
            return None


class _Busy(threading.local):
    inside = False


class ImportTimer(MetaPathFinder):
    """A span for each outermost import; modules that those import are part of them.

    Modules that are there already cost nothing. Outside of a span only the compiler's packages are looked at.
    """

    def __init__(self, recorder: SpanRecorder) -> None:
        self.recorder = recorder
        self.busy = _Busy()

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if self.busy.inside or not self.recorder.on:
            return None
        if self.recorder.inside is None and not fullname.startswith(COMPILER):
            return None
        self.busy.inside = True  # a finder may search the others itself, and comes by here again
        try:
            finders = [finder for finder in sys.meta_path if finder is not self]
            specs = (finder.find_spec(fullname, path, target) for finder in finders)
            spec = next((found for found in specs if found is not None), None)
        finally:
            self.busy.inside = False
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = StandInLoader(spec.loader, self._timed)
        return spec

    @contextmanager
    def _timed(self, module: ModuleType) -> Iterator[None]:
        recorder = self.recorder
        span = recorder.quietly(lambda: recorder.begin(module.__name__, "import"))
        outer, self.busy.inside = self.busy.inside, True
        try:
            yield
        finally:
            self.busy.inside = outer
            if span is not None:
                recorder.quietly(lambda: recorder.end(span))


class TimedFunction(msgspec.Struct, frozen=True):
    """A function that torch does not time, or not by this name.

    Attributes:
        anywhere: also on a thread that compiles nothing by itself.
        detail: what the span says of the call, from its arguments.
    """

    module: str
    attribute: str
    span: str
    kind: str = "phase"
    anywhere: bool = False
    detail: Callable[..., str] | None = None


def _built(builder: Any, *_: Any, **__: Any) -> str:
    return str(builder.get_target_file_path())


def _loaded(_: Any, path: str, *__: Any, **___: Any) -> str:
    return str(path)


FUNCTIONS = (
    TimedFunction(f"{_PASSES}.pre_grad", "lazy_init", "pattern_registration"),
    TimedFunction(f"{_PASSES}.joint_graph", "lazy_init", "pattern_registration"),
    TimedFunction(f"{_PASSES}.post_grad", "lazy_init", "pattern_registration"),
    TimedFunction("torch._inductor.fx_utils", "FakeTensorUpdater.incremental_update", "fake_tensor_update"),
    TimedFunction("torch.fx.graph_module", "_print_readable", "print_graph"),
    TimedFunction(_GRAPHS, "_log_joint_graph", "log_graphs"),
    TimedFunction(_GRAPHS, "_log_fw_bw_graphs", "log_graphs"),
    TimedFunction("torch._functorch._aot_autograd.autograd_cache", "autograd_cache_key", "autograd_cache_key"),
    TimedFunction("torch._inductor.codecache", "FxGraphCache.prepare_key", "fx_graph_cache_key"),
    TimedFunction("torch._inductor.codecache", "FxGraphCache._save_graph", "fx_graph_cache_save"),
    TimedFunction("torch._inductor.cpu_vec_isa", "VecISA.check_build", "vector_isa_check"),
    TimedFunction("torch._inductor.codecache", "_precompile_header", "precompile_header"),
    TimedFunction("torch._inductor.codecache", "CppCodeCache._load_library", "load_library", "load", True, _loaded),
    TimedFunction("torch._inductor.cpp_builder", "CppBuilder.build", "cpp_build", "build", True, _built),
)


class CompileTiming:
    """Records from `install` to `remove`.

    Attributes:
        recorder: the spans.
        compiles, caches: facts by the field names of the profile's `Compile` and `CacheEvent`.
        missing: names that this torch lacks, and names that were left patched by somebody else.
    """

    def __init__(self) -> None:
        self.recorder = SpanRecorder()
        self.compiles: list[dict[str, Any]] = []
        self.caches: list[dict[str, Any]] = []
        self.missing: list[str] = []
        self._imports = ImportTimer(self.recorder)
        self._subscription = Subscription(self._all())

    def install(self) -> None:
        self._subscription.install()
        self._imports.install()

    def remove(self) -> None:
        """Undo everything and close the spans."""
        self.recorder.close()
        self._imports.remove()
        self.missing += [f"this torch has no {address}" for address in self._subscription.missing]
        foreign = self._subscription.remove()
        self.missing += [f"{address} was replaced by somebody else meanwhile" for address in foreign]
        if self.recorder.failure is not None:
            self.missing.append(f"recording failed and was stopped: {self.recorder.failure}")

    def _all(self) -> list[Patch]:
        return [
            advised("profile", UTILS, f"{EVENTS}.log_event_start", self._event_start),
            advised("profile", UTILS, f"{EVENTS}.log_event_end", self._event_end),
            advised("profile", UTILS, f"{EVENTS}.log_instant_event", self._instant),
            advised("profile", UTILS, "CompilationMetrics.create", self._metrics),
            *pass_patches("profile", self._pass_begins, lambda _, span, __: self._ends(span)),
            *(advised("profile", timed.module, timed.attribute, self._function(timed)) for timed in FUNCTIONS),
        ]

    def _event_start(self, logger: Any, event_name: str, time_ns: int, metadata: Any, *args: Any, **kw: Any) -> Advice:
        """The one place that `dynamo_timed` passes as it begins; no frame of ours stays on the stack meanwhile."""

        def begin() -> None:
            compile_id = metadata.get("compile_id")
            self.recorder.begin(
                event_name,
                "pass" if event_name.startswith("pass.") else "phase",
                compile_id=None if compile_id in (None, "None") else compile_id,
                detail=str(metadata.get("fn_name") or ""),
            )

        yield
        self.recorder.quietly(begin)

    def _event_end(self, logger: Any, event_name: str, *args: Any, **kwargs: Any) -> Advice:
        self.recorder.quietly(lambda: self.recorder.end_named(event_name))
        yield

    def _instant(
        self, logger: Any, event_name: str, time_ns: int, metadata: Any = None, *args: Any, **kw: Any
    ) -> Advice:
        cache, _, state = event_name.rpartition("_")
        if cache in CACHES:
            self.recorder.quietly(lambda: self._cache_answer(CACHES[cache], state, metadata or {}))
        yield

    def _cache_answer(self, cache: str, state: str, metadata: dict[str, Any]) -> None:
        inside, reason = self.recorder.inside, metadata.get("cache_bypass_reason")
        fact = {"cache": cache, "state": state, "compile_id": inside.compile_id if inside is not None else None}
        self.caches.append(fact | {"reason": None if reason is None else str(reason)})

    def _metrics(self, cls: Any, metrics: dict[str, Any]) -> Advice:
        self.recorder.quietly(lambda: self.compiles.append(_compile_fact(metrics)))
        yield

    def _pass_begins(self, seen: Any) -> OpenSpan | None:
        names = (frame.f_code.co_name for frame in frames_from(sys._getframe(1)))
        # These two time the pass themselves.
        if next(name for name in names if name != "__enter__") in ("apply_gm_pass", "apply_graph_pass"):
            return None
        span: OpenSpan | None = self.recorder.quietly(lambda: _begin_pass(self.recorder, seen))
        return span

    def _function(self, timed: TimedFunction) -> Callable[..., Advice]:
        recorder = self.recorder

        def call(*args: Any, **kwargs: Any) -> Advice:
            if not recorder.on or (not timed.anywhere and recorder.inside is None):
                return

            def begin() -> OpenSpan:
                detail = "" if timed.detail is None else timed.detail(*args, **kwargs)
                return recorder.begin(timed.span, timed.kind, detail=detail)

            span = recorder.quietly(begin)
            yield
            if span is not None:
                self._ends(span)

        return call

    def _ends(self, span: OpenSpan) -> None:
        self.recorder.quietly(lambda: self.recorder.end(span))


def _begin_pass(recorder: SpanRecorder, seen: Any) -> OpenSpan | None:
    inside = recorder.inside
    if inside is None or (inside.kind == "pass" and seen.passname == "pattern_matcher"):
        return None  # a graph that nobody compiles; a matcher without a name that runs as part of a pass with one
    group = f"{seen.subsystem}." if seen.subsystem else ""
    return recorder.begin(f"pass.{group}{seen.passname}", "pass")


def _compile_fact(metrics: dict[str, Any]) -> dict[str, Any]:
    compile_id = metrics.get("compile_id")
    fact = {ours: metrics.get(theirs) for theirs, ours in METRICS.items()}
    named = compiled_now()
    if named is None:
        place = [metrics.get(name) for name in ("co_name", "co_filename", "co_firstlineno")]
    else:
        place = [named.name, named.file, named.line]
    return fact | {
        **dict(zip(("function", "file", "line"), place, strict=True)),
        "compile_id": None if compile_id is None else str(compile_id),
        "direction": "backward" if metrics.get("is_forward") is False else "forward",
    }
