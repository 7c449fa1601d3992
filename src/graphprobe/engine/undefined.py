"""Runs of a program in which everything that torch leaves undefined comes out in another way.

torch's documentation leaves open what a floating-point number becomes in an integer dtype that cannot hold it
(`Tensor.to`), what memory holds that nothing has written (`empty`, `resize_`), which value a place keeps that is
written several times at once (`index_put_`, `scatter_`, `index_copy_`), and which of equal elements an unstable order
takes (`sort`, `topk`, `kthvalue`, `median`, `mode`). A compiler may choose otherwise than the uncompiled program does,
so what hangs on such a choice is not compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from graphprobe.engine.rounding import is_plain
from graphprobe.internals.operators.operators import OpMode, Overload, operator_of

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


class DoneOtherwise:
    """A context manager: inside, what torch leaves undefined comes out in another way, in a backward as well.

    What higher-order operators run is left alone, and so are tensors that are no plain strided ones with data.

    Attributes:
        met: what was undefined, in words, each once.
    """

    def __init__(self, way: Way = "flipped") -> None:
        self.met: list[str] = []
        self._way = way
        self._mode = OpMode(self._run)
        self._inside = contextlib.ExitStack()

    def __enter__(self) -> DoneOtherwise:
        self._inside.enter_context(self._mode)
        return self

    def __exit__(self, *error: object) -> None:
        self._inside.close()

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
        if name in ORDERS and _argument(op, args, kwargs, "stable") is not True:
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
        given, dim = args[0], _argument(op, args, kwargs, "dim")
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
    if _argument(op, args, kwargs, "accumulate") is True or not known or len(known) != len(indices):
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


def _argument(op: Overload, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Any:
    """An argument by its name in the schema, or its default; None where there is none."""
    for i, argument in enumerate(op._schema.arguments):
        if argument.name == name:
            return args[i] if i < len(args) else kwargs.get(name, argument.default_value)
    return None
