"""An edit is a record that is applied to copies of a graph and its inputs; and the passes that propose them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import msgspec
import torch
from torch.fx import GraphModule, Node

from graphprobe.diagnose.reduction.edits.measure import read_from, sharing, size_of
from graphprobe.engine.interpret import copied_together, run_graph
from graphprobe.engine.subgraph import origin_of

T = TypeVar("T")


class NotApplicable(Exception):
    """A piece cannot be cut out, or an edit does not fit it with its inputs; the message says why."""


class EditBase(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """One simplification, as data."""

    RUNS: ClassVar[bool] = False  # `change` has run the edited graph itself

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        """Make the change: the graph in place, the new inputs as the result. Both are copies of its own.

        Raises:
            NotApplicable: it does not fit.
        """
        raise NotImplementedError

    def apply(self, graph: GraphModule, inputs: list[Any]) -> tuple[GraphModule, list[Any]]:
        """The edited graph and its inputs.

        Args:
            inputs: flat values of the placeholders, in order: tensors, numbers.

        Returns:
            New ones: the arguments stay as they are, and share no memory with the inputs that are returned. Inputs that
            shared memory with each other still do, unless the edit says otherwise. Attributes that the edit leaves
            alone are shared between the graphs.

        Raises:
            NotApplicable: it does not fit, or the edited graph does not run uncompiled.
        """
        made = copied_graph(graph)
        try:
            with torch.no_grad():
                values = self.change(made, copied_inputs(inputs))
            for node in [n for n in made.graph.nodes if n.op == "get_attr" and not n.users]:
                made.graph.erase_node(node)
            made = GraphModule(made, made.graph)  # attributes that nothing reads any more stay behind
            made.graph.lint()
        except NotApplicable:
            raise
        except Exception as error:  # a value of an unexpected type, a graph that does not check
            raise NotApplicable(f"{self}: {type(error).__name__}: {error}") from error
        if not self.RUNS:
            check_runs(made, values)
        return made, values


Candidates = Callable[[GraphModule, list[Any]], Iterator[EditBase]]


@dataclass(frozen=True)
class EditPass:
    """A family of edits."""

    name: str  # for statistics and progress
    candidates: Candidates  # edits that may fit, the boldest first

    def proposals(self, graph: GraphModule, inputs: list[Any]) -> Iterator[Any]:
        """The edits that fit and make the case simpler by `size_of`, the boldest first; the same ones every time."""
        before = size_of(graph, inputs)
        for edit in self.candidates(graph, inputs):
            try:
                after = size_of(*edit.apply(graph, inputs))
            except NotApplicable:
                continue
            if after < before:
                yield edit


def together(edit: Callable[[tuple[T, ...]], EditBase], found: Sequence[T]) -> Iterator[EditBase]:
    """The edit of all that was found, where that is more than one thing, and then of each alone."""
    if len(found) > 1:
        yield edit(tuple(found))
    yield from (edit((one,)) for one in found)


def copied_graph(gm: GraphModule) -> GraphModule:
    """A graph module of its own, with copies of the graphs that operators take; tensors and modules are shared."""
    made = GraphModule(gm, copy.deepcopy(gm.graph))
    for node in made.graph.nodes:
        node.meta = origin_of(node)  # recorded shapes and values no longer hold after an edit
    for target, body in read_from(made, GraphModule).items():
        set_attribute(made, target, copied_graph(body))
    return made


def copied_inputs(inputs: Sequence[Any]) -> list[Any]:
    """Copies of flat values: memory shared among them as before, gradients asked for as before."""
    values = copied_together(inputs)
    for old, new in zip(inputs, values, strict=True):
        if isinstance(old, torch.Tensor) and old.requires_grad:
            new.requires_grad_(True)
    return values


def runnable(graph: GraphModule) -> GraphModule:
    """The graph, with attributes of its own if it has any, so that a run may change them."""
    return copy.deepcopy(graph) if any(n.op in ("get_attr", "call_module") for n in graph.graph.nodes) else graph


def check_runs(graph: GraphModule, inputs: Sequence[Any]) -> None:
    """Run the graph once; raises NotApplicable with the node that fails."""
    run = run_graph(runnable(graph), inputs, keep=False)
    if run.failed is not None:
        node, raised = run.failed
        raise NotApplicable(f"{node.name}: {type(raised).__name__}: {raised}") from raised


def placeholders(graph: GraphModule) -> list[Node]:
    """The placeholders, in order."""
    return [n for n in graph.graph.nodes if n.op == "placeholder"]


def tensors(inputs: Sequence[Any]) -> list[int]:
    """Positions of the tensors."""
    return [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)]


def is_number(value: Any) -> bool:
    """Whether the value is an int, a float or a bool."""
    return isinstance(value, (bool, int, float))


def tensor_at(inputs: Sequence[Any], position: int) -> torch.Tensor:
    """The tensor at this position.

    Raises:
        NotApplicable: there is none.
    """
    if position >= len(inputs) or not isinstance(inputs[position], torch.Tensor):
        raise NotApplicable(f"input {position} is no tensor")
    found: torch.Tensor = inputs[position]
    return found


def shares(inputs: Sequence[Any], position: int) -> bool:
    """Whether another input has the same storage."""
    found = sharing(inputs)
    return position in found and list(found.values()).count(found[position]) > 1


def set_attribute(gm: GraphModule, target: str, value: Any) -> None:
    """Put `value` in the place of an attribute; a tensor becomes a buffer, or a parameter where it replaces one."""
    path, _, name = target.rpartition(".")
    owner = gm.get_submodule(path)
    if isinstance(getattr(owner, name, None), torch.nn.Parameter):
        value = torch.nn.Parameter(value.detach(), value.requires_grad)
    if hasattr(owner, name):
        delattr(owner, name)
    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
        owner.register_buffer(name, value)
    else:
        setattr(owner, name, value)
