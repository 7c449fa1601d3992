"""What was exported or traced as a program, and its graphs on the same values: plain results that can be compared."""

from __future__ import annotations

import contextlib
import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node

from graphprobe.diagnose.program import Call, Program, tensors_of, weighted_sum
from graphprobe.engine.naming import module_of
from graphprobe.engine.subgraph import attribute, origin_of
from graphprobe.internals.inductor.stages import copy_graph
from graphprobe.internals.names import require
from graphprobe.internals.tensors import tree_leaves
from graphprobe.internals.way_taps import TracedCall, WayGraph, inputs_in_order
from graphprobe.judge.observation import reachable_modules


@dataclass(eq=False)
class Original:
    """What was exported or traced, with its state as it was then.

    Attributes:
        training: modules, and whether each was in training mode.
        kept: parameters and buffers with a copy.
        number: how many modules the program exported before.
    """

    traced: TracedCall
    training: list[tuple[torch.nn.Module, bool]] = field(default_factory=list)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    number: int = 0

    @classmethod
    def of(cls, traced: TracedCall, number: int = 0) -> Original:
        """The original as it is now."""
        tops = reachable_modules(traced.fn)
        state = Program(traced.fn, [(traced.args, traced.kwargs)]).state()
        modes = [(part, part.training) for top in tops for part in top.modules()]
        return cls(traced, modes, [(t, t.detach().clone()) for t in state], number)

    def restore(self, shared: set[int]) -> None:
        """Make the state what it was, but for memory that is `shared` with the call: in a child process."""
        for module, training in self.training:
            module.training = training
        with torch.no_grad():
            for tensor, values in self.kept:
                if tensor.untyped_storage().data_ptr() not in shared and not torch.equal(tensor, values):
                    tensor.copy_(values)


@dataclass(frozen=True)
class WayCall:
    """A call of the last graph of a way, and how its graphs are held against the original.

    Attributes:
        call: args and kwargs.
        graphs: those of the way.
        called: what the program calls, in the place of the last graph.
        buffers: names of the original's buffers that each graph has, too; empty for what keeps its state to itself.
        grad: gradients are compared, too: of the arguments, and of parameters of these names.
        moved: it was called before, so that its buffers are what the others have to begin with.
        refused: the step that torch raised an error in the place of; None: there is none, or it is Inductor's.
    """

    original: Original
    call: Call
    graphs: Sequence[WayGraph]
    called: Callable[..., Any]
    buffers: tuple[str, ...] = ()
    grad: tuple[str, ...] | None = None
    moved: bool = False
    refused: WayGraph | None = None

    @classmethod
    def of(
        cls, original: Original, call: Call, graph: WayGraph, called: Callable[..., Any], *, moved: bool = False
    ) -> WayCall:
        """The call of the last graph, or of a package of it."""
        fn = original.traced.fn
        if not isinstance(called, torch.nn.Module) or not isinstance(fn, torch.nn.Module):
            return cls(original, call, graph.way, called)
        buffers = {name for name, _ in fn.named_buffers()} & {name for name, _ in called.named_buffers()}
        parameters = {name for name, _ in fn.named_parameters()} & {name for name, _ in called.named_parameters()}
        trains = graph.way[0].kind == "export" and torch.is_grad_enabled()
        trains = trains and any(training for _, training in original.training)
        grad = tuple(sorted(parameters)) if trains else None
        return cls(original, call, graph.way, called, tuple(sorted(buffers)), grad, moved)

    @property
    def is_graph(self) -> bool:
        """Whether what is called is a graph, and no package."""
        return isinstance(self.called, torch.nn.Module)

    def program(self) -> Program:
        """The original on these values."""
        shared = {t.untyped_storage().data_ptr() for t in [*_tensors_of(self.called), *tensors_of(self.call)]}
        return Program(partial(_run, self.original.traced.fn, self, shared), [self.call], effects=False)


def _run(fn: Any, held: WayCall, shared: set[int], *args: Any, **kwargs: Any) -> list[Any]:
    """The original."""
    held.original.restore(shared)
    with torch.set_grad_enabled(held.original.traced.grad or held.grad is not None):
        return plain_results(held, fn, fn, args, kwargs)


def plain_results(held: WayCall, fn: Any, target: Any, args: Any, kwargs: Mapping[str, Any]) -> list[Any]:
    """What a call of `target` returns, its gradients, and its buffers after it; the buffers of all are then as before.

    Strides and shared memory are left to who makes graphs, and so is what is no tensor.
    """
    with _buffers_kept(fn, target):
        own = dict(target.named_buffers()) if isinstance(target, torch.nn.Module) else {}
        if held.moved and target is not held.called:
            for name, values in cast("torch.nn.Module", held.called).named_buffers():
                if name in own and name in held.buffers:
                    own[name].copy_(values)
        result = tree_leaves(target(*args, **kwargs))
        tensors = [value for value in result if isinstance(value, torch.Tensor)]
        gradients = [] if held.grad is None else _gradients(held.grad, target, tensors, args, kwargs)
        own = dict(target.named_buffers()) if isinstance(target, torch.nn.Module) else {}
        after = [own[name].detach().clone() for name in held.buffers if name in own]
    plain = [value.detach().clone(memory_format=torch.contiguous_format) for value in tensors]
    return [*plain, *gradients, *after]


