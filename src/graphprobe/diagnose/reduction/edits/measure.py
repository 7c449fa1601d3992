"""How simple a case is: a total measure that every edit lowers.

The parts are compared in order, so an edit may raise a part that stands behind one that it lowers:

- a body that is inlined may add calls, so graphs inside operators come first;
- an attribute that becomes an input adds an input and keeps the elements, so attributes stand before inputs;
- a number that becomes a constant adds a constant, so inputs stand before constants;
- smaller tensors may hold other values, so elements stand before what is said of values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from graphprobe.engine.subgraph import CALLS, attribute, output_node
from graphprobe.internals.aot_backends import is_higher_order

HEAD = 4096
"""So many elements are looked at first: most tensors are seen not to be simple by them."""

SMALL = 8
"""Integers up to this magnitude are small."""

DTYPES = {
    torch.float32: 0,
    torch.int64: 0,
    torch.bool: 0,
    torch.float64: 1,
    torch.int32: 1,
    torch.float16: 2,
    torch.bfloat16: 2,
    torch.complex64: 3,
    torch.complex128: 4,
}
"""Rank of a dtype; the ones that are not here have `OTHER_DTYPE`."""

OTHER_DTYPE = 5

SLICE = ("start", "stop", "step")

T = TypeVar("T")


class Size(NamedTuple):
    """How simple a case is; compared as a tuple, the smaller the simpler."""

    graphs: int  # calls of operators that take graphs, the nested ones included
    calls: int  # calls in the graph and in the graphs that its operators take
    attributes: int  # tensors that the graph reads from its module
    outputs: int  # values that are returned
    elements: int  # of all tensors that go in, attributes included
    large_dims: int  # dims of theirs that are larger than 1
    inputs: int  # placeholders
    numbers: int  # those of them that are numbers
    sizes: int  # distinct sizes above 1
    dtypes: int  # sum of the ranks of the tensors' dtypes and of those written into the graph
    shared: int  # inputs that share memory with an earlier one
    strides: int  # inputs that are not contiguous or do not start at the beginning of their storage
    gradients: int  # inputs that require gradients
    values: int  # sum of the ranks of the tensors' values and of the floating-point constants, and NaNs and infinities
    constants: int  # what the integers in the graph amount to, in digits of base 2


def size_of(graph: GraphModule, inputs: Sequence[Any]) -> Size:
    """How simple the graph with these inputs is."""
    graphs = list(graphs_in(graph))
    attributes = [tensor for part in dict.fromkeys(graphs) for tensor in read_from(part, torch.Tensor).values()]
    given = [value for value in inputs if isinstance(value, torch.Tensor)]
    every = [*given, *attributes]
    large = [size for tensor in every for size in tensor.shape if size > 1]
    nodes = [node for part in graphs for node in calls(part)]
    constants = [value for node in nodes for _, value in literals(node)]
    return Size(
        graphs=sum(is_higher_order(node.target) for node in nodes),
        calls=len(nodes),
        attributes=len(attributes),
        outputs=len(outputs_of(graph)),
        elements=sum(tensor.numel() for tensor in every),
        large_dims=len(large),
        inputs=len(inputs),
        numbers=len(inputs) - len(given),
        sizes=len(set(large)),
        dtypes=sum(rank_of(t.dtype) for t in every) + sum(rank_of(v) for v in constants if isinstance(v, torch.dtype)),
        shared=sum(first != i for i, first in sharing(given).items()),
        strides=sum(is_strided(tensor) for tensor in given),
        gradients=sum(tensor.requires_grad for tensor in given),
        values=sum(value_rank(t) + nonfinite(t) for t in every) + sum(map(constant_rank, constants)),
        constants=sum(abs(v).bit_length() for v in constants if isinstance(v, int)),
    )


def graphs_in(graph: GraphModule) -> Iterator[GraphModule]:
    """The graph, and those that its operators take, and theirs, once for each time they are read."""
    yield graph
    for node in graph.graph.nodes:
        value = attribute(graph, node.target) if node.op == "get_attr" else None
        if isinstance(value, GraphModule):
            yield from graphs_in(value)


def read_from(graph: GraphModule, kind: type[T]) -> dict[str, T]:
    """The attributes of a kind that the graph itself reads, by target, in the order of their first use."""
    found = {str(n.target): attribute(graph, n.target) for n in graph.graph.nodes if n.op == "get_attr"}
    return {target: value for target, value in found.items() if isinstance(value, kind)}


def sharing(inputs: Sequence[Any]) -> dict[int, int]:
    """Of each strided tensor, by position: the first position with the same storage. Empty storages count as own."""
    first: dict[int, int] = {}
    result = {}
    for i, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            key = value.untyped_storage().data_ptr()
            result[i] = first.setdefault(key, i) if key else i
    return result


def outputs_of(graph: GraphModule) -> list[Any]:
    """What the graph returns."""
    returned: Any = output_node(graph).args[0]
    return list(returned) if isinstance(returned, (list, tuple)) else [returned]


def rank_of(dtype: torch.dtype) -> int:
    """How far a dtype is from the plainest one of its kind."""
    return DTYPES.get(dtype, OTHER_DTYPE)


def is_strided(tensor: torch.Tensor) -> bool:
    """Whether the tensor's layout is anything but plain."""
    return tensor.layout is not torch.strided or not tensor.is_contiguous() or tensor.storage_offset() != 0


