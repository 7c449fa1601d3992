"""Smaller tensors: dims of the inputs are cut, and the sizes that are written into the graph follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule

from graphprobe.diagnose.reduction.edits.base import (
    EditBase,
    EditPass,
    NotApplicable,
    set_attribute,
    shares,
    tensors,
)
from graphprobe.diagnose.reduction.edits.measure import read_from
from graphprobe.diagnose.reduction.edits.sizes import fit_sizes, shapes_of

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
VECTORS = (8, 16, 32)
"""Widths that loops are cut into: a fault may need a size that is no multiple of one."""


class Resize(EditBase, frozen=True):
    """Every input dim of one size gets another; the graph's sizes follow.

    Tensors keep their leading elements, or their last ones; the order of their strides stays. Numbers that go in and
    equal an old size become the new one. Integer tensors whose values were all below an old size, and are no valid
    indices any more, are taken modulo the new size. An input that no size names stays as it is.

    Attributes:
        dims: the only (input, dim) pairs to cut; empty: all of the old sizes, in inputs and attributes.
    """

    sizes: tuple[tuple[int, int], ...]  # (old, new) pairs
    dims: tuple[tuple[int, int], ...] = ()
    last: bool = False  # keep the last elements
    RUNS: ClassVar[bool] = True

    def change(self, graph: GraphModule, inputs: list[Any]) -> list[Any]:
        sizes = dict(self.sizes)
        shapes, meta = shapes_of(graph, inputs)
        values: list[Any] = list(inputs)
        for i, value in enumerate(inputs):
            if isinstance(value, torch.Tensor):
                values[i] = self._cut(value, self._cuts(i, value), compact=not shares(inputs, i))
            elif type(value) is int and not self.dims:
                values[i] = sizes.get(value, value)
        if not self.dims:
            for target, tensor in read_from(graph, torch.Tensor).items():
                cut = self._cut(tensor, self._cuts(None, tensor), compact=True)
                if cut is not tensor:
                    set_attribute(graph, target, cut)
        error: Exception | None = None
        for bold in (True, False):
            for choice in _choices(values, sizes):
                try:
                    fit_sizes(graph, choice, shapes, sizes, bold=bold, meta=meta)
                except Exception as raised:
                    error = raised
                else:
                    return choice
        raise NotApplicable(f"{self}: {type(error).__name__}: {error}") from error

    def _cuts(self, position: int | None, value: torch.Tensor) -> dict[int, int]:
        sizes = dict(self.sizes)
        found = {dim: sizes[size] for dim, size in enumerate(value.shape) if size in sizes}
        return {d: new for d, new in found.items() if (position, d) in self.dims} if self.dims else found

    def _cut(self, value: torch.Tensor, cuts: Mapping[int, int], *, compact: bool) -> torch.Tensor:
        if not cuts:
            return value
        part = value.detach()
        for dim, new in cuts.items():
            if new > part.shape[dim]:
                raise NotApplicable(f"{self}: a dim cannot grow")
            part = part.narrow(dim, part.shape[dim] - new if self.last else 0, new)
        part = _compacted(part, value) if compact else part
        return part.requires_grad_(value.requires_grad)


def _compacted(part: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`part` without gaps where `value` had none: strides in the same order, expanded dims expanded."""
    order = sorted((d for d in range(value.ndim) if value.stride(d)), key=lambda d: (value.stride(d), value.shape[d]))
    expected, strides, step = 1, [0] * value.ndim, 1
    for d in order:
        if value.shape[d] != 1 and value.stride(d) != expected:
            return part
        strides[d] = step
        expected *= value.shape[d]
        step *= part.shape[d]
    made = torch.empty_strided(part.shape, strides, dtype=part.dtype, device=part.device)
    inside, outside = part, made
    for d in range(value.ndim):
        if not value.stride(d):
            inside, outside = inside.narrow(d, 0, 1), outside.narrow(d, 0, 1)
    outside.copy_(inside)
    return made