def _gradients(
    names: Sequence[str], target: torch.nn.Module, tensors: Sequence[torch.Tensor], args: Any, kwargs: Any
) -> list[torch.Tensor | None]:
    """Those of the parameters of these names, and of the arguments, once a backward has run from all results."""
    own = dict(target.named_parameters())
    leaves: list[torch.Tensor] = [own[name] for name in names if name in own]
    leaves += [t for t in tensors_of((args, kwargs)) if t.requires_grad and t.is_leaf]
    for leaf in leaves:
        leaf.grad = None
    weighted_sum(tensors)
    found = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return found


@contextlib.contextmanager
def _buffers_kept(*owners: Any) -> Iterator[None]:
    tensors = {id(b): b for owner in owners if isinstance(owner, torch.nn.Module) for b in owner.buffers()}
    before = [(t, t.detach().clone()) for t in tensors.values()]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, values in before:
                if not torch.equal(tensor, values):  # batch_norm changes them without a trace
                    tensor.copy_(values)


def _tensors_of(called: Any) -> list[torch.Tensor]:
    if not isinstance(called, torch.nn.Module):
        return []
    held = [value for part in called.modules() for value in vars(part).values() if isinstance(value, torch.Tensor)]
    return [*called.parameters(), *called.buffers(), *held]


class Package:
    """A package in a file, loaded when it is called."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Load and call it."""
        load = require("torch._inductor", "aoti_load_package", purpose="calling a package")
        return load(self.path)(*args, **kwargs)


class Raising:
    """What torch raised in the place of a step, in the place of what the step would have made."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise it."""
        raise self.error


class Packaged:
    """What AOTInductor makes of a program, made when it is called."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self.program = program

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compile, load and call it."""
        compiled = require("torch._inductor", "aoti_compile_and_package", purpose="compiling a saved program")
        with tempfile.TemporaryDirectory() as folder:
            return Package(compiled(self.program, package_path=f"{folder}/model.pt2"))(*args, **kwargs)


def tell_lines(graph: WayGraph) -> None:
    """Put what led to the nodes of what `make_fx` has traced into the metadata of the copy that say nothing of it."""
    origins = graph.way[0].origins
    for node, origin in [(n, origins[n.name]) for n in graph.graph.graph.nodes if n.name in origins]:
        if not node.stack_trace:
            node.stack_trace = "\n".join(f'  File "{file}", line {line}, in traced' for file, line in origin.lines)
        if origin.module and module_of(node) is None:
            node.meta["custom"] = {**(node.meta.get("custom") or {}), "module_fqn": origin.module}


def runnable(graph: WayGraph) -> GraphModule:
    """A graph of a way as what a program would call; ExportedPrograms list their state as inputs, and take it on."""
    if graph.program is None:
        made: GraphModule = graph.graph
        return made
    program = copy.copy(graph.program)
    program._graph_module = graph.graph
    with warnings.catch_warnings():  # of torch, on what it copies itself
        warnings.simplefilter("ignore")
        module: GraphModule = program.module(check_guards=False)
    return module


def lifted(before: GraphModule, after: GraphModule, call: Call) -> tuple[GraphModule, GraphModule, list[Any]]:
    """Two states of a graph that take their tensors as inputs, the same ones in the same order, and values for them."""
    flat = tree_leaves(inputs_in_order(before, *call))
    held: dict[tuple[str, int], torch.Tensor] = {}
    for gm in (before, after):
        for node in gm.graph.nodes:
            value = attribute(gm, node.target) if node.op == "get_attr" else None
            if isinstance(value, torch.Tensor):
                held[node.target, id(value)] = value
    return _with_inputs(before, held), _with_inputs(after, held), [*held.values(), *flat]


def _with_inputs(gm: GraphModule, held: Mapping[tuple[str, int], torch.Tensor]) -> GraphModule:
    made = copy_graph(gm)
    made.graph.set_codegen(torch.fx.graph.CodeGen())
    first = next(iter(made.graph.nodes))
    inputs: dict[tuple[str, int], Node] = {}
    for number, (name, key) in enumerate(held):
        with made.graph.inserting_before(first):
            inputs[name, key] = made.graph.placeholder(f"{str(name).replace('.', '_')}_held{number or ''}")
    for node in [n for n in made.graph.nodes if n.op == "get_attr"]:
        value = attribute(made, node.target)
        if isinstance(value, torch.Tensor):
            new = inputs[node.target, id(value)]
            new.meta |= origin_of(node)
            node.replace_all_uses_with(new)
            made.graph.erase_node(node)
    made.recompile()
    return made
