"""Taps on Inductor: groups of passes, single passes, lowering, scheduler IR, generated code, the finished callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from graphprobe.internals.bus import Patch, Subscriber
from graphprobe.internals.context import Frame, current, entered
from graphprobe.internals.observer import CompileObserver
from graphprobe.internals.unseen import unseen
from graphprobe.records import Direction

PASSES = "torch.fx.passes.graph_transform_observer"

LOWERING_EVENTS = ("fx_graph", "fx_graph_transformed", "ir_pre_fusion", "ir_post_fusion", "output_code")

RECURSIONS = {"pre_grad": "pre_grad_passes", "joint_graph": "joint_passes", "post_grad": "post_grad_passes"}
"""By what torch calls them, the stages that go to nested graphs as well."""


def _tap_phase(to: Subscriber[CompileObserver], phase: str, direction: Direction | None) -> Callable[[Any], Any]:
    """`direction` None keeps the frame's own: joint passes run on an inference graph as well."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_passes(gm: Any, *args: Any, **kwargs: Any) -> Any:
            outer = current()
            if outer is None or not hasattr(gm, "graph"):
                return original(gm, *args, **kwargs)
            frame = Frame(outer.token, direction or outer.direction, phase, outer.subgraph, outer.root)
            nested = to.tell(phase, lambda: to.observer.phase_begins(frame, gm), None)
            frame = msgspec.structs.replace(frame, subgraph=nested, root=None)
            try:
                with unseen, entered(frame):
                    result = original(gm, *args, **kwargs)
            except BaseException as error:
                failure = error
                to.tell(phase, lambda: to.observer.phase_ends(frame, gm, failure), None)
                raise
            after = result if hasattr(result, "graph") else gm
            to.tell(phase, lambda: to.observer.phase_ends(frame, after, None), None)
            return result

        return run_passes

    return make


def _tap_recursion(to: Subscriber[CompileObserver], phase: str) -> Callable[[Any], Any]:
    """A stage goes to nested graphs before it works on the graph around them; here it is known which that is."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_on_all(gm: Any, *args: Any, **kwargs: Any) -> Any:
            outer = current()
            started = outer is None or (outer.phase == phase and outer.root is not None)
            if outer is None or started or not hasattr(gm, "graph"):
                return original(gm, *args, **kwargs)
            with unseen, entered(msgspec.structs.replace(outer, phase=phase, root=gm)):
                return original(gm, *args, **kwargs)

        return run_on_all

    return make


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


def _tap_silent_pass(to: Subscriber[CompileObserver], name: str) -> Callable[[Any], Any]:
    """A pass that torch announces to no observer: a function that changes its first argument in place."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_pass(gm: Any, *args: Any, **kwargs: Any) -> Any:
            frame = current()
            if frame is None or not hasattr(gm, "graph"):
                return original(gm, *args, **kwargs)
            started = to.tell(f"pass {name}", lambda: to.observer.pass_begins(frame, gm, name, None), None)
            failure: BaseException | None = None
            try:
                with unseen:
                    return original(gm, *args, **kwargs)
            except BaseException as error:
                failure = error
                raise
            finally:
                if started is not None:
                    to.tell(f"pass {name}", lambda: to.observer.pass_ends(frame, gm, name, started, failure), None)

        return run_pass

    return make


def _tap_debug_context(to: Subscriber[CompileObserver]) -> Callable[[Any], Any]:
    """Inductor reports its stages to `V.debug`; an attribute on the instance comes before its `__getattr__`."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def __enter__(self: Any) -> Any:
            frame = current()
            if frame is not None:
                for event in LOWERING_EVENTS:
                    self.__dict__[event] = _teller(to, self, event, frame)
            return original(self)

        return __enter__

    return make


def _teller(to: Subscriber[CompileObserver], context: Any, event: str, frame: Frame) -> Callable[..., Any]:
    def tell(*args: Any, **kwargs: Any) -> Any:
        to.tell(event, lambda: to.observer.lowering(frame, event, *args), None)
        return type(context).__getattr__(context, event)(*args, **kwargs)

    return tell


def _tap_inner_compile(to: Subscriber[CompileObserver]) -> Callable[[Any], Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def _compile_fx_inner(gm: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Any:
            frame = current()
            if frame is None:
                return original(gm, example_inputs, *args, **kwargs)
            to.tell("inductor", lambda: to.observer.inductor_begins(frame, gm, example_inputs, dict(kwargs)), None)
            with unseen:
                output = original(gm, example_inputs, *args, **kwargs)
            to.tell("inductor result", lambda: to.observer.inductor_compiled(frame, output), None)
            return output

        # `wrap_compiler_debug` copies the name; torch's logs show it.
        _compile_fx_inner.__wrapped__ = original  # type: ignore[attr-defined]
        return _compile_fx_inner

    return make


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
        Patch("pre_grad_passes", compile_fx, "pre_grad_passes", _tap_phase(to, "pre_grad_passes", "pre_grad")),
        Patch("joint_passes", compile_fx, "joint_graph_passes", _tap_phase(to, "joint_passes", None)),
        Patch("post_grad_passes", compile_fx, "post_grad_passes", _tap_phase(to, "post_grad_passes", None)),
        *(
            Patch("nested_graphs", compile_fx, f"_recursive_{name}_passes", _tap_recursion(to, phase))
            for name, phase in RECURSIONS.items()
        ),
        *_recorded_passes(to),
        Patch("silent_passes", compile_fx, "view_to_reshape", _tap_silent_pass(to, "view_to_reshape")),
        Patch("lowering", "torch._inductor.debug", "DebugContext.__enter__", _tap_debug_context(to)),
        Patch("inductor_result", compile_fx, "_compile_fx_inner", _tap_inner_compile(to)),
    ]


def module_constants() -> dict[str, Any]:
    """Attributes that Inductor will set on the module it is generating: constants and script objects by name."""
    from torch._inductor.virtualized import V

    graph = V.graph
    return {**graph.constants, **getattr(graph, "torchbind_constants", {})}
