"""`faulty`: backends with one planted fault, to test tools with, and torch's own; no graph of the program is edited."""

from __future__ import annotations

import ctypes
import functools
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Required, TypedDict, Unpack

import msgspec
import torch
from torch.fx import GraphModule, Node

from graphprobe.backends.aot import EDITABLE, compile_edited
from graphprobe.backends.eager import eager
from graphprobe.backends.graphs import copy_graph_module, debug_backend, names_of, target_name
from graphprobe.backends.table import resolve
from graphprobe.errors import GraphprobeWarning, UsageError, nearest
from graphprobe.internals.dynamo.compile_facts import calls_of, place_of

CHANGING = ("accuracy", "dtype", "stride", "alias", "nan")
"""Kinds after which the program goes on with a wrong value."""

STOPPING = ("runtime", "hang", "segfault")
"""Kinds after which it does not."""

WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.float64: torch.complex128,
    torch.int32: torch.int64,
    torch.int64: torch.float64,
}
"""What a value of a dtype comes out as under `dtype`: never narrower, so that no consumer reads past its end."""

log = logging.getLogger(__name__)

FAULT_KINDS = ("compile", *STOPPING[:1], *CHANGING, *STOPPING[1:])
IN_A_GRADIENT = ("accuracy", "stride", "nan", *STOPPING)
"""Kinds that a gradient outside of AOTAutograd's graphs can have: autograd itself mends a wrong dtype."""

Compiled = Callable[..., Any]


class PlantedFault(RuntimeError):
    """What a fault of kind `compile` or `runtime` raises; the message names what it hit."""


@functools.cache
def fault_ops() -> tuple[Any, Any, Any]:
    """`(fault, fault_gradient, library)`, defined on first use; the operators live as long as the library does.

    `fault(value, operands, kind, label, amount)` returns `value`, spoiled; its gradient passes unchanged.
    `fault_gradient(value, kind, label, amount)` returns a copy of `value` whose gradient comes back spoiled.
    """
    make_library: Any = torch.library.Library  # it carries no annotations
    library = make_library("graphprobe", "FRAGMENT")
    library.define("fault(Tensor value, Tensor[] operands, str kind, str label, float amount) -> Tensor")
    library.define("fault_gradient(Tensor value, str kind, str label, float amount) -> Tensor")
    library.impl("fault", _fault, "CompositeExplicitAutograd")
    library.impl("fault_gradient", _copy, "CompositeExplicitAutograd")
    torch.library.register_fake("graphprobe::fault", _copy, lib=library)
    torch.library.register_fake("graphprobe::fault_gradient", _copy, lib=library)
    torch.library.register_autograd("graphprobe::fault", _pass_gradient, setup_context=_remember, lib=library)
    torch.library.register_autograd("graphprobe::fault_gradient", _spoil_gradient, setup_context=_remember, lib=library)
    return torch.ops.graphprobe.fault.default, torch.ops.graphprobe.fault_gradient.default, library


