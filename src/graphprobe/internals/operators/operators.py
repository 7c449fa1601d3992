"""What a call target of torch's operator registry is, and modes between a piece of code and the operators it runs.

Operators that run for what they do, not for a result, are dropped by no pass of a compiler. An effect token would order
them among each other, too, but torch 2.13 cannot hand one to the body of a `cond`. So they are marked for FX's and
Inductor's removal of dead code alone, and keep the order that their inputs give them.
"""

from __future__ import annotations

import operator
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx.node import has_side_effect
from torch.utils._python_dispatch import TorchDispatchMode

from graphprobe.internals.names import require

Overload = OpOverload
"""`torch.ops.aten.add.Tensor` and its like."""

Around = Callable[[Overload, tuple[Any, ...], dict[str, Any]], Any]
"""Is called in place of an operator, with its arguments, and returns what the operator shall return."""

_library = torch.library.Library("graphprobe", "FRAGMENT")

SCHEMA_MODULE = "torch._subclasses.schema_check_mode"
BUILT_IN = frozenset({"aten", "prims", "prim"})

BUILT_IN_NAMESPACES = frozenset(
    "aten prims prim inductor _inductor_test quantized mkldnn mkl onednn rngprims profiler higher_order sparse "
    "c10d _c10d_functional c10d_functional symm_mem mkldnn_prepacked _prepacked".split()
)
"""Operator namespaces that torch itself registers, so that `torch.ops.<namespace>` finds them anywhere."""


class Operator(NamedTuple):
    """An operator's parts.

    Attributes:
        namespace: e.g. `aten`; `higher_order` for operators that take graphs.
        overload: e.g. `Tensor`; None when the target is the packet of all overloads, or a higher-order operator.
        arguments: names in the schema, in order; empty when there is no single schema.
    """

    namespace: str
    name: str
    overload: str | None = None
    arguments: tuple[str, ...] = ()


def operator_of(target: object) -> Operator | None:
    """The parts of `target`, or None when it is no registered operator."""
    if isinstance(target, OpOverload):
        namespace, _, name = target.overloadpacket._qualified_op_name.partition("::")
        arguments = tuple(str(argument.name) for argument in target._schema.arguments)
        return Operator(namespace, name, target._overloadname, arguments)
    if isinstance(target, OpOverloadPacket):
        namespace, _, name = target._qualified_op_name.partition("::")
        return Operator(namespace, name)
    return Operator("higher_order", str(target.name())) if isinstance(target, HigherOrderOperator) else None


def decomposed_while_traced(name: str) -> bool:
    """Whether torch replaces the operator by Python code as soon as it is traced, e.g. `aten.upsample_nearest2d.vec`.

    Then AOTAutograd does so for every backend, whichever table of decompositions it is given.
    """
    namespace, _, rest = name.partition(".")
    packet = getattr(getattr(torch.ops, namespace, None), rest.partition(".")[0], None)
    if not isinstance(packet, OpOverloadPacket):
        return False
    kernels = [getattr(getattr(packet, overload), "py_kernels", {}) for overload in packet.overloads()]
    return any(key.name in ("Autograd", "CompositeImplicitAutograd") for found in kernels for key in found)


def writes_nothing(target: object) -> bool:
    """Whether `target` is an operator of torch that writes to none of its arguments, by its schema."""
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    return not target._schema.is_mutable


def arguments_of(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Each argument of an operator's schema, and its value in a call: that of its default where none is given."""
    for i, argument in enumerate(op._schema.arguments):
        yield argument, args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value)


