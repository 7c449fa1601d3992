"""Inductor's stages as backends of their own: each stops after one stage and hands the graph over instead of code."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.fx import GraphModule

from graphprobe.internals.caches import bypassed
from graphprobe.internals.names import require

STAGES = ("decomposition", "pre_grad", "joint", "post_grad")
"""In the order in which Inductor adds them to what AOTAutograd does."""

COMPILE_FX = "torch._inductor.compile_fx"

Inner = Callable[[GraphModule, Sequence[Any], dict[str, Any]], Callable[[list[Any]], Any]]
"""Gets a graph of AOTAutograd, its example inputs and Inductor's settings; returns a boxed callable."""


def inductor_config() -> Any:
    """The module `torch._inductor.config`."""
    return require("torch._inductor", "config", purpose="stopping Inductor after a stage")


def stop_after(stage: str, gm: GraphModule, example_inputs: Sequence[Any], inner: Inner) -> Callable[..., Any]:
    """Compile Dynamo's graph as Inductor does, up to and including `stage`, and give what comes out to `inner`.

    Stages before `post_grad` differ only in which groups of passes are on. Post-grad passes are Inductor's own, run on
    a copy of the graph. `inner` is called for the forward graph, and for the backward graph when it is compiled.
    """
    upto = STAGES.index(stage)
    settings = {"use_pre_grad_passes": upto >= 1, "use_joint_graph_passes": upto >= 2}

    def reached(graph: GraphModule, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if stage == "post_grad":
            graph = post_grad_graph(graph, inputs, bool(kwargs.get("is_inference")))
        return inner(graph, inputs, kwargs)

    return kernels(gm, example_inputs, reached, settings)


def kernels(
    gm: GraphModule, example_inputs: Sequence[Any], inner: Inner, changed: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """Inductor to the end, `inner` in place of its last part, `compile_kernels`; `changed` are settings of Inductor."""
    compile_fx = require(COMPILE_FX, "compile_fx", purpose="Inductor's graphs")

    def inner_compile(graph: GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
        return inner(graph, inputs, kwargs)

    with bypassed():
        compiled: Callable[..., Any] = compile_fx(
            gm, example_inputs, inner_compile=inner_compile, config_patches=changed
        )
        return compiled


def resumed() -> Callable[[], AbstractContextManager[None]]:
    """What makes contexts in which a graph may still be compiled as a part of the compilation under way, once that is
    over."""
    purpose = "compiling a graph again to show its values"
    guards = require("torch", "_guards", purpose=purpose)
    tracing, compiling = guards.TracingContext.try_get(), guards.CompileContext.try_get()

    @contextmanager
    def entered() -> Iterator[None]:
        with guards.tracing(tracing), guards.compile_context(compiling):
            yield

    return entered


def compile_kernels(
    gm: GraphModule, example_inputs: Sequence[Any], settings: dict[str, Any], *, passes: bool = True
) -> Callable[[list[Any]], Any]:
    """Inductor's last part on a graph of AOTAutograd: passes, lowering, code; `passes=False` leaves the first out.

    It changes `gm`. What it writes into the tracing context, the strides of outputs, is taken back when the outputs
    are not those of the program (`passes=False`).
    """
    compile_fx_inner = require(COMPILE_FX, "compile_fx_inner", purpose="Inductor's kernels")
    with ExitStack() as stack:
        stack.enter_context(bypassed())
        if not passes:
            stack.enter_context(inductor_config().patch({"use_post_grad_passes": False}))
            context = torch._guards.TracingContext.try_get()
            if context is not None:
                stack.callback(setattr, context, "output_strides", context.output_strides)
                context.output_strides = None
        compiled: Callable[[list[Any]], Any] = compile_fx_inner(gm, example_inputs, **settings)
        return compiled


def post_grad_graph(gm: GraphModule, example_inputs: Sequence[Any], is_inference: bool) -> GraphModule:
    """A copy of `gm` after what Inductor does before it lowers: views made reshapes, and the post-grad passes.

    Raises:
        InductorError: a pass failed. Inductor wraps it like this, too; as it comes, Dynamo would take some of them
            (`DataDependentOutputException`, for one) for a reason to run the program uncompiled.
    """
    fake_tensor_prop = require(COMPILE_FX, "fake_tensor_prop", purpose="post-grad passes")
    virtualized = require("torch._inductor.virtualized", "V", purpose="post-grad passes")
    graph = copy_graph(gm)
    require(COMPILE_FX, "view_to_reshape", purpose="post-grad passes")(graph)
    passes = require(COMPILE_FX, "_recursive_post_grad_passes", purpose="post-grad passes")
    with torch.no_grad():
        fake_mode = fake_tensor_prop(graph, example_inputs)
    try:
        with virtualized.set_fake_mode(fake_mode):
            passes(graph, is_inference=is_inference)
    except Exception as error:
        wrapped = require("torch._inductor.exc", "InductorError", purpose="post-grad passes")
        raise wrapped(error, None).with_traceback(error.__traceback__) from error
    _without_items_of_nothing(graph)
    graph.graph.lint()
    graph.recompile()
    return graph


def _without_items_of_nothing(gm: GraphModule) -> None:
    """Take the items of an in-place operation that returns nothing from the list of tensors that it writes to.

    Inductor puts `_foreach_add_(tensors, 1)` in the place of `_foreach_add`, and leaves `getitem(…, 0)` as it was: its
    lowering gives the tensors back. Run op by op, the operation returns None.
    """
    for node in gm.graph.nodes:
        source: Any = node.args[0] if node.target is operator.getitem else None
        schema = getattr(getattr(source, "target", None), "_schema", None)
        if schema is not None and not schema.returns:
            node.args = (source.args[0], node.args[1])


def copy_graph(gm: GraphModule) -> GraphModule:
    """A copy whose graph, and those of the graphs inside it, can be edited; parameters and constants are shared.

    The nodes may be in any order that a pass has left them in: the copy is sorted so that values come before their
    uses, and nodes keep their names. It can be run op by op. Raises ValueError when a node depends on itself.
    """
    graph = torch.fx.Graph()
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    entered: set[torch.fx.Node] = set()
    waiting = list(reversed(gm.graph.nodes))
    while waiting:
        top = waiting[-1]
        missing = [n for n in top.all_input_nodes if n not in made]
        if top not in made and missing:
            if top in entered:
                raise ValueError(f"{top.name} depends on itself")
            entered.add(top)
            waiting.extend(missing)
            continue
        waiting.pop()
        if top not in made:
            copied = graph.node_copy(top, lambda n: made[n])
            copied.name = top.name
            made[top] = copied
    result = GraphModule(gm, graph)
    _without_items_of_nothing(result)
    for name, child in gm.named_children():
        if isinstance(child, GraphModule) and name in dict(result.named_children()):
            setattr(result, name, copy_graph(child))
    result.meta.update(gm.meta)
    if "shape_env" in gm.__dict__:
        result.__dict__["shape_env"] = gm.__dict__["shape_env"]
    return result


def broken_after(gm: GraphModule, node: torch.fx.Node) -> GraphModule:
    """A copy of a graph that Dynamo breaks in two after the node of this name."""
    graph_break = require("torch._dynamo", "graph_break", purpose="breaking a graph in two")
    made = copy_graph(gm)
    same = next(n for n in made.graph.nodes if n.name == node.name)
    behind = (n for n in made.graph.nodes if n.op != "placeholder")
    with made.graph.inserting_before(next(behind, same) if same.op == "placeholder" else same.next):
        made.graph.call_function(graph_break)
    made.recompile()
    return made


def inductor_graphs(
    gm: GraphModule, example_inputs: Sequence[Any], *, mode: str | None, options: dict[str, Any] | None, inner: Inner
) -> Callable[..., Any]:
    """Inductor as `torch.compile(mode=…, options=…)` has it, up to the graphs that AOTAutograd makes.

    `inner` gets each with its inputs and Inductor's settings, and returns what runs. CUDA graphs are off: no launch is
    seen in a replay. Caches are bypassed: a hit would run no pass, and tell nothing of what the code stems from.
    """
    wrapper = torch._TorchCompileInductorWrapper(mode, options, None)
    return kernels(gm, list(example_inputs), inner, {**wrapper.config, "triton.cudagraphs": False})


def uses_cuda_graphs(mode: str | None, options: dict[str, Any] | None) -> bool:
    """Whether Inductor would capture CUDA graphs with these."""
    wrapper = torch._TorchCompileInductorWrapper(mode, options, None)
    config = require("torch._inductor", "config", purpose="the dump of ops")
    return bool(wrapper.config.get("triton.cudagraphs", config.triton.cudagraphs))
