"""Taps on Inductor: groups of passes, single passes, lowering, scheduler IR, generated code, the finished callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from graphprobe.internals.bus import Advice, Patch, Subscriber, advised
from graphprobe.internals.context import Frame, current, entered
from graphprobe.internals.observer import CompileObserver
from graphprobe.records import Direction

PASSES = "torch.fx.passes.graph_transform_observer"

LOWERING_EVENTS = ("fx_graph", "fx_graph_transformed", "ir_pre_fusion", "ir_post_fusion", "output_code")

RECURSIONS = {"pre_grad": "pre_grad_passes", "joint_graph": "joint_passes", "post_grad": "post_grad_passes"}
"""By what torch calls them, the stages that go to nested graphs as well."""


def _phase(to: Subscriber[CompileObserver], phase: str, direction: Direction | None = None) -> Callable[..., Advice]:
    """`direction` None keeps the frame's own: joint passes run on an inference graph as well."""

    def run_passes(gm: Any, *args: Any, **kwargs: Any) -> Advice:
        outer = current()
        if outer is None or not hasattr(gm, "graph"):
            return
        frame = Frame(outer.token, direction or outer.direction, phase, outer.subgraph, outer.root)
        nested = to.tell(phase, lambda: to.observer.phase_begins(frame, gm), None)
        inner = msgspec.structs.replace(frame, subgraph=nested, root=None)
        with entered(inner):
            result, error = yield
        after = result if hasattr(result, "graph") else gm
        to.tell(phase, lambda: to.observer.phase_ends(inner, after, error), None)

    return run_passes


def _recursion(phase: str) -> Callable[..., Advice]:
    """A stage goes to nested graphs before it works on the graph around them; here it is known which that is."""

    def run_on_all(gm: Any, *args: Any, **kwargs: Any) -> Advice:
        outer = current()
        started = outer is None or (outer.phase == phase and outer.root is not None)
        if outer is not None and not started and hasattr(gm, "graph"):
            with entered(msgspec.structs.replace(outer, phase=phase, root=gm)):
                yield

    return run_on_all


def pass_patches(
    tap: str, begins: Callable[[Any], object], ends: Callable[[Any, Any, BaseException | None], None]
) -> list[Patch]:
    """Patches by which torch announces each pass, as a GraphTransformObserver with `passname`, `subsystem` and `gm`.

    `begins(pass)` is called once a pass has begun. What it returns goes to `ends(pass, begun, error)` when the pass is
    over; after None, `ends` is not called. Neither may raise.
    """
    key = object()

    def make_enter(original: Callable[..., Any]) -> Callable[..., Any]:
        def __enter__(self: Any) -> Any:
            result = original(self)
            self.__dict__.setdefault("_graphprobe_begun", {})[key] = begins(self)
            return result

        return __enter__

    def make_exit(original: Callable[..., Any]) -> Callable[..., Any]:
        def __exit__(self: Any, kind: Any, error: Any, trace: Any) -> Any:
            result = original(self, kind, error, trace)
            begun = self.__dict__.get("_graphprobe_begun", {}).pop(key, None)
            if begun is not None:
                ends(self, begun, error)
            return result

        return __exit__

    observer = "GraphTransformObserver"
    return [
        Patch(tap, PASSES, f"{observer}.__enter__", make_enter),
        Patch(tap, PASSES, f"{observer}.__exit__", make_exit),
    ]


def _recorded_passes(to: Subscriber[CompileObserver]) -> list[Patch]:
    def begins(seen: Any) -> tuple[Frame, object] | None:
        frame, name = current(), seen.passname
        if frame is None:
            return None
        started = to.tell(f"pass {name}", lambda: to.observer.pass_begins(frame, seen.gm, name, seen.subsystem), None)
        return None if started is None else (frame, started)

    def ends(seen: Any, begun: tuple[Frame, object], error: BaseException | None) -> None:
        (frame, started), name = begun, seen.passname
        to.tell(f"pass {name}", lambda: to.observer.pass_ends(frame, seen.gm, name, started, error), None)

    return pass_patches("passes", begins, ends)