def argument_of(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """The value of one of them; None where there is none of this name."""
    return next((value for argument, value in arguments_of(op, args, kwargs) if argument.name == name), None)


def is_written(argument: Any) -> bool:
    """Whether an operator writes to an argument of its schema."""
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def writes_to(node: Any) -> list[Any]:
    """The nodes whose values a call of an operator changes in place, by its schema."""
    target = node.target
    if isinstance(target, OpOverloadPacket) and len(target.overloads()) == 1:  # in Dynamo's graphs
        target = getattr(target, target.overloads()[0])
    if node.op != "call_function" or getattr(target, "_schema", None) is None:
        return []
    written = (value for argument, value in arguments_of(target, node.args, node.kwargs) if is_written(argument))
    listed = (value if isinstance(value, (list, tuple)) else [value] for value in written)
    return [value for values in listed for value in values if hasattr(value, "all_input_nodes")]


def value_of(node: Any) -> Any:
    """What a node gives (torch's `meta["val"]`), None where compiled code has no value for it.

    An operator may give nothing by its schema, whatever a pass has left noted. Tokens, which keep operators with
    effects such as `aten._linalg_check_errors` in their order, are tensors in the note and nothing in the code.
    """
    value = node.meta.get("val")
    if node.op != "call_function":
        return value
    schema = getattr(node.target, "_schema", None)
    if (schema is not None and not schema.returns) or _is(node, "prims", "_make_token"):
        return None
    if _is(node, "higher_order", "with_effects") and isinstance(value, (list, tuple)):
        return (None, *value[1:])
    takes_token = node.target is operator.getitem and node.args[1] == 0
    return None if takes_token and _is(node.args[0], "higher_order", "with_effects") else value


def _is(node: Any, namespace: str, name: str) -> bool:
    found = operator_of(getattr(node, "target", None))
    return found is not None and (found.namespace, found.name) == (namespace, name)


class OpMode(TorchDispatchMode):
    """A context manager: inside, `around` is asked for the result of every operator, those of a backward included.

    Inside `around` operators run as if the mode were not there. Higher-order operators run unseen, with all in them;
    `unseen` is called first.
    """

    supports_higher_order_operators = True

    def __init__(self, around: Around, unseen: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._around, self._unseen = around, unseen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, OpOverload):
            self._unseen()
            return func(*args, **(kwargs or {}))
        return self._around(func, args, kwargs or {})


def decomposition_of(op: Overload) -> Callable[..., Any] | None:
    """What torch says the operator is made of; None where it says nothing."""
    table = require("torch._decomp", "decomposition_table", purpose="running an operator as its decomposition")
    found: Callable[..., Any] | None = table.get(op)
    return found


def define_side_effect(name: str, arguments: str, kernel: Callable[..., None]) -> Any:
    """The operator `graphprobe::name(arguments) -> ()`, for every device.

    Without values (fake and meta tensors) nothing is run. Under `vmap` it is run once for the whole batch, with the
    batch in front. No CUDA graph is captured around it: a replay would not run it.

    Args:
        name: not defined before in this process.
        arguments: as in a schema, e.g. `Tensor t, str name`.
        kernel: gets the arguments as they are. It must not raise, change a tensor, or keep one.
    """
    _library.define(f"{name}({arguments}) -> ()", tags=(torch.Tag.cudagraph_unsafe,))
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"graphprobe::{name}", lambda *_, **__: None, lib=_library)
    operator = getattr(torch.ops.graphprobe, name).default
    has_side_effect(operator)

    def batched(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[None, None]:
        operator(*(_batch_first(value, dim) for value, dim in zip(args, in_dims, strict=True)))
        return None, None

    torch.library.register_vmap(f"graphprobe::{name}", batched, lib=_library)
    return operator


def _batch_first(value: Any, dim: Any) -> Any:
    return value.movedim(dim, 0) if isinstance(dim, int) and isinstance(value, torch.Tensor) else value


def schema_check_mode() -> Any:
    """A mode that fails where an operator mutates or aliases what its schema does not say."""
    return require(SCHEMA_MODULE, "SchemaCheckMode", purpose="the backend 'eager_debug'")()


def raised_by_schema_check(error: BaseException) -> bool:
    """Whether `error` is the mode's verdict, and not an error of the operator it watched."""
    module = sys.modules.get(SCHEMA_MODULE)
    frames = traceback.extract_tb(error.__traceback__)
    return module is not None and bool(frames) and frames[-1].filename == module.__file__


def crossref_mode(*, everything: bool) -> AbstractContextManager[Any]:
    """A mode that runs each operator's fake kernel beside the real one and compares what they say of the result.

    Args:
        everything: torch's own operators too; else those of other namespaces only.
    """
    mode = require("torch._subclasses", "CrossRefFakeMode", purpose="crossref")
    made: AbstractContextManager[Any] = mode(None if everything else lambda op: op.namespace in BUILT_IN)
    return made


@contextmanager
def fake_mode_of(values: Iterable[object]) -> Iterator[None]:
    """The fake mode that made one of `values`, letting in real tensors that a graph holds; nothing if none is fake."""
    mode = next(filter(None, (getattr(value, "fake_mode", None) for value in values)), None)
    if mode is None:
        yield
        return
    before = mode.allow_non_fake_inputs
    mode.allow_non_fake_inputs = True
    try:
        with mode:
            yield
    finally:
        mode.allow_non_fake_inputs = before
