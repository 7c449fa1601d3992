"""Taps on AOTAutograd: joint, forward and backward graphs, bound to the model whose forward made them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
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


def _tap_stage2(to: Subscriber[CompileObserver]) -> Callable[[Any], Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def aot_stage2_compile(
            aot_state: Any,
            capture: Any,
            partition_fn: Compiler,
            fw_compiler: Compiler,
            bw_compiler: Compiler | None = None,
            inference_compiler: Compiler | None = None,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            def plain() -> Any:
                with unseen:
                    return original(
                        aot_state, capture, partition_fn, fw_compiler, bw_compiler, inference_compiler, *args, **kwargs
                    )

            frame = current()
            if frame is None:
                # Outside Dynamo (aot_function, torch._inductor.compile): the model is known only from here on.
                if unobserved() or not to.tell("wants", lambda: to.observer.wants(None), False):
                    return plain()
                facts = FrameFacts(compile_id=current_compile_id(), backend="aot_autograd")
                token = to.tell("aot model", lambda: to.observer.model_begins(facts, None, ()), None)
                if token is None:
                    return plain()
            else:
                token = frame.token
            model = token
            token = to.tell("aot piece", lambda: to.observer.aot_begins(model), model)
            called: list[str] = []
            made: dict[str, Any] = {}
            joint = capture.graph_module
            autograd = bool(aot_state.needs_autograd) and not aot_state.aot_config.pre_dispatch
            if autograd:
                where = Frame(token, "joint", "aot")
                to.tell("joint graph", lambda: to.observer.aot_graph(where, joint), None)
            backward = bw_compiler if bw_compiler is not None else fw_compiler
            inference = inference_compiler if inference_compiler is not None else fw_compiler
            with unseen:
                result = original(
                    aot_state,
                    capture,
                    _observed_partition(to, token, partition_fn, joint, made),
                    _observed_compiler(to, token, "forward", fw_compiler, called),
                    _observed_compiler(to, token, "backward", backward, called),
                    _observed_compiler(to, token, "forward", inference, called),
                    *args,
                    **kwargs,
                )
            if "backward" in made and "backward" not in called:
                # It may never be compiled; it is there all the same.
                late = Frame(token, "backward", "aot")
                to.tell("backward graph", lambda: to.observer.aot_graph(late, made["backward"]), None)
            return result

        return aot_stage2_compile

    return make


@contextmanager
def compilers_watched(around: Callable[[str, Compiler], Compiler]) -> Iterator[None]:
    """AOTAutograd with `around(direction, compiler)` in the place of each compiler that it is given."""

    def watched(direction: str, compiler: Compiler) -> Compiler:
        made = around(direction, compiler)
        made.__dict__.update(getattr(compiler, "__dict__", {}))
        return made

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
            backward, inference = bw_compiler or fw_compiler, inference_compiler or fw_compiler
            compilers = (("forward", fw_compiler), ("backward", backward), ("forward", inference))
            return original(state, capture, partition_fn, *(watched(*one) for one in compilers), *args, **kwargs)

        return aot_stage2_compile

    patches, patch = PatchSet(), Patch("aot_graphs", AOT, "aot_stage2_compile", make)
    try:
        patches.apply(importlib.import_module(AOT), patch)
        yield
    finally:
        patches.undo()


def patches(observer: CompileObserver) -> list[Patch]:
    """The taps of this module."""
    to = Subscriber(observer)
    return [Patch("aot_graphs", AOT, "aot_stage2_compile", _tap_stage2(to))]
