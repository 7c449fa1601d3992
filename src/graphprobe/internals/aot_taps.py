"""Taps on AOTAutograd: joint, forward and backward graphs, bound to the model whose forward made them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from graphprobe.internals.bus import Patch, PatchSet, Subscriber
from graphprobe.internals.caches import bypassed
from graphprobe.internals.context import UNOBSERVED, Frame, current, entered, unobserved
from graphprobe.internals.dynamo.dynamo_taps import current_compile_id
from graphprobe.internals.observer import CompileObserver, FrameFacts
from graphprobe.internals.unseen import unseen
from graphprobe.records import Direction

AOT = "torch._functorch.aot_autograd"
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward", "forward")
"""Of its compilers, the last of which is for inference."""

Compiler = Callable[..., Any]


def _observed_compiler(
    to: Subscriber[CompileObserver], token: object, direction: Direction, compiler: Compiler, called: list[str]
) -> Compiler:
    """`compiler`, told of and bound to `token`: a backward that is compiled much later still knows its model."""

    def compile_graph(gm: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        called.append(direction)
        if not to.tell("watching", to.observer.watching, False):
            # Collecting has ended since the forward was compiled: the compiler is on its own, caches included.
            with unseen, entered(UNOBSERVED):
                return compiler(gm, example_inputs, *args, **kwargs)
        frame = Frame(token, direction, "aot")
        to.tell("aot graph", lambda: to.observer.aot_compiles(frame, gm), None)
        try:
            # Again here: a backward may be compiled long after Dynamo's part is over.
            with unseen, entered(frame), bypassed() as caches:
                to.tell("caches", lambda: to.observer.caches_bypassed(token, caches), None)
                compiled = compiler(gm, example_inputs, *args, **kwargs)
        except BaseException as error:
            failure = error
            to.tell("aot failure", lambda: to.observer.aot_compiled(frame, gm, None, failure), None)
            raise
        return to.tell("aot result", lambda: to.observer.aot_compiled(frame, gm, compiled, None), compiled)

    # Attributes such as `_is_wrapped_bw_compiler` say how torch is to treat the compiler.
    compile_graph.__dict__.update(getattr(compiler, "__dict__", {}))
    return compile_graph


def _copied_from(joint: Any, copy: Any) -> str:
    """Name of the graph nested in `joint` with the nodes of `copy`: a node is copied with the values that it holds."""

    def nodes_of(gm: Any) -> list[Any]:
        calls = [node for node in gm.graph.nodes if node.op not in ("placeholder", "output")]
        return [(node.op, node.target, id(node.meta.get("val"))) for node in calls]

    nodes = nodes_of(copy)
    nested = ((name, gm) for name, gm in joint.named_modules() if name and hasattr(gm, "graph"))
    return next((name for name, gm in nested if nodes_of(gm) == nodes), "nested")


def _observed_partition(
    to: Subscriber[CompileObserver], token: object, partition: Compiler, joint: Any, made: dict[str, Any]
) -> Compiler:
    def partition_fn(gm: Any, *args: Any, **kwargs: Any) -> Any:
        # Nested graphs (invoke_subgraph) are partitioned through the same function, as copies.
        subgraph = None if gm is joint else _copied_from(joint, gm)
        with unseen, entered(Frame(token, "joint", "partition", subgraph)):
            forward, backward = partition(gm, *args, **kwargs)
        if gm is joint:
            made["backward"] = backward
        return forward, backward

    partition_fn.__dict__.update(getattr(partition, "__dict__", {}))
    return partition_fn


def _stage2(around: Callable[..., Any]) -> Patch:
    """AOTAutograd's second stage with `around(call, state, capture, partition_fn, compilers)` in its place.

    `call(partition_fn, *compilers)` runs it. The compilers are those of the forward, of the backward, and of inference.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def aot_stage2_compile(
            state: Any,
            capture: Any,
            partition_fn: Compiler,
            fw_compiler: Compiler,
            bw_compiler: Compiler | None = None,
            inference_compiler: Compiler | None = None,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            def call(partition: Compiler, *compilers: Compiler) -> Any:
                return original(state, capture, partition, *compilers, *args, **kwargs)

            compilers = (fw_compiler, bw_compiler or fw_compiler, inference_compiler or fw_compiler)
            with unseen:
                return around(call, state, capture, partition_fn, compilers)

        return aot_stage2_compile

    return Patch("aot_graphs", AOT, "aot_stage2_compile", make)


def patches(observer: CompileObserver) -> list[Patch]:
    """The taps of this module."""
    to = Subscriber(observer)

    def observed(
        call: Callable[..., Any], state: Any, capture: Any, partition_fn: Compiler, compilers: Sequence[Compiler]
    ) -> Any:
        frame = current()
        token = frame.token if frame is not None else None
        if frame is None and not unobserved() and to.tell("wants", lambda: observer.wants(None), False):
            # Outside Dynamo (aot_function, torch._inductor.compile): the model is known only from here on.
            facts = FrameFacts(compile_id=current_compile_id(), backend="aot_autograd")
            token = to.tell("aot model", lambda: observer.model_begins(facts, None, ()), None)
        if frame is None and token is None:
            return call(partition_fn, *compilers)
        model = token
        token = to.tell("aot piece", lambda: observer.aot_begins(model), model)
        called: list[str] = []
        made: dict[str, Any] = {}
        joint = capture.graph_module
        if state.needs_autograd and not state.aot_config.pre_dispatch:
            to.tell("joint graph", lambda: observer.aot_graph(Frame(token, "joint", "aot"), joint), None)
        watched = (
            _observed_compiler(to, token, direction, compiler, called)
            for direction, compiler in zip(DIRECTIONS, compilers, strict=True)
        )
        result = call(_observed_partition(to, token, partition_fn, joint, made), *watched)
        if "backward" in made and "backward" not in called:
            # It may never be compiled; it is there all the same.
            late = Frame(token, "backward", "aot")
            to.tell("backward graph", lambda: observer.aot_graph(late, made["backward"]), None)
        return result

    return [_stage2(observed)]


@contextmanager
def compilers_watched(around: Callable[[str, Compiler], Compiler]) -> Iterator[None]:
    """AOTAutograd with `around(direction, compiler)` in the place of each compiler that it is given."""

    def watched(direction: str, compiler: Compiler) -> Compiler:
        made = around(direction, compiler)
        made.__dict__.update(getattr(compiler, "__dict__", {}))
        return made

    def observed(
        call: Callable[..., Any], state: Any, capture: Any, partition_fn: Compiler, compilers: Sequence[Compiler]
    ) -> Any:
        return call(partition_fn, *map(watched, DIRECTIONS, compilers))

    patched = PatchSet()
    try:
        patched.apply(importlib.import_module(AOT), _stage2(observed))
        yield
    finally:
        patched.undo()
