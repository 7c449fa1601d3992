"""Which infinities the outputs of an op hold because the program means it: a mask's -inf, an infinite constant.

Read from the graph, not from values. What the program writes as an infinite constant, or as the largest or the lowest
number of the dtype (`finfo.min`), is followed through the nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

import torch
from torch.fx import Graph, Node

from graphprobe.engine.naming import op_of

Signs = frozenset[str]
"""`+` and `-`: such extreme values may be there on purpose. `m`: the values are those of a mask, 0 and 1."""

Table = tuple[Signs, Signs, Signs, Signs]
"""What an output may hold when the inputs hold no infinity, only -inf, only +inf, both; see `row_of`."""

NOTHING: Signs = frozenset()
MASK: Signs = frozenset("m")
BOTH: Signs = frozenset("+-")
SILENT: Table = (NOTHING, NOTHING, NOTHING, NOTHING)

_FLIP = {"+": "-", "-": "+"}
_READS: tuple[Signs, ...] = (NOTHING, frozenset("-"), frozenset("+"), BOTH)
_KEEP_MASK = {"convert_element_type", "_to_copy", "to", "view", "reshape", "expand", "unsqueeze", "squeeze", "clone"}
_KEEP_MASK |= {"permute", "transpose", "slice", "select", "type_as", "float", "half", "bfloat16", "alias", "detach"}
_BOUNDED = {"_softmax", "softmax", "sigmoid", "tanh", "erf", "sin", "cos", "reciprocal", "atan", "nan_to_num", "sign"}
_BOUNDED |= {"_safe_softmax", "softmax_", "rsqrt", "fill_nan"}
_CONSTANTS = {"full", "full_like", "new_full", "scalar_tensor", "fill", "fill_", "full_default", "constant"}
_PRODUCTS = {"mul", "mul_", "div", "div_", "true_divide", "mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "einsum"}
_CLAMPS = {"clamp", "clamp_", "clamp_min", "clamp_max", "clip", "hardtanh"}
_LOGS = {"log", "log2", "log10"}
_RISING = {"exp", "exp2", "expm1", "relu", "silu", "gelu", "softplus", "abs", "square", "sqrt"}

Of = Callable[[object], Signs]


def row_of(reads: Iterable[str]) -> int:
    """The row of a table for inputs that hold infinities of these signs."""
    return ("-" in reads) + 2 * ("+" in reads)


def signs_of_graph(graph: Graph) -> dict[Node, Signs]:
    """Of each node, what it may hold on purpose when no input of the graph holds an infinity."""
    known: dict[Node, Signs] = {}
    for node in graph.nodes:
        known[node] = _signs(node, lambda other: known.get(other, NOTHING))
    return known


def tables(nodes: Collection[Node], whole: Mapping[Node, Signs]) -> dict[Node, Table]:
    """Of each of the `nodes` that one op carries out, in the order of the graph; `whole` is `signs_of_graph`'s."""
    inside = set(nodes)
    rows: list[dict[Node, Signs]] = []
    for reads in _READS:
        known: dict[Node, Signs] = {}

        def of(other: Node, known: dict[Node, Signs] = known, reads: Signs = reads) -> Signs:
            if other in known:
                return known[other]
            found = whole.get(other, NOTHING)
            return found if _is_constant(other) else (found & MASK) | (reads if _is_float(other) else NOTHING)

        for node in nodes:
            known[node] = _signs(node, of)
        rows.append(known)
    return {node: (rows[0][node], rows[1][node], rows[2][node], rows[3][node]) for node in inside}


def union(found: Iterable[Table]) -> Table:
    """What any of several may hold."""
    rows = list(zip(*found, strict=True)) or [(), (), (), ()]
    first, second, third, fourth = (NOTHING.union(*row) - MASK for row in rows)
    return first, second, third, fourth