def constant_rank(value: object) -> int:
    """Of a constant in the graph: 0 unless it is a float other than 0 (1 for 1.0, 2 for others)."""
    if not isinstance(value, float) or value == 0:
        return 0
    return 1 if value == 1 else 2


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as a flat float64 tensor; real and imaginary parts in turn."""
    detached = tensor.detach()
    if detached.layout is not torch.strided:
        detached = detached.to_dense()
    if detached.is_complex():
        detached = torch.view_as_real(detached.resolve_conj())
    return detached.reshape(-1).to(torch.float64)


def nonfinite(tensor: torch.Tensor) -> int:
    """How many NaNs and infinities it has."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0
    plain = tensor.detach() if tensor.dtype in DTYPES and tensor.layout is torch.strided else _plain(tensor)
    return plain.numel() - int(torch.isfinite(plain).sum())


def value_rank(tensor: torch.Tensor) -> int:
    """How complicated a tensor's finite values are.

    Returns:
        0 all zero (or no elements); 1 all one; 2 integers from 1 to 8; 3 integers from -8 to 8; 4 one value throughout,
        or one that is not zero; 5 and 6 floating-point values of 4 and 8 significant bits; 7 others.
    """
    flat = _plain(tensor)
    if flat.numel() > HEAD and _rank(flat[:HEAD]) == 7:
        return 7
    return _rank(flat)


def _rank(flat: torch.Tensor) -> int:
    finite = flat.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    if not finite.any():
        return 0
    least, most = float(finite.min()), float(finite.max())
    if least == most == 1:
        return 1
    if least >= -SMALL and most <= SMALL and torch.equal(finite, finite.round()):
        return 2 if least >= 1 else 3
    if least == most or int(torch.count_nonzero(finite)) == 1:
        return 4
    return next((rank for rank, bits in ((5, 4), (6, 8)) if torch.equal(finite, rounded(finite, bits))), 7)


def rounded(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Floating-point values rounded to so many significant bits; NaNs and infinities stay."""
    mantissa, exponent = torch.frexp(values)
    return torch.ldexp((mantissa * 2**bits).round() / 2**bits, exponent)


def literals(node: Node) -> Iterator[tuple[str, Any]]:
    """Every number and dtype among the arguments, behind its path, e.g. `args.1.0` or `kwargs.size.0`."""
    yield from _leaves("args", node.args)
    yield from _leaves("kwargs", node.kwargs)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (bool, int, float, torch.dtype)):
        yield path, value
    elif isinstance(value, slice):
        for name in SLICE:
            yield from _leaves(f"{path}.{name}", getattr(value, name))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _leaves(f"{path}.{i}", item)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(f"{path}.{name}", item)


def put(node: Node, new: Mapping[str, Any]) -> None:
    """Write other literals into the arguments, by path."""
    if new:
        node.args, node.kwargs = _replaced("args", node.args, new), _replaced("kwargs", node.kwargs, new)


def _replaced(path: str, value: Any, new: Mapping[str, Any]) -> Any:
    if path in new:
        return new[path]
    if isinstance(value, slice):
        return slice(*(_replaced(f"{path}.{name}", getattr(value, name), new) for name in SLICE))
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_replaced(f"{path}.{i}", item, new) for i, item in enumerate(value))
    if isinstance(value, dict):
        return {name: _replaced(f"{path}.{name}", item, new) for name, item in value.items()}
    return value


def calls(gm: GraphModule) -> list[Node]:
    """The calls of the graph itself, in order."""
    return [node for node in gm.graph.nodes if node.op in CALLS]


def set_constant(node: Node, value: Any) -> None:
    """Let everything that uses the node get a constant instead; the node itself stays."""

    def chosen(argument: Node) -> Any:
        return value if argument is node else argument

    for user in list(node.users):
        user.args = map_arg(user.args, chosen)
        user.kwargs = map_arg(user.kwargs, chosen)