def _copy(value: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(value).copy_(value)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.rest = inputs[1:]


def _pass_gradient(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    operands = ctx.rest[0]
    return gradient, [None] * len(operands), None, None, None


def _spoil_gradient(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    return fault_ops()[0](gradient, [], *ctx.rest), None, None, None


def _fault(value: torch.Tensor, operands: list[torch.Tensor], kind: str, label: str, amount: float) -> torch.Tensor:
    if kind == "runtime":
        raise PlantedFault(label)
    if kind == "hang":
        while True:
            time.sleep(1)
    if kind == "segfault":
        ctypes.string_at(0)
    if kind == "alias":
        return operands[0].data.copy_(value)  # `data`: autograd is not to notice, as with a compiler's mistake
    result = _copy(value)
    if kind == "accuracy":
        return result.logical_not_() if result.dtype is torch.bool else result.add_(amount)
    if kind == "nan" and result.numel():
        result[(0,) * result.dim()] = torch.nan
    if kind == "dtype":
        return result.to(WIDER[result.dtype])
    if kind == "stride":
        return _other_strides(result)
    return result


def _other_strides(value: torch.Tensor) -> torch.Tensor:
    """The same values laid out in the reverse order of dimensions; in one dimension, with a gap between elements."""
    if value.dim() == 1:
        return value.new_zeros(2 * len(value))[::2].copy_(value)
    order = tuple(reversed(range(value.dim())))
    laid_out = value.permute(order).contiguous().permute(order)
    return laid_out if laid_out.stride() != value.stride() else value.contiguous()


class Hit(msgspec.Struct, frozen=True):
    """One planted fault.

    Attributes:
        kind: what happens there.
        direction: `forward` or `backward`.
        op: what the node calls, e.g. `aten.relu.default`.
        node: its name in the graph.
        call: how many calls of the op come before it in that graph.
        where: `file:line in function` of the program, if known.
    """

    kind: str
    direction: str
    op: str
    node: str
    call: int
    where: str | None

    def __str__(self) -> str:
        where = f", {self.where}" if self.where else ""
        return f"planted {self.kind} fault: {self.op}, call {self.call}, node {self.node}, {self.direction}{where}"


class Faulty:
    """A backend that plants one kind of fault at calls of one op. `hits` lists where it has done so.

    `inner` decides which graph is edited. For `inductor` and the `aot_eager` family it is AOTAutograd's forward or
    backward graph, whose ops are called `aten.…`. For anything else it is Dynamo's graph, whose ops are called as in
    the program; `where="backward"` then hits the gradient that comes back through the op.
    """

    def __init__(
        self,
        *,
        op: str,
        kind: str = "accuracy",
        where: str = "forward",
        nth: int | None = 0,
        inner: str | Callable[..., Any] = "aot_eager",
        amount: float = 1.0,
        error: type[Exception] = PlantedFault,
    ) -> None:
        """Arguments as for `faulty`; `error` is what the kind `compile` raises."""
        if kind not in FAULT_KINDS:
            raise UsageError(f"faulty(kind={kind!r}): there are {', '.join(FAULT_KINDS)}")
        if where not in ("forward", "backward"):
            raise UsageError(f"faulty(where={where!r}): it takes 'forward' or 'backward'")
        if nth is not None and (type(nth) is not int or nth < 0):
            raise UsageError(f"faulty(nth={nth!r}): it takes a number from 0, or None for every call")
        self.op, self.kind, self.where, self.nth = op, kind, where, nth
        self.amount, self.error = float(amount), error
        self._edits_aot = isinstance(inner, str) and inner in EDITABLE
        if not self._edits_aot and where == "backward" and kind not in IN_A_GRADIENT:
            raise UsageError(
                f"faulty(kind={kind!r}, where='backward') needs the backward graph, which {inner!r} does not show",
                hint=f"inner may be {', '.join(sorted(EDITABLE))}; or kind one of {', '.join(IN_A_GRADIENT)}",
            )
        self._inner = inner if self._edits_aot else resolve(inner)
        # Under this name torch and graphprobe.wrap look for a backend inside a backend.
        self.compiler_fn = None if self._edits_aot else self._inner
        self.hits: list[Hit] = []
        self.__name__ = f"faulty({op}, {kind}, {where})"

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
        if isinstance(self._inner, str):
            return compile_edited(self._inner, gm, example_inputs, self._edit)
        compiled: Callable[..., Any] = self._inner(self._edit(gm, self.where), example_inputs, **given)
        return compiled

    def __repr__(self) -> str:
        return f"{self.__name__[:-1]}, nth={self.nth}, inner={self._inner!r})"

    def _edit(self, gm: GraphModule, direction: str) -> GraphModule:
        if direction != self.where:
            return gm
        own = copy_graph_module(gm)
        matching = (n for n in calls_of(own) if any(fnmatchcase(name, self.op) for name in names_of(n)))
        calls = [n for n in matching if _value(n) is not None]
        if not self.hits and len(calls) <= (self.nth or 0):
            self._warn(own, len(calls))
        for call, node in enumerate(calls):
            if self.nth in (None, call):
                self._plant(node, Hit(self.kind, direction, target_name(node), node.name, call, place_of(node)))
        return own

    def _warn(self, graph: GraphModule, count: int) -> None:
        """Say that nothing is planted in this graph, nor was in one before: a name may be misspelt."""
        names = dict.fromkeys(name for node in calls_of(graph) for name in names_of(node))
        hint = nearest(self.op, names, "") if not count else f"it has {count}"
        which = f"call {self.nth}" if self.nth else "call"
        text = f"faulty: the graph has no {which} of {self.op!r}, so nothing is planted in it"
        warnings.warn(f"{text}; {hint}" if hint else text, GraphprobeWarning, stacklevel=2)

    def _plant(self, node: Node, hit: Hit) -> None:
        node = _tensor_of(node)
        value = _value(node)
        operands = [n for n in node.all_input_nodes if _alike(_value(n), value)]
        if self.kind == "alias" and not operands:
            raise UsageError(f"{hit}: an alias needs an operand of the same shape and dtype as the result")
        if self.kind == "nan" and not (value.is_floating_point() or value.is_complex()):
            raise UsageError(f"{hit}: {value.dtype} has no NaN")
        if self.kind == "dtype" and value.dtype not in WIDER:
            raise UsageError(f"{hit}: there is no dtype to mistake {value.dtype} for")
        self.hits.append(hit)
        log.info("%s", hit)
        if self.kind == "compile":
            raise self.error(str(hit))
        fault, fault_gradient, _ = fault_ops()
        graph = node.graph
        with graph.inserting_after(node):
            if self._edits_aot or self.where == "forward":
                operands = operands[:1] if self.kind == "alias" else []
                planted = graph.call_function(fault, (node, operands, self.kind, str(hit), self.amount))
            else:
                planted = graph.call_function(fault_gradient, (node, self.kind, str(hit), self.amount))
        node.replace_all_uses_with(planted, delete_user_cb=lambda user: user is not planted)
        planted.meta = {**node.meta, _key(node): torch.empty_like(value)}
        owner = graph.owning_module
        if owner is not None:
            owner.recompile()


class FaultOptions(TypedDict, total=False):
    """The keyword arguments of `faulty`, which tells of each."""

    op: Required[str]
    kind: str
    where: str
    nth: int | None
    inner: str | Callable[..., Any]
    amount: float


def faulty(**options: Unpack[FaultOptions]) -> Faulty:
    """A backend with one planted fault.

    Args:
        **options: `op`, the call to hit: `relu`, `torch.relu`, `aten.mm`, `aten.add.Tensor`, `mylib::foo`, or a
            pattern such as `aten.*`; calls whose result is no tensor do not count. `kind`: `compile` and `runtime`
            raise PlantedFault, `accuracy` adds `amount` (1.0), `nan` puts one NaN, `dtype` and `stride` give the right
            values in the wrong form, `alias` writes the result over an operand and returns that, `hang` never returns,
            `segfault` ends the process. `where`: `forward` or `backward`. `nth`: which call of each graph, from 0;
            None is every one. `inner`: `aot_eager` (default) and its family, `inductor`, another backend's name, or a
            callable; see Faulty.

    Raises:
        UsageError: an option that does not exist or has a value that it cannot take.
    """
    try:
        return Faulty(**options)
    except TypeError as error:
        raise UsageError(f"faulty(): {str(error).partition('__init__() ')[2] or error}") from error


@debug_backend
def faulty_backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    op: str,
    kind: str = "accuracy",
    where: str = "forward",
    nth: int | None = 0,
    inner: str | Callable[..., Any] = "aot_eager",
    amount: float = 1.0,
) -> Callable[..., Any]:
    """`faulty` for `torch.compile(backend="graphprobe:faulty", options={"op": …})`; the hits go to the log only."""
    return faulty(op=op, kind=kind, where=where, nth=nth, inner=inner, amount=amount)(gm, example_inputs)


def _key(node: Node) -> str:
    return "val" if "val" in node.meta else "example_value"


def _value(node: Node) -> Any:
    """The (fake) tensor that a node gives, of several the first that the graph picks out; None when there is none."""
    value = _tensor_of(node).meta.get(_key(_tensor_of(node)))
    return value if isinstance(value, torch.Tensor) else None


def _tensor_of(node: Node) -> Node:
    """The node itself, or the first element taken of its tuple."""
    if isinstance(node.meta.get(_key(node)), torch.Tensor):
        return node
    taken = [n for n in node.users if n.op == "call_function" and getattr(n.target, "__name__", "") == "getitem"]
    return min(taken, key=lambda n: int(str(n.args[1])), default=node)


def _alike(operand: Any, value: torch.Tensor) -> bool:
    return isinstance(operand, torch.Tensor) and operand.shape == value.shape and operand.dtype == value.dtype


class ReluCompileError(Exception):
    """What `relu_compile_error_TESTING_ONLY` raises."""


class TestingOnlyCompileError(Exception):
    """What `non_leaf_compile_error_TESTING_ONLY` raises."""

    __test__ = False


@debug_backend
def relu_compile_error_TESTING_ONLY(gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:  # noqa: N802
    """Raises ReluCompileError for a graph that calls relu; any other runs as it is."""
    return Faulty(op="relu", kind="compile", inner=eager, error=ReluCompileError)(gm, example_inputs)


@debug_backend
def relu_runtime_error_TESTING_ONLY(gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:  # noqa: N802
    """Raises PlantedFault when a relu of the graph runs."""
    return Faulty(op="relu", kind="runtime", nth=None, inner=eager)(gm, example_inputs)


@debug_backend
def relu_accuracy_error_TESTING_ONLY(gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:  # noqa: N802
    """Adds one to the result of every relu."""
    return Faulty(op="relu", kind="accuracy", nth=None, inner=eager)(gm, example_inputs)


@debug_backend
def non_leaf_compile_error_TESTING_ONLY(gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:  # noqa: N802
    """Raises TestingOnlyCompileError for a graph that calls a function and has an input that is no leaf of autograd."""
    calls = any(node.op == "call_function" for node in gm.graph.nodes)
    if calls and any(isinstance(value, torch.Tensor) and not value.is_leaf for value in example_inputs):
        raise TestingOnlyCompileError("the graph has an input that another computation has made")
    return gm.forward
