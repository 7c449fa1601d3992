"""What debug backends share: copies of graphs, interpreters that know their place, names of calls, options."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from graphprobe.engine.naming import op_of
from graphprobe.errors import GraphprobeWarning, UsageError
from graphprobe.internals.aot_backends import is_higher_order, lookup
from graphprobe.internals.operators.operators import operator_of

BackendFunction = Callable[..., Any]

CALLS = ("call_function", "call_method", "call_module")

Mode = Callable[[], AbstractContextManager[Any]]
"""Makes what a call runs under, or gives the same again."""


def accepted_options(function: BackendFunction) -> dict[str, bool]:
    """The keyword-only parameters of a backend, each with whether it must be given."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY}


def debug_backend(function: BackendFunction) -> BackendFunction:
    """A backend `(gm, example_inputs, *, options…)` that names in a warning what it was given and does not know.

    `options`, a dict, is what `torch.compile(options=…)` passes; it is read as keywords.

    Raises:
        UsageError: an option that must be given is missing.
    """
    accepted = accepted_options(function)
    name = function.__name__.removesuffix("_backend")  # as it is registered

    @functools.wraps(function)
    def backend(gm: Any, example_inputs: Any, **given: Any) -> Any:
        options = given.pop("options", None) or {}
        given = {**given, **options}
        ignored = {option: value for option, value in given.items() if option not in accepted}
        if ignored:
            listed = ", ".join(f"{option}={value!r}" for option, value in ignored.items())
            warnings.warn(f"backend {name} ignores {listed}", GraphprobeWarning, stacklevel=2)
        missing = [option for option, required in accepted.items() if required and option not in given]
        if missing:
            given_so = f"graphprobe.backends.get({name!r}, {missing[0]}=…)"  # torch tells the message alone
            raise UsageError(f"backend {name} needs {', '.join(missing)}, as in {given_so}")
        return function(gm, example_inputs, **{option: given[option] for option in accepted if option in given})

    return backend


def of_torch(name: str, module: str) -> BackendFunction:
    """The backend that torch has under this name, for `module`; options that it is given are named in a warning."""

    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Any:
        return lookup(name)(gm, example_inputs)

    backend.__name__ = backend.__qualname__ = name
    backend.__module__ = module
    return debug_backend(backend)


def copy_graph_module(gm: GraphModule) -> GraphModule:
    """A copy whose graph, and the graphs nested in it, can be edited; parameters and metadata values are shared."""
    made = GraphModule(gm, copy.deepcopy(gm.graph))
    made.meta = dict(gm.meta)
    for original, copied in [(gm, made), *zip(gm.graph.nodes, made.graph.nodes, strict=True)]:
        for name, value in vars(original).items():  # what Dynamo notes on them, and AOTAutograd reads
            if name not in vars(copied):
                setattr(copied, name, value)
    for name, child in list(made.named_children()):
        if isinstance(child, GraphModule):
            setattr(made, name, copy_graph_module(child))
    return made


class WatchedInterpreter(Interpreter):
    """Runs a graph node by node; `current` is the node being run, the one to blame when something raises."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm)
        self.extra_traceback = False  # it would rewrite the message of the exception
        self.current: Node | None = None

    def run_node(self, n: Node) -> Any:
        self.current = n
        return super().run_node(n)


class ModeInterpreter(WatchedInterpreter):
    """Runs every call of a graph under a mode that has no rule for operators that take graphs.

    Of `cond` the branch that is taken runs call by call, under the mode too; other such operators run without it.
    """

    def __init__(self, gm: GraphModule, mode: Mode) -> None:
        super().__init__(gm)
        self.mode = mode

    def run_node(self, n: Node) -> Any:
        if n.op not in CALLS:
            return super().run_node(n)
        if not is_higher_order(n.target):
            self.current = n
            return self.run_call(n)
        if n.target is not torch.ops.higher_order.cond:
            return super().run_node(n)
        (condition, if_true, if_false, operands), _ = self.fetch_args_kwargs_from_env(n)
        return type(self)(if_true if condition else if_false, self.mode).run(*operands)

    def run_call(self, n: Node) -> Any:
        """Run one call that is no operator on graphs."""
        with self.mode():
            return super().run_node(n)


def has_higher_order(gm: GraphModule) -> bool:
    """Whether the graph calls an operator that takes graphs, such as `cond`."""
    return any(node.op == "call_function" and is_higher_order(node.target) for node in gm.graph.nodes)


def target_name(node: Node) -> str:
    """A readable name of what a node calls: `torch.relu`, `aten.relu.default`, `Tensor.sin`, `operator.add`."""
    return op_of(node).removeprefix("torch." if node.op == "call_method" else "")


def names_of(node: Node) -> set[str]:
    """Every name a user may mean a call by: `relu`, `torch.relu`, `aten.relu`, `aten.relu.default`, `aten::relu`."""
    full = target_name(node)
    operator = operator_of(node.target) if not isinstance(node.target, str) else None
    if operator is None:
        return {full, full.rpartition(".")[2]}
    short = f"{operator.namespace}.{operator.name}"
    qualified = f"{operator.namespace}::{operator.name}"
    overload = f".{operator.overload}" if operator.overload else ""
    return {full, operator.name, operator.name + overload, short, qualified, qualified + overload}
