"""What observers of overflows and of overwritten memory know of an op beforehand, read from the graph or the code.

Infinities that the program means are a mask's -inf and infinite constants, read from the graph, not from values. What
the program writes as an infinite constant, or as the largest or the lowest number of the dtype (`finfo.min`), is
followed through the nodes.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, Node

from graphprobe.engine.naming import op_of
from graphprobe.internals.inductor.lowered_graph import Lowered
from graphprobe.internals.launch_io import LaunchIO, buffer_of
from graphprobe.internals.operators.operators import writes_to

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

_IN_PLACE = ("setitem", "iadd", "isub", "imul", "itruediv")


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
    rows: list[dict[Node, Signs]] = []
    for reads in _READS:
        known: dict[Node, Signs] = {}

        def of(other: Node, known: dict[Node, Signs] = known, reads: Signs = reads) -> Signs:
            if other in known:
                return known[other]
            found = whole.get(other, NOTHING)
            if other.op == "call_function" and not other.all_input_nodes:  # made from numbers alone
                return found
            return (found & MASK) | (reads if _is_float(other) else NOTHING)

        for node in nodes:
            known[node] = _signs(node, of)
        rows.append(known)
    return {node: (rows[0][node], rows[1][node], rows[2][node], rows[3][node]) for node in nodes}


def union(found: Iterable[Table]) -> Table:
    """What any of several may hold."""
    rows = list(zip(*found, strict=True)) or [(), (), (), ()]
    first, second, third, fourth = (NOTHING.union(*row) - MASK for row in rows)
    return first, second, third, fourth


def _signs(node: Node, of_node: Callable[[Node], Signs]) -> Signs:
    if _dtype(node) == torch.bool and node.op != "get_attr":
        return MASK
    if node.op in ("placeholder", "output", "get_attr") or not _is_float(node):
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
        filled = name in ("fill", "fill_") and len(args) > 1 and isinstance(args[1], Node)
        constants = (of(value) for value in leaves if not isinstance(value, Node))
        return NOTHING.union(*constants, of(args[1]) if filled else NOTHING)
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
    name = type_of(op_of(node))
    return {"truediv": "div", "imul": "mul", "isub": "sub", "iadd": "add", "itruediv": "div"}.get(name, name)


def type_of(target: str) -> str:
    """What kind of op a target is: `add` of `aten.add.Tensor`, `relu` of `torch.nn.functional.relu`."""
    parts = target.removeprefix("torch.ops.").split(".")
    return parts[1] if parts[0] != "torch" and len(parts) == 3 else parts[-1]


def _dtype(node: Node) -> torch.dtype | None:
    value = node.meta.get("val", node.meta.get("example_value"))
    return getattr(value, "dtype", None)


def _is_float(node: Node) -> bool:
    """Also where the dtype is not known."""
    dtype = _dtype(node)
    return True if dtype is None else dtype.is_floating_point or dtype.is_complex


def largest(dtype: torch.dtype | None) -> float:
    """The largest finite number of a dtype of floats; infinity where it is not known."""
    if dtype is None or not dtype.is_floating_point or dtype.itemsize < 1:
        return math.inf
    try:
        return float(torch.finfo(dtype).max)
    except TypeError:  # packed 4-bit floats
        return math.inf


@dataclass(frozen=True, slots=True, eq=False)
class OpTraits:
    """What is known of an op before it runs.

    Attributes:
        reads: names of the values it reads: FX nodes, or buffers of the compiled code.
        writes: by slot of its outputs, the name of the value that lies there then.
        returns: those of its values that the graph returns.
        mutates: slots of the inputs that it may write into.
        infinities: by slot of its outputs, which infinities are meant; `""` for slots that are not there.
    """

    reads: tuple[str, ...] = ()
    writes: Mapping[str, str] = field(default_factory=dict)
    returns: frozenset[str] = frozenset()
    mutates: tuple[str, ...] = ()
    infinities: Mapping[str, Table] = field(default_factory=dict)

    def meant(self, slot: str, reads: Signs) -> Signs:
        """Signs of the infinities that are meant in an output, if the inputs hold infinities of the signs `reads`."""
        table = self.infinities.get(slot, self.infinities.get("", SILENT))
        return table[row_of(reads)]

    def may_write(self, slot: str) -> bool:
        """Whether the op may write into what lies in this slot of its inputs."""
        return any(slot == name or slot.startswith(name + ".") for name in self.mutates)


NONE = OpTraits()


def traits_of_graph(graph: Graph) -> dict[Node, OpTraits]:
    """Those of each node."""
    whole = signs_of_graph(graph)
    returned = {found.name for node in graph.nodes if node.op == "output" for found in node.all_input_nodes}
    return {
        node: OpTraits(
            tuple(read.name for read in node.all_input_nodes),
            {"output.0": node.name},
            frozenset({node.name} & returned),
            tuple(_mutated_slots(node)),
            {"": union([tables([node], whole)[node]])},
        )
        for node in graph.nodes
    }


def traits_of_launches(ios: Sequence[LaunchIO], lowered: Lowered) -> list[OpTraits]:
    """Those of each launch of a wrapper, and of its inputs before them."""
    graphs = {id(node.graph): node.graph for node in lowered.fx.values()}
    whole: dict[Node, Signs] = {}
    for graph in graphs.values():
        whole |= signs_of_graph(graph)
    order = {node: index for index, node in enumerate(whole)}
    origins = {node.name: [origin.name for origin in node.origins] for node in lowered.nodes}
    returned = _returned(lowered.code, {use.name for io in ios for use in io.writes})
    result = []
    for io in ios:
        names = {name for node in io.nodes for name in origins.get(node, ())}
        nodes = sorted((lowered.fx[name] for name in names if name in lowered.fx), key=lambda node: order[node])
        found = tables([node for node in nodes if node.op != "placeholder"], whole)
        infinities = {"": union(found.values())} if found else {}
        writes = {}
        returns = set()
        for index, use in enumerate(io.writes):
            value = use.value or use.name
            writes[f"output.{index}"] = value
            node = lowered.fx.get(lowered.values.get(value, ""))
            if node is not None and node in found:
                infinities[f"output.{index}"] = union([found[node]])
            if use.name in returned:
                returns.add(value)
        into = {use.name for use in io.writes if use.position is not None}
        mutates = tuple(f"input.{index}" for index, use in enumerate(io.reads) if use.name in into)
        reads = tuple(use.value or use.name for use in io.reads)
        result.append(OpTraits(reads, writes, frozenset(returns), mutates, infinities))
    return result


def _mutated_slots(node: Node) -> list[str]:
    written = writes_to(node)
    name = op_of(node).rpartition(".")[2] if node.op in ("call_function", "call_method") else ""
    in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    if not written and in_place and node.args and "_schema" not in dir(node.target):
        written = [node.args[0]]
    out = node.kwargs.get("out")
    written = [*written, *_listed(out)]
    slots = [(f"input.{index}", value) for index, value in enumerate(node.args)]
    slots += [(f"kwarg.{name}", value) for name, value in node.kwargs.items()]
    return [slot for slot, value in slots if any(into is not None and into in _listed(value) for into in written)]


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _returned(code: str, written: set[str]) -> set[str]:
    """The variables that launches write and the wrapper returns, be it as a view or under another name."""
    parents: dict[str, str] = {}
    found: set[str] = set()
    for function in ast.walk(ast.parse(code)):
        if not isinstance(function, ast.FunctionDef) or function.name != "call":
            continue
        for line in ast.walk(function):
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                base = buffer_of(line.value)
                if base is not None:
                    parents[line.targets[0].id] = base
            if isinstance(line, ast.Return) and isinstance(line.value, ast.Tuple):
                found |= {name for item in line.value.elts if (name := buffer_of(item)) is not None}
    for name in list(found):
        seen = {name}
        while name not in written and name in parents and parents[name] not in seen:
            name = parents[name]
            seen.add(name)
        found.add(name)
    return found