def _silent_pass(to: Subscriber[CompileObserver], name: str) -> Callable[..., Advice]:
    """A pass that torch announces to no observer: a function that changes its first argument in place."""

    def run_pass(gm: Any, *args: Any, **kwargs: Any) -> Advice:
        frame = current()
        if frame is None or not hasattr(gm, "graph"):
            return
        started = to.tell(f"pass {name}", lambda: to.observer.pass_begins(frame, gm, name, None), None)
        _, error = yield
        if started is not None:
            to.tell(f"pass {name}", lambda: to.observer.pass_ends(frame, gm, name, started, error), None)

    return run_pass


def _debug_context(to: Subscriber[CompileObserver]) -> Callable[..., Advice]:
    """Inductor reports its stages to `V.debug`; an attribute on the instance comes before its `__getattr__`."""

    def enter(context: Any) -> Advice:
        frame = current()
        if frame is not None:
            for event in LOWERING_EVENTS:
                context.__dict__[event] = _teller(to, context, event, frame)
        yield

    return enter


def _teller(to: Subscriber[CompileObserver], context: Any, event: str, frame: Frame) -> Callable[..., Any]:
    def tell(*args: Any, **kwargs: Any) -> Any:
        to.tell(event, lambda: to.observer.lowering(frame, event, *args), None)
        return type(context).__getattr__(context, event)(*args, **kwargs)

    return tell


def _inner_compile(to: Subscriber[CompileObserver]) -> Callable[..., Advice]:
    def compile_fx_inner(gm: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Advice:
        frame = current()
        if frame is None:
            return
        to.tell("inductor", lambda: to.observer.inductor_begins(frame, gm, example_inputs, kwargs), None)
        output, error = yield
        if error is None:
            to.tell("inductor result", lambda: to.observer.inductor_compiled(frame, output), None)

    return compile_fx_inner


def lowered_subgraph() -> str | None:
    """Name of the nested graph that Inductor lowers at this moment, as modules are named; None for the outermost."""
    from torch._inductor.graph import SubgraphLowering
    from torch._inductor.virtualized import V

    names: list[str] = []
    graph = V.graph
    while isinstance(graph, SubgraphLowering):
        # Inductor puts the name of the graph around it before each.
        names.insert(0, str(graph.name).removeprefix(f"{graph.parent.name}_"))
        graph = graph.parent
    return ".".join(names) or None


def generated_module(path: str) -> Any:
    """The module that Inductor has loaded from `path`, the newest; None when it was not loaded."""
    from torch._inductor.codecache import PyCodeCache

    return next((m for m in reversed(PyCodeCache.modules) if m.__file__ == path), None)


def patches(observer: CompileObserver) -> list[Patch]:
    """The taps of this module."""
    to = Subscriber(observer)
    compile_fx = "torch._inductor.compile_fx"
    return [
        advised("pre_grad_passes", compile_fx, "pre_grad_passes", _phase(to, "pre_grad_passes", "pre_grad")),
        advised("joint_passes", compile_fx, "joint_graph_passes", _phase(to, "joint_passes")),
        advised("post_grad_passes", compile_fx, "post_grad_passes", _phase(to, "post_grad_passes")),
        *(
            advised("nested_graphs", compile_fx, f"_recursive_{name}_passes", _recursion(phase))
            for name, phase in RECURSIONS.items()
        ),
        *_recorded_passes(to),
        advised("silent_passes", compile_fx, "view_to_reshape", _silent_pass(to, "view_to_reshape")),
        advised("lowering", "torch._inductor.debug", "DebugContext.__enter__", _debug_context(to)),
        advised("inductor_result", compile_fx, "_compile_fx_inner", _inner_compile(to)),
    ]


def module_constants() -> dict[str, Any]:
    """Attributes that Inductor will set on the module it is generating: constants and script objects by name."""
    from torch._inductor.virtualized import V

    graph = V.graph
    return {**graph.constants, **getattr(graph, "torchbind_constants", {})}
