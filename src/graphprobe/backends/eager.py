"""Backends that run Dynamo's graph without AOTAutograd: as it is, under modes, checked, or traced once more."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from graphprobe.backends.graphs import ModeInterpreter, WatchedInterpreter, debug_backend, of_torch, target_name
from graphprobe.errors import GraphprobeError, UsageError
from graphprobe.internals.dynamo.compile_facts import place_of
from graphprobe.internals.operators.operators import fake_mode_of, raised_by_schema_check, schema_check_mode

Compiled = Callable[..., Any]


eager = of_torch("eager", __name__)


class GraphRaisedError(GraphprobeError):
    """A captured graph raised while it ran; the cause is chained."""

    slug = "graph-raised"


class OperatorSchemaError(GraphprobeError):
    """An operator did what its schema does not say: it mutated or aliased something."""

    slug = "operator-schema"


@debug_backend
def eager_with_torch_function_modes(
    gm: GraphModule, example_inputs: Sequence[Any], *, modes: Sequence[TorchFunctionMode]
) -> Compiled:
    """Dynamo's graph as it is, each call under `modes`, the last one innermost.

    Raises:
        UsageError: `modes` is no sequence of TorchFunctionModes.
    """
    given: object = modes
    if not isinstance(given, list | tuple) or not all(isinstance(mode, TorchFunctionMode) for mode in given):
        raise UsageError(f"modes takes a list of TorchFunctionModes, not {modes!r}")

    def run(*args: Any) -> Any:
        with ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode)
            return gm.forward(*args)

    return run


@debug_backend
def eager_noexcept(gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
    """Dynamo's graph as it is; whatever it raises comes out as one GraphRaisedError that names the node."""

    def run(*args: Any) -> Any:
        interpreter = WatchedInterpreter(gm)
        try:
            return interpreter.run(*args)
        except Exception as error:
            raise GraphRaisedError(
                f"the captured graph raised {type(error).__name__} at {_describe(interpreter.current)}: {error}",
                hint="the graph is Dynamo's; run the function without torch.compile to see whether it raises there too",
            ) from error

    return run


class _SchemaChecker(ModeInterpreter):
    """Each call under a schema check of its own; a verdict names the operator and the node."""

    def run_call(self, n: Node) -> Any:
        checker = self.mode()
        try:
            with checker:
                return WatchedInterpreter.run_node(self, n)
        except RuntimeError as error:
            if not raised_by_schema_check(error):
                raise
            op = checker.ops[-1] if checker.ops else "an operator"  # type: ignore[attr-defined]
            raise OperatorSchemaError(
                f"the schema of {op} is wrong at {_describe(n)}: {error}",
                hint="declare what it mutates (mutates_args, or Tensor(a!) in the schema), or return a clone",
            ) from error


@debug_backend
def eager_debug(gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
    """Dynamo's graph, with every operator held against its schema: mutation and aliasing that it does not declare."""
    schema_check_mode()  # a torch without it is found now, not in the middle of the program

    def run(*args: Any) -> Any:
        return _SchemaChecker(gm, schema_check_mode).run(*args)

    return run


@debug_backend
def pre_dispatch_eager(
    gm: GraphModule, example_inputs: Sequence[Any], *, show: Callable[[str], object] | None = None
) -> Compiled:
    """Dynamo's graph traced once more before dispatch, shown, and run.

    Tracing works on Dynamo's fake values, so that a graph which mutates its inputs does not do so while it compiles.

    Args:
        gm: Dynamo's graph.
        example_inputs: not used: they may be the program's own tensors.
        show: gets the text of the traced graph; standard output when not given.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("example_value", value) for node, value in zip(placeholders, example_inputs, strict=True)]

    def run(*args: Any) -> Any:
        return Interpreter(gm).run(*args)

    with fake_mode_of(values):  # else what the graph makes of nothing, an arange say, would be real among fakes
        traced: GraphModule = make_fx(run, pre_dispatch=True)(*values)
    (show or sys.stdout.write)(traced.print_readable(print_output=False) + "\n")
    return traced.forward


def _describe(node: Node | None) -> str:
    if node is None:
        return "its start"
    where = place_of(node)
    return f"node {node.name} ({target_name(node)})" + (f", {where}" if where else "")
