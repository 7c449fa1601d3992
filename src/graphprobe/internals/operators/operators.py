"""What a call target of torch's operator registry is: its namespace, name, overload and argument names."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket


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


def writes_to(node: Any) -> list[Any]:
    """The nodes whose values a call of an operator changes in place, by its schema."""
    target = node.target
    if isinstance(target, OpOverloadPacket) and len(target.overloads()) == 1:  # in Dynamo's graphs
        target = getattr(target, target.overloads()[0])
    schema = getattr(target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return []
    found = []
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
        found += [v for v in (value if isinstance(value, (list, tuple)) else [value]) if hasattr(v, "all_input_nodes")]
    return found


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
