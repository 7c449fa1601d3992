"""Taps on Dynamo: the graph handed to a backend, the guards, torch's own metrics of each compile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from graphprobe.internals.bus import Advice, Patch, Subscriber, advised
from graphprobe.internals.caches import bypassed
from graphprobe.internals.context import UNOBSERVED, Frame, entered
from graphprobe.internals.dynamo.compile_facts import described_guard, frame_name
from graphprobe.internals.observer import CompileObserver, FrameFacts


def current_compile_id() -> str | None:
    """torch's id of the compile under way on this thread."""
    from torch._guards import CompileContext

    compile_id = CompileContext.current_compile_id()
    return None if compile_id is None else str(compile_id)


def compiled_before() -> list[str]:
    """`function (file:line)` of every function that already holds code compiled by Dynamo."""
    convert_frame = sys.modules.get("torch._dynamo.convert_frame")
    if convert_frame is None:
        return []
    entries = sys.modules["torch._dynamo.eval_frame"]._debug_get_cache_entry_list
    codes = [reference() for reference in list(convert_frame.input_codes.seen)]
    return [f"{c.co_name} ({c.co_filename}:{c.co_firstlineno})" for c in codes if c is not None and entries(c)]


def torch_run_dir() -> str | None:
    """The run folder that torch itself has chosen in this process, None while it has not."""
    utils = sys.modules.get("torch._dynamo.utils")
    chosen = getattr(utils, "_get_debug_dir", None)
    cache_info = getattr(chosen, "cache_info", None)
    if utils is None or cache_info is None or cache_info().currsize == 0:
        return None
    return str(utils.get_debug_dir())


def follow_run_dir(run_dir: str) -> Patch:
    """Has torch put its own debug files into `run_dir`, unless it has chosen a folder already."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def _get_debug_dir(root_dir: str) -> str:
            chosen = getattr(original, "cache_info", None)
            return str(original(root_dir)) if chosen is None or chosen().currsize else run_dir

        return _get_debug_dir

    return Patch("debug_dir", "torch._dynamo.utils", "_get_debug_dir", make)


def backend_name(backend: object) -> str:
    """A backend's name as torch's own messages would have it, else its class."""
    inner = getattr(backend, "_torchdynamo_orig_backend", None) or backend
    for attribute in ("compiler_name", "__name__"):
        name = getattr(inner, attribute, None)
        if isinstance(name, str):
            return name
    return type(inner).__name__


def layers_of(backend: object) -> Iterator[object]:
    """A backend as Dynamo holds it, and what is inside of it, from the outside in."""
    for _ in range(8):
        if backend is None:
            return
        yield backend
        backend = getattr(backend, "_torchdynamo_orig_backend", None) or getattr(backend, "compiler_fn", None)


def mode_of(backend: object) -> str | None:
    """The mode of `torch.compile` whose settings Inductor has; None for none, and for other backends."""
    inner = getattr(backend, "_torchdynamo_orig_backend", None) or backend
    config = getattr(inner, "config", None)
    if type(inner).__name__ != "_TorchCompileInductorWrapper" or not isinstance(config, dict):
        return None
    inductor = sys.modules.get("torch._inductor")
    modes = inductor.list_mode_options() if inductor is not None else {}
    fitting = [name for name, options in modes.items() if options and options.items() <= config.items()]
    return max(fitting, key=lambda name: len(modes[name]), default=None)


def _recompile_reason() -> str | None:
    """torch works it out before it traces, and keeps it with the metrics of the compile under way."""
    from torch._dynamo.utils import get_metrics_context

    reason = getattr(get_metrics_context(), "_metrics", {}).get("recompile_reason")
    return None if reason is None else str(reason)


def _facts(output_graph: Any) -> FrameFacts:
    root = output_graph.root_tx
    named = frame_name(root.f_code, root.f_locals) if root is not None else None
    reason = output_graph.compile_subgraph_reason
    broke = reason is not None and reason.graph_break
    return FrameFacts(
        compile_id=current_compile_id(),
        function=named.name if named is not None else None,
        file=named.file if named is not None else None,
        line=named.line if named is not None else None,
        backend=backend_name(output_graph.compiler_fn),
        mode=mode_of(output_graph.compiler_fn),
        backend_object=output_graph.compiler_fn,
        graph_break=str(reason.reason) if broke else None,
        break_stack=[f"{s.filename}:{s.lineno} in {s.name}" for s in reason.user_stack] if broke else [],
        resumed=named is not None and named.resumed,
        recompile_reason=_recompile_reason(),
    )


def is_restart(error: BaseException) -> bool:
    """Whether this is no failure, but Dynamo's way of tracing the function once more."""
    from torch._dynamo.exc import RestartAnalysis

    return isinstance(error, RestartAnalysis)


def patches(observer: CompileObserver) -> list[Patch]:
    """The taps of this module."""
    to = Subscriber(observer)

    def call_user_compiler(output: Any, gm: Any, example_inputs: Any) -> Advice:
        token = None
        if to.tell("wants", lambda: observer.wants(output.compiler_fn), False):
            token = to.tell("dynamo graph", lambda: observer.model_begins(_facts(output), gm, example_inputs), None)
        if token is None:
            with entered(UNOBSERVED):
                yield
            return None
        with entered(Frame(token, phase="dynamo")), bypassed() as caches:
            to.tell("caches", lambda: observer.caches_bypassed(token, caches), None)
            compiled, error = yield
        if error is None:
            return to.tell("backend result", lambda: observer.model_ends(token, compiled, None), compiled)
        if not is_restart(error):
            to.tell("backend failure", lambda: observer.model_ends(token, None, error), None)
        return None

    def create(cls: Any, metrics: dict[str, Any]) -> Advice:
        def tell() -> None:
            compile_id = metrics.get("compile_id")
            observer.metrics(None if compile_id is None else str(compile_id), dict(metrics))

        to.tell("metrics", tell, None)
        yield

    def build_guards(manager: Any, f_code: Any, output_graph: Any, *args: Any, **kwargs: Any) -> Advice:
        def tell() -> None:
            observer.guards(current_compile_id(), [described_guard(guard) for guard in sorted(output_graph.guards)])

        _, error = yield
        if error is None:
            to.tell("guards", tell, None)

    compiler = ("torch._dynamo.output_graph", "OutputGraph.call_user_compiler")
    return [
        advised("dynamo_graph", *compiler, call_user_compiler),
        advised("metrics", "torch._dynamo.utils", "CompilationMetrics.create", create),
        advised("guards", "torch._dynamo.guards", "CheckFunctionManager.__init__", build_guards),
    ]