def _choices(values: list[Any], sizes: Mapping[int, int]) -> list[list[Any]]:
    """What the inputs may be: as cut; indices below an old size modulo its new one; all of them modulo the least one.

    An index that is out of range raises on a CPU; on other devices it may end the process, so only the last is tried.
    """
    least = min(sizes.values())
    safe = [_modulo(value, least) for value in values]
    if all(safe_value is value for safe_value, value in zip(safe, values, strict=True)):
        return [values]
    if any(value.device.type != "cpu" for value in values if isinstance(value, torch.Tensor)):
        return [safe]
    near = []
    for value in values:
        most = int(value.max()) if _is_index(value) else 0
        above = [new for old, new in sorted(sizes.items()) if most < old]
        near.append(_modulo(value, above[0]) if above else value)
    return [values, near, safe]


def _is_index(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in INTEGERS and value.numel() > 0


def _modulo(value: Any, size: int) -> Any:
    """Integers that are not below `size`, in magnitude, modulo it."""
    if not _is_index(value) or max(int(value.max()), -int(value.min())) < size:
        return value
    return value.remainder(size)


def ladder(old: int) -> list[int]:
    """Smaller sizes to try in the place of `old`, the boldest first.

    1, 2, 3; the remainders by vector widths, alone and behind one vector; a half; then ever smaller steps down to
    one less, so that asking again and again finds the least size that still fails without going through all.
    """
    found = [1, 2, 3]
    found += sorted({tail for width in VECTORS if old % width for tail in (old % width, width + old % width)})
    found += [old // 2]
    step = old // 4
    while step > 1:
        found.append(old - step)
        step //= 2
    found.append(old - 1)
    return [size for size in dict.fromkeys(found) if 0 < size < old]


def _candidates(graph: GraphModule, inputs: list[Any]) -> Iterator[EditBase]:
    every = [inputs[i] for i in tensors(inputs)] + list(read_from(graph, torch.Tensor).values())
    counts = Counter(size for tensor in every for size in tensor.shape if size > 1)
    counts.update(value for value in inputs if type(value) is int and value > 1)
    # What takes most elements away comes first: a large size in many dims.
    sizes = sorted(counts, key=lambda size: (-size, -counts[size]))
    if len(sizes) > 1:
        for new in (1, 2):
            yield Resize(tuple((size, new) for size in sizes if size > new))
    yield from _families(sizes)
    for size in sizes:
        for new in ladder(size):
            yield Resize(((size, new),))
    for size in sizes:
        yield from _single(inputs, size, alone=counts[size] == 1)


def _families(sizes: Sequence[int]) -> Iterator[EditBase]:
    """A size and all that are multiples of it, in proportion: a model's width, its heads, its hidden layer."""
    for base in sorted(sizes):
        family = [size for size in sizes if size % base == 0]
        if len(family) > 1:
            for new in ladder(base):
                yield Resize(tuple((size, size // base * new) for size in family))


def _single(inputs: Sequence[Any], size: int, *, alone: bool) -> Iterator[EditBase]:
    """Only some of the dims of one size: those at one position, then each alone; and the other end of all of them."""
    found = [(i, d) for i in tensors(inputs) for d, length in enumerate(inputs[i].shape) if length == size]
    positions = [tuple((i, d) for i, d in found if d == position) for position in dict.fromkeys(d for _, d in found)]
    groups = dict.fromkeys([*positions, *((one,) for one in found)] if not alone else [])
    for group in groups:
        for new in ladder(size) if len(group) > 1 else _steps(size):
            yield Resize(((size, new),), dims=group)
    for new in _steps(size)[:2]:
        yield Resize(((size, new),), last=True)


def _steps(size: int) -> list[int]:
    """A few smaller sizes."""
    return [new for new in dict.fromkeys((1, size // 2, size - 1)) if 0 < new < size]


DIMS = EditPass("dims", _candidates)
