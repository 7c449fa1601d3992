"""One node of a printed FX graph taken apart: the operator, the nodes it reads, and its other arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection

import msgspec

from graphprobe.report.graph_text import Node

_TYPE = re.compile(r"^(?P<dtype>[a-z]\w*)\[(?P<shape>[^\]]*)\](?:\[(?P<strides>[^\]]*)\])?(?P<device>.*)$")
_BETWEEN_SIZES = re.compile(r",(?![^(]*\))")
_WORD = re.compile(r"[^\W\d]\w*")

DTYPES = {
    "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "b8": "bool",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "c32": "complex32", "c64": "complex64", "c128": "complex128",
    "f8e4m3fn": "float8_e4m3fn", "f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz", "f8e8m0fnu": "float8_e8m0fnu", "f4e2m1fnx2": "float4_e2m1fn_x2",
}  # fmt: skip
"""torch's names of dtypes by the abbreviations of printed graphs."""


_SYMBOLS = {
    "mult": "mul", "matmult": "matmul", "div": "truediv", "noteq": "ne", "gte": "ge", "lte": "le", "usub": "neg",
    "bitand": "and_", "bitor": "or_", "bitxor": "xor", "not": "not_",
}  # fmt: skip
"""Names of the module `operator` where Python's syntax tree has others."""


class Argument(msgspec.Struct, frozen=True):
    """One argument: its label (`arg0`, or its keyword), the nodes in it, in order, and its text."""

    label: str
    nodes: tuple[str, ...]
    text: str


class Operation(msgspec.Struct, frozen=True):
    """What a node computes.

    Attributes:
        domain: `aten`, `higher_order`, `torch`, `torch.Tensor` for a method, `module`, `operator` for Python's own.
        name: `addmm`.
        overload: `default`; empty where there is none.
        target: in full, as printed.
        arguments: in order.
        index: of `x[2]`, the 2; None for all others.
    """

    domain: str
    name: str
    overload: str
    target: str
    arguments: tuple[Argument, ...] = ()
    index: int | None = None

    def nodes(self) -> tuple[str, ...]:
        """The nodes it reads, in order, one that is read twice twice."""
        return tuple(name for argument in self.arguments for name in argument.nodes)


class Meta(msgspec.Struct, frozen=True):
    """What the printed type says: `dtype` is torch's name; sizes and strides are texts, since they may be symbols."""

    dtype: str
    shape: tuple[str, ...]
    strides: tuple[str, ...] = ()
    device: str = ""


def operation_of(node: Node, known: Collection[str]) -> Operation:
    """The operation of a node; `known` are the names of the nodes around it, which tells them from other words.

    A text that is no Python expression gives an operation `expression` of the domain `graphprobe`.
    """
    try:
        tree = ast.parse(node.expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        words = tuple(word for word in _WORD.findall(node.expression) if word in known)
        return Operation("graphprobe", "expression", "", node.expression, (Argument("arg0", words, node.expression),))
    return _operation(tree, known)


def results_of(node: Node, known: Collection[str]) -> tuple[str, ...]:
    """The nodes that an `output` node returns, in order."""
    try:
        return _names(ast.parse(node.expression.strip() or "None", mode="eval"), known)
    except (SyntaxError, ValueError, RecursionError):
        return tuple(word for word in _WORD.findall(node.expression) if word in known)


def meta_of(node: Node) -> Meta | None:
    """The type of a node's value; None where none is printed, as for a tuple."""
    if node.type.startswith("Sym("):
        return Meta("bool" if re.search("[<>=]", node.type) else "int64", ())
    match = _TYPE.match(node.type)
    if match is None or match["dtype"] not in DTYPES:
        return None
    return Meta(DTYPES[match["dtype"]], _sizes(match["shape"]), _sizes(match["strides"] or ""), match["device"])


def _sizes(text: str) -> tuple[str, ...]:
    """`s0, Max(1, u0)` has two."""
    return tuple(part.strip() for part in _BETWEEN_SIZES.split(text) if part.strip())


def _operation(tree: ast.expr, known: Collection[str]) -> Operation:
    if isinstance(tree, ast.Call):
        return _call(tree, known)
    if isinstance(tree, ast.Subscript):
        index = tree.slice.value if isinstance(tree.slice, ast.Constant) else None
        return Operation(
            "operator",
            "getitem",
            "",
            "operator.getitem",
            (_argument("arg0", tree.value, known), _argument("arg1", tree.slice, known)),
            index if isinstance(index, int) and not isinstance(index, bool) else None,
        )
    if isinstance(tree, ast.Attribute):
        if ast.unparse(tree).startswith("self."):
            return Operation("torch", "get_attr", "", ast.unparse(tree))
        return Operation("operator", "getattr", "", tree.attr, (_argument("arg0", tree.value, known),))
    if isinstance(tree, ast.Name) and tree.id in known:
        return Operation("operator", "alias", "", tree.id, (_argument("arg0", tree, known),))
    if isinstance(tree, ast.BinOp):
        return _python(tree.op, (tree.left, tree.right), known)
    if isinstance(tree, ast.UnaryOp):
        return _python(tree.op, (tree.operand,), known)
    if isinstance(tree, ast.Compare):
        return _python(tree.ops[0], (tree.left, *tree.comparators), known)
    return Operation("operator", "constant", "", ast.unparse(tree), (_argument("arg0", tree, known),))


def _call(tree: ast.Call, known: Collection[str]) -> Operation:
    target = ast.unparse(tree.func)
    arguments = [_argument(f"arg{i}", value, known) for i, value in enumerate(tree.args)]
    arguments += [_argument(keyword.arg or "kwargs", keyword.value, known) for keyword in tree.keywords]
    parts = target.split(".")
    if parts[:2] == ["torch", "ops"] and len(parts) >= 4:
        return Operation(parts[2], parts[3], ".".join(parts[4:]), target.removeprefix("torch.ops."), tuple(arguments))
    if parts[0] == "self":
        return Operation("module", parts[-1], "", target, tuple(arguments))
    if isinstance(tree.func, ast.Attribute) and _names(tree.func.value, known):
        receiver = _argument("self", tree.func.value, known)
        return Operation("torch.Tensor", tree.func.attr, "", tree.func.attr, (receiver, *arguments))
    return Operation(parts[0].lstrip("_") or "python", parts[-1], "", target, tuple(arguments))


def _python(symbol: ast.AST, values: tuple[ast.expr, ...], known: Collection[str]) -> Operation:
    name = type(symbol).__name__.lower()
    name = _SYMBOLS.get(name, name)
    found = tuple(_argument(f"arg{i}", value, known) for i, value in enumerate(values))
    return Operation("operator", name, "", f"operator.{name}", found)


def _argument(label: str, value: ast.expr, known: Collection[str]) -> Argument:
    return Argument(label, _names(value, known), ast.unparse(value))


def _names(tree: ast.AST, known: Collection[str]) -> tuple[str, ...]:
    """Names of nodes in the order in which they are read; `ast.walk` would go by depth."""
    if isinstance(tree, ast.Name):
        return (tree.id,) if tree.id in known else ()
    return tuple(name for child in ast.iter_child_nodes(tree) for name in _names(child, known))
