"""Runs of a program in which everything that torch leaves undefined comes out in another way.

torch's documentation leaves open what a floating-point number becomes in an integer dtype that cannot hold it
(`Tensor.to`), what memory holds that nothing has written (`empty`, `resize_`), which value a place keeps that is
written several times at once (`index_put_`, `scatter_`, `index_copy_`), and which of equal elements an unstable order
takes (`sort`, `topk`, `kthvalue`, `median`, `mode`). A compiler may choose otherwise than the uncompiled program does,
so what hangs on such a choice is not compared.

Nor is what one rounding decides: whether `log1p(-tanh(x))` is infinite, where `tanh(x)` is one unit from 1. `AtTheEdge`
notes how far the arguments of such functions are from where these end, and takes those to that edge, and beyond it,
that their own noise may take there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from graphprobe.engine.reference import dtype_of, is_plain
from graphprobe.engine.rounding import of_few
from graphprobe.internals.operators.operators import OpMode, Overload, argument_of, operator_of

Way = Literal["as it is", "flipped", "zero"]
"""`as it is`: nothing is changed. `flipped`: the bits of what has no defined value are flipped, unwritten memory holds
`GARBAGE`, what is written several times keeps the first instead of the last, and the last of equal elements is taken.
`zero`: the same with 0 in place of flipped bits and of `GARBAGE`, which is what a table can be indexed by."""

WAYS: tuple[Way, ...] = ("as it is", "flipped", "zero")

GARBAGE = 77
"""Stands in memory that nothing has written."""

UNWRITTEN = "memory that was never written"
CONVERTED = "numbers converted to {dtype}, which cannot hold them"
WRITTEN = "places written several times by one {op}"
CHOSEN = "equal elements among which {op} may choose"

ALLOCATIONS = frozenset("empty empty_like empty_strided new_empty new_empty_strided empty_permuted".split())
CONVERSIONS = frozenset("_to_copy copy_ copy convert_element_type".split())
ORDERS = frozenset("sort topk kthvalue median nanmedian mode".split())

EDGES: Mapping[str, tuple[int, float, bool]] = {
    **dict.fromkeys("log log2 log10 reciprocal rsqrt sqrt pow digamma lgamma".split(), (0, 0.0, False)),
    **dict.fromkeys("div true_divide floor_divide remainder fmod xlogy logit atan2".split(), (1, 0.0, False)),
    **dict.fromkeys("atanh asin acos erfinv".split(), (0, 1.0, True)),
    "log1p": (0, -1.0, False),
    "acosh": (0, 1.0, False),
    "addcdiv": (2, 0.0, False),
    "tan": (0, math.pi / 2, True),
}
"""Functions that end, or have a pole, at a number: the position of the argument, the number, whether its negative is
another such place."""

NEAR, CANCELLED = 4.0, 2.0**16
"""Noises from an edge within which an argument may be at it; and within which its own noise is felt by the result."""

MOST_NOTED = 1 << 22
"""Elements of arguments that are noted; of further ones nothing is known."""


class DoneOtherwise(OpMode):  # type: ignore[no-untyped-call]
    """A context manager: inside, what torch leaves undefined comes out in another way, in a backward as well.

    What higher-order operators run is left alone, and so are tensors that are no plain strided ones with data.

    Attributes:
        met: what was undefined, in words, each once.
    """

    def __init__(self, way: Way = "flipped") -> None:
        super().__init__(self._run)
        self.met: list[str] = []
        self._way = way

    def _run(self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operator = operator_of(op)
        name = operator.name if operator is not None and operator.namespace in ("aten", "prims") else ""
        if name in ALLOCATIONS or name == "resize_":
            written = args[0].numel() if name == "resize_" and is_plain(args[0]) else 0
            return self._allocated(op(*args, **kwargs), written)
        if name in CONVERSIONS:
            return self._converted(op, args, kwargs, args[1] if name in ("copy_", "copy") else args[0])
        other = _reversed_writes(name.removesuffix("_"), op, args, kwargs)
        if other is not None:
            return self._written(name, op, args, kwargs, other)
        if name in ORDERS and argument_of(op, args, kwargs, "stable") is not True:
            return self._ordered(name, op, args, kwargs)
        return op(*args, **kwargs)

    def _meet(self, what: str) -> None:
        if what not in self.met:
            self.met.append(what)

    def _allocated(self, result: Any, written: int) -> Any:
        """`written`: elements in front that something has written."""
        if is_plain(result) and result.numel() > written:
            self._meet(UNWRITTEN)
            if self._way != "as it is":
                rest = result.view(-1)[written:] if written else result
                rest.fill_(GARBAGE if self._way == "flipped" else 0)
        return result

    def _converted(self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any], source: Any) -> Any:
        result = op(*args, **kwargs)
        if not (is_plain(source) and is_plain(result)):
            return result
        outside = unrepresentable(source, result.dtype)
        if outside is None or not bool(outside.any()):
            return result
        self._meet(CONVERTED.format(dtype=result.dtype))
        if self._way != "as it is":
            other = flipped(result) if self._way == "flipped" else torch.zeros_like(result)
            result.copy_(chosen(outside.expand(result.shape), other, result))
        return result

    def _written(
        self, name: str, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any], other: tuple[Any, ...]
    ) -> Any:
        target, start = args[0], args[0].clone()
        result = op(*args, **kwargs)
        wanted = result.clone()
        copied = op(start, *other, **kwargs)
        same = (copied == wanted) | ((copied != copied) & (wanted != wanted))
        if not bool(same.all()):
            self._meet(WRITTEN.format(op=f"aten.{name}"))
            if self._way != "as it is":
                (target if name.endswith("_") else result).copy_(copied)
        return result

    def _ordered(self, name: str, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = op(*args, **kwargs)
        given, dim = args[0], argument_of(op, args, kwargs, "dim")
        pair = isinstance(result, tuple) and len(result) == 2
        if not pair or not isinstance(dim, int) or not is_plain(given) or not given.dim():
            return result
        flipped = op(given.flip(dim), *args[1:], **kwargs)
        indices, others = result[1], given.shape[dim] - 1 - flipped[1]
        if not torch.equal(indices, others):
            self._meet(CHOSEN.format(op=f"aten.{name}"))
            if self._way != "as it is":
                indices.copy_(others)
        return result


class AtTheEdge(OpMode):  # type: ignore[no-untyped-call]
    """A context manager: inside, arguments of `EDGES` that are near their edge are moved to it, in a backward as well.

    Args:
        noise: of the arguments, in the order in which they are met, as `noise_of_gaps` has it; empty: none is moved.
        way: 0.0: to the edge. 1.0, -1.0: to this side of it, or the other, as far as they are from it, and a rounding.

    Attributes:
        gaps: how far each argument is from its edge, in float64.
    """

    def __init__(self, noise: Sequence[torch.Tensor] = (), way: float = 0.0) -> None:
        super().__init__(self._run)
        self.gaps: list[torch.Tensor] = []
        self._noise, self._way, self._left = noise, way, MOST_NOTED

    def _run(self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operator = operator_of(op)
        name = operator.name.removesuffix("_") if operator is not None and operator.namespace == "aten" else ""
        at, edge, mirrored = EDGES.get(name, (len(args), 0.0, False))
        value = args[at] if at < len(args) else None
        if (
            isinstance(value, torch.Tensor)
            and is_plain(value)
            and value.is_floating_point()
            and 0 < value.numel() <= self._left
        ):
            self._left -= value.numel()
            moved = self._moved(value.detach(), edge, mirrored)
            if moved is not None and at == 0 and operator is not None and operator.name.endswith("_"):
                value.detach().copy_(moved)
            elif moved is not None:
                args = (*args[:at], moved, *args[at + 1 :])
        return op(*args, **kwargs)

    def _moved(self, value: torch.Tensor, edge: float, mirrored: bool) -> torch.Tensor | None:
        """Note the gap; the argument moved, or None where it stays."""
        wide = value.to(torch.float64)
        ends = torch.copysign(torch.full_like(wide, edge), wide) if mirrored else torch.full_like(wide, edge)
        gap, number = wide - ends, len(self.gaps)
        self.gaps.append(gap)
        noise = self._noise[number] if number < len(self._noise) else None
        if noise is None or noise.shape != gap.shape:
            return None
        noise = noise.maximum(2 * dtype_of(value).unit_roundoff * ends.abs())
        near = (gap.abs() <= NEAR * noise) & (noise > 0)
        step = torch.copysign(gap.abs().maximum(noise), gap) * self._way
        return torch.where(near, ends + step, wide).to(value.dtype) if bool(near.any()) else None


def noise_of_gaps(runs: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """How far each gap of the first run is from those of the others, as rms; empty where none is felt.

    Elements that by chance moved little learn from the others; one that is at the edge in all runs is there exactly.
    """
    first, *others = runs
    found = []
    for i, gap in enumerate(first):
        alike = [run[i] for run in others if i < len(run) and run[i].shape == gap.shape]
        squares = [(one - gap).nan_to_num(0.0, 0.0, 0.0).square() for one in alike] or [torch.zeros_like(gap)]
        noise = torch.stack(squares).mean(dim=0).sqrt()
        usual = torch.from_numpy(np.ascontiguousarray(of_few(noise.cpu().numpy(), len(squares)))).to(gap.device)
        found.append(torch.where((gap != 0) | (noise > 0), usual.reshape(gap.shape), 0.0))
    felt = (bool(((gap.abs() <= CANCELLED * n) & (n > 0)).any()) for gap, n in zip(first, found, strict=True))
    return found if any(felt) else []


def flipped(values: torch.Tensor) -> torch.Tensor:
    """Integers with the opposite bits, unsigned ones of any width too."""
    return (~_signed(values)).view(values.dtype)


def chosen(where: torch.Tensor, these: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """`torch.where` of two tensors of one dtype, which to torch 2.12 takes no unsigned integers but uint8."""
    return torch.where(where, _signed(these), _signed(others)).view(others.dtype)


def _signed(values: torch.Tensor) -> torch.Tensor:
    """The bits of unsigned integers as integers with a sign; anything else as it is."""
    name = str(values.dtype).removeprefix("torch.")
    return values.view(getattr(torch, name[1:])) if name.startswith("uint") else values


def unrepresentable(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """Which floating-point numbers an integer dtype cannot hold, truncated; None where the two are of other kinds."""
    if dtype is torch.bool or dtype.is_floating_point or dtype.is_complex or not source.is_floating_point():
        return None
    limits, whole = torch.iinfo(dtype), source.detach().to(torch.float64).trunc()
    return ~((whole >= float(limits.min)) & (whole < float(limits.max + 1)))


def _reversed_writes(
    name: str, op: Overload, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...] | None:
    """The arguments behind the first, so that what they write is written in the reverse order; None: none are."""
    make = _WRITES.get(name)
    tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
    if make is None or not all(map(is_plain, tensors)) or not tensors or not tensors[0].numel():
        return None
    return make(op, args, kwargs)


def _of_index_put(op: Overload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    indices, values = args[1], args[2]
    known = [i for i in indices if isinstance(i, torch.Tensor)]
    if argument_of(op, args, kwargs, "accumulate") is True or not known or len(known) != len(indices):
        return None
    if not all(is_plain(i) and i.dtype in (torch.int64, torch.int32) for i in known):
        return None
    shape = torch.broadcast_shapes(*(i.shape for i in known))  # type: ignore[no-untyped-call]
    if not shape:
        return None
    every = values.expand(*shape, *args[0].shape[len(known) :]).flatten(0, len(shape) - 1)
    return [i.expand(shape).flatten().flip(0) for i in known], every.flip(0), *args[3:]


def _of_scatter(op: Overload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    if "src" not in str(op._overloadname) or len(args) != 4 or args[2].dim() == 0:
        return None
    dim, index, source = args[1], args[2], args[3]
    part = source[tuple(slice(size) for size in index.shape)]
    return dim, index.flip(dim), part.flip(dim)


def _of_index_copy(op: Overload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    if len(args) != 4 or args[2].dim() == 0 or args[3].dim() == 0:
        return None
    return args[1], args[2].flip(0), args[3].flip(args[1])


_WRITES: Mapping[str, Callable[..., tuple[Any, ...] | None]] = {
    "index_put": _of_index_put,
    "_unsafe_index_put": _of_index_put,
    "scatter": _of_scatter,
    "index_copy": _of_index_copy,
}