def _signs(node: Node, of_node: Callable[[Node], Signs]) -> Signs:
    if node.op in ("placeholder", "output"):
        return MASK if _is_bool(node) else NOTHING
    if node.op == "get_attr":
        return NOTHING
    if _is_bool(node):
        return MASK
    if not _is_float(node, unknown=True):
        return NOTHING
    limit = largest(_dtype(node))

    def of(value: object) -> Signs:
        if isinstance(value, Node):
            return of_node(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return NOTHING
        return frozenset("+" if value > 0 else "-") if abs(value) >= limit else NOTHING

    try:
        return _result(_name(node), [*node.args], dict(node.kwargs), of)
    except Exception:  # arguments of a kind that nobody thought of: then nothing is said against the op
        return BOTH


def _result(name: str, args: list[object], kwargs: dict[str, object], of: Of) -> Signs:
    """The rule of one operator."""
    leaves = list(_leaves([*args, *kwargs.values()]))
    if name.startswith("scaled_dot_product") or name.startswith("_scaled_dot_product"):
        return frozenset("-")  # the log-sum-exp of a row that is masked as a whole
    if name in _CONSTANTS:
        return NOTHING.union(*(of(value) for value in leaves if not isinstance(value, Node))) | _filled(name, args, of)
    if name in _KEEP_MASK:
        return of(args[0])
    if name in ("neg", "neg_", "negative"):
        return _flipped(of(args[0]))
    if name in ("sub", "sub_", "rsub", "subtract"):
        return _difference(name, args, of)
    if name in _PRODUCTS:
        return _product(leaves, of)
    if name in _LOGS:
        return frozenset("-") if of(args[0]) & {"m", "-"} else of(args[0]) - MASK
    if name in _RISING:
        return of(args[0]) & {"+"} | (frozenset("+") if name in ("abs", "square") and "-" in of(args[0]) else NOTHING)
    if name in _BOUNDED:
        return NOTHING
    if name in _CLAMPS:  # a bound is what such a value is meant to be
        return NOTHING.union(*(of(value) for value in leaves)) - MASK
    return NOTHING.union(*(of(value) for value in leaves)) - MASK


def _filled(name: str, args: list[object], of: Of) -> Signs:
    """`fill(x, value)` with a value that is a tensor."""
    return of(args[1]) if name in ("fill", "fill_") and len(args) > 1 and isinstance(args[1], Node) else NOTHING


def _difference(name: str, args: list[object], of: Of) -> Signs:
    first, second = (args[1], args[0]) if name == "rsub" else (args[0], args[1])
    if first in (1, 1.0) and of(second) & MASK:
        return MASK
    return (of(first) | _flipped(of(second))) - MASK


def _product(leaves: list[object], of: Of) -> Signs:
    """A mask times an extreme constant has its sign; anything else that is extreme may come out with either."""
    if leaves and all(isinstance(value, Node) and of(value) == MASK for value in leaves):
        return MASK
    extreme = NOTHING.union(*(of(value) for value in leaves if not isinstance(value, Node)))
    carried = NOTHING.union(*(of(value) for value in leaves if isinstance(value, Node))) - MASK
    if not carried:
        return extreme
    factors = [value for value in leaves if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(factors) == 1 and len(leaves) == 2 and not extreme:
        return carried if factors[0] > 0 else _flipped(carried)
    return BOTH


def _flipped(signs: Signs) -> Signs:
    return frozenset(_FLIP[sign] for sign in signs if sign in _FLIP)


def _leaves(values: Iterable[object]) -> Iterable[object]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _leaves(value)
        elif isinstance(value, (Node, int, float)):
            yield value


def _name(node: Node) -> str:
    parts = op_of(node).split(".")
    if len(parts) == 3 and parts[0] != "torch":
        return parts[1]
    name = parts[-1]
    return {"truediv": "div", "imul": "mul", "isub": "sub", "iadd": "add", "itruediv": "div"}.get(name, name)


def _is_constant(node: Node) -> bool:
    """Whether the node makes its value from numbers alone."""
    return node.op == "call_function" and not node.all_input_nodes


def _dtype(node: Node) -> torch.dtype | None:
    value = node.meta.get("val", node.meta.get("example_value"))
    return getattr(value, "dtype", None)


def _is_bool(node: Node) -> bool:
    return _dtype(node) == torch.bool


def _is_float(node: Node, *, unknown: bool = True) -> bool:
    dtype = _dtype(node)
    return unknown if dtype is None else dtype.is_floating_point or dtype.is_complex


def largest(dtype: torch.dtype | None) -> float:
    """The largest finite number of a dtype of floats; infinity where it is not known."""
    if dtype is None or not dtype.is_floating_point or dtype.itemsize < 1:
        return math.inf
    try:
        return float(torch.finfo(dtype).max)
    except TypeError:  # packed 4-bit floats
        return math.inf
