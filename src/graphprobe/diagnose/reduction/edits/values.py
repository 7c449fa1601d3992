"""Plainer dtypes, values and constants; numbers that go in, or are computed from sizes, are written into the graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule

from graphprobe.diagnose.reduction.edits.base import (
    EditBase,
    EditPass,
    NotApplicable,
    is_number,
    placeholders,
    runnable,
    set_attribute,
    shares,
    tensor_at,
    tensors,
    together,
)
from graphprobe.diagnose.reduction.edits.measure import (
    calls,
    constant_rank,
    literals,
    put,
    rank_of,
    read_from,
    rounded,
    set_constant,
    value_rank,
)
from graphprobe.engine.interpret import run_graph

FILLS = {"zeros": 0, "ones": 1, "small": 2, "signed": 3, "uniform": 4, "single": 4, "bits4": 5, "bits8": 6}
"""Of a `Fill`, with the rank of such values; and `nonfinite`."""

Number = bool | int | float


class Fill(EditBase, frozen=True):
    """Tensors get plainer values; strides and shared memory stay.

    Integers stay between the least and the greatest value of their tensor and 0, so that indices stay valid.

    Attributes:
        inputs: positions.
        kind: `zeros`; `ones`; `small`: 1 to 5 in turn; `signed`: -3 to 3 in turn; `uniform`: the finite value of the
            largest magnitude everywhere; `single`: that value where it stands, zeros elsewhere; `bits4`, `bits8`:
            rounded to so many significant bits; `nonfinite`: the first NaN or infinity where it stands, zeros
            elsewhere.
    """

    inputs: tuple[int, ...]
    kind: str

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        if self.kind not in FILLS and self.kind != "nonfinite":
            raise NotApplicable(f"{self}: there is no such kind")
        for i in self.inputs:
            _write(tensor_at(inputs, i), self.kind)
        return inputs


def _write(tensor: torch.Tensor, kind: str) -> None:
    if tensor.layout is not torch.strided:
        raise NotApplicable(f"a tensor of layout {tensor.layout}")
    target = tensor.detach()
    for d in range(target.ndim):
        if target.stride(d) == 0 and target.shape[d] > 1:
            target = target.narrow(d, 0, 1)
    if target.numel():
        target.copy_(_filled(target, kind))


def _filled(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """New values for a tensor that is not empty."""
    if tensor.is_complex():
        if kind not in ("zeros", "ones", "bits4", "bits8"):
            raise NotApplicable(f"complex values are never {kind}")
        if kind in ("zeros", "ones"):
            return torch.full_like(tensor, kind == "ones")
        parts = torch.view_as_real(tensor.resolve_conj())
        return torch.view_as_complex(_filled(parts, kind).contiguous())
    positions = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape)
    wide = tensor.to(torch.float64)
    if kind == "zeros":
        made = torch.zeros_like(wide)
    elif kind == "ones":
        made = torch.ones_like(wide)
    elif kind == "small":
        made = (positions % 5 + 1).to(torch.float64)
    elif kind == "signed":
        made = (positions % 7 - 3).to(torch.float64)
    elif kind in ("bits4", "bits8"):
        made = rounded(wide, int(kind.removeprefix("bits")))
    else:
        made = _one_value(wide, positions, kind)
    if tensor.dtype is torch.bool:
        return made.to(torch.int64) % 2 == 1
    if not tensor.is_floating_point():
        made = made.clamp(min(float(wide.min()), 0.0), max(float(wide.max()), 0.0))
    return made.to(tensor.dtype)


def _one_value(wide: torch.Tensor, positions: torch.Tensor, kind: str) -> torch.Tensor:
    finite = torch.isfinite(wide)
    if kind == "nonfinite":
        if bool(finite.all()):
            raise NotApplicable("all values are finite")
        at = int((~finite).reshape(-1).to(torch.int8).argmax())
    else:
        at = int(torch.where(finite, wide.abs(), -1.0).reshape(-1).argmax())
    value = wide.reshape(-1)[at]
    if kind == "uniform":
        return torch.full_like(wide, float(value))
    return torch.where(positions == at, value, 0.0)


def _fills(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    every = [i for i in tensors(inputs) if inputs[i].numel()]
    floating = [i for i in every if inputs[i].is_floating_point() or inputs[i].is_complex()]
    ranks = {i: value_rank(inputs[i]) for i in every}
    groups = list(dict.fromkeys([tuple(every), tuple(floating)]))
    groups = [group for group in groups if len(group) > 1] + [(i,) for i in every]
    for group in groups:
        for kind, rank in FILLS.items():
            simpler = tuple(i for i in group if ranks[i] > rank)
            if simpler and (len(simpler) == len(group) or len(group) > 1):
                yield Fill(simpler, kind)
        spoiled = tuple(i for i in group if i in floating and not bool(torch.isfinite(inputs[i]).all()))
        if spoiled:
            yield Fill(spoiled, "nonfinite")
            yield from (Fill(spoiled, kind) for kind in ("zeros", "ones"))


VALUES = EditPass("values", _fills)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Cast(EditBase, frozen=True):
    """Tensors of one dtype get another; rounded where it holds fewer bits.

    Attributes:
        source, dtype: names, e.g. `bfloat16`, `float32`.
    """

    source: str
    dtype: str
    inputs: tuple[int, ...] = ()  # positions; empty: all inputs and attributes of dtype `source`
    literals: bool = False  # where the graph itself names `source`, it names `dtype` afterwards

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        source, dtype = getattr(torch, self.source), getattr(torch, self.dtype)
        chosen = self.inputs or [i for i in tensors(inputs) if inputs[i].dtype == source]
        for i in chosen:
            value = tensor_at(inputs, i)
            if value.dtype != source:
                raise NotApplicable(f"{self}: input {i} is {value.dtype}")
            if shares(inputs, i):
                raise NotApplicable(f"{self}: input {i} shares its memory")
        values = [_converted(v, dtype) if i in chosen else v for i, v in enumerate(inputs)]
        if not self.inputs:
            for target, tensor in read_from(graph, torch.Tensor).items():
                if tensor.dtype == source:
                    set_attribute(graph, target, _converted(tensor, dtype))
        for node in calls(graph) if self.literals else ():
            put(node, {path: dtype for path, value in literals(node) if value is source})
        return values


def _converted(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """In another dtype, with the same strides where they have no gaps."""
    return value.detach().to(dtype).requires_grad_(value.requires_grad)


def plain(dtype: torch.dtype) -> torch.dtype:
    """The plainest dtype of the same kind."""
    if dtype.is_complex:
        return torch.complex64
    if dtype.is_floating_point:
        return torch.float32
    return torch.bool if dtype is torch.bool else torch.int64


def _casts(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    every = [inputs[i].dtype for i in tensors(inputs)] + [t.dtype for t in read_from(graph, torch.Tensor).values()]
    sources = [d for d in dict.fromkeys(every) if plain(d) is not d and rank_of(plain(d)) < rank_of(d)]
    for source in sources:
        for named in (True, False):
            yield Cast(_name(source), _name(plain(source)), literals=named)
    for i in tensors(inputs):
        if inputs[i].dtype in sources:
            yield Cast(_name(inputs[i].dtype), _name(plain(inputs[i].dtype)), inputs=(i,))


DTYPES = EditPass("dtypes", _casts)


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


class InlineNumber(EditBase, frozen=True):
    """Inputs that are numbers become constants of the graph."""

    inputs: tuple[int, ...]  # positions
    values: tuple[Number, ...]  # what they are, in the same order; a call where they are others does not fit

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        nodes = placeholders(graph)
        for i, value in zip(self.inputs, self.values, strict=True):
            if i >= len(inputs) or not _same(inputs[i], value):
                raise NotApplicable(f"{self}: input {i} is no {value!r}")
            set_constant(nodes[i], value)
            graph.graph.erase_node(nodes[i])
        return [v for i, v in enumerate(inputs) if i not in self.inputs]


class FoldNumber(EditBase, frozen=True):
    """Calls that give a number, as those of sizes do, become constants."""

    nodes: tuple[str, ...]  # their names
    values: tuple[Number, ...]  # what they give, in the same order; a call where they give something else does not fit

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        numbers = _numbers(graph, inputs)
        found = {node.name: node for node in graph.graph.nodes}
        for name, value in zip(self.nodes, self.values, strict=True):
            if name not in found or not _same(numbers.get(name), value):
                raise NotApplicable(f"{self}: {name} gives no {value!r}")
            set_constant(found[name], value)
        for name in reversed(self.nodes):
            if not found[name].users:
                graph.graph.erase_node(found[name])
        return inputs


def _numbers(graph: GraphModule, inputs: list[Any]) -> dict[str, Number]:
    """What each call that gives a number gives."""
    values = run_graph(runnable(graph), inputs).values
    return {node.name: values[node.name] for node in calls(graph) if is_number(values.get(node.name))}


def _static(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    found = [(i, value) for i, value in enumerate(inputs) if is_number(value)]
    yield from together(lambda numbers: InlineNumber(*zip(*numbers, strict=True)), found)
    yield from together(lambda numbers: FoldNumber(*zip(*numbers, strict=True)), list(_numbers(graph, inputs).items()))


class SetScalar(EditBase, frozen=True):
    """A floating-point constant of a call becomes another."""

    node: str  # name of the call
    path: str  # of the argument, e.g. `args.1` or `kwargs.eps`.
    value: float

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        node = next((n for n in calls(graph) if n.name == self.node), None)
        if node is None or not isinstance(dict(literals(node)).get(self.path), float):
            raise NotApplicable(f"{self}: there is no such constant")
        put(node, {self.path: self.value})
        return inputs


def _plainer(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    for node in calls(graph):
        for path, value in literals(node):
            for new in (0.0, 1.0):
                if isinstance(value, float) and constant_rank(new) < constant_rank(value):
                    yield SetScalar(node.name, path, new)


STATIC = EditPass("static", _static)
SCALARS = EditPass("scalars", _plainer)
