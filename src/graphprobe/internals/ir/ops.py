"""Runs Inductor's `ops.*`, reductions, scans and sorts in plain PyTorch: a whole loop nest at once, over tensors.

Loop variables are int64 ranges, one dimension each, that broadcast against each other; a value is a tensor that
broadcasts to the loop nest. Values carry the dtypes in which Inductor computes: half precisions are float32.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.virtualized import OpsValue

from graphprobe.internals.ir.index import NotEvaluated, evaluate

Parts = tuple[Tensor, ...]

MOST_ELEMENTS = 2**27
"""Loop nests with more steps than this are not evaluated: every value of one is a tensor of that many elements."""

_RANDOM = frozenset({"rand", "randn", "rand_eager", "randint64", "output", "placeholder", "halide_clamp"})

_SAME_KIND = frozenset(
    "add sub mul truediv truncdiv floordiv mod fmod remainder minimum maximum atan2 hypot copysign nextafter "
    "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor eq ne lt le gt ge fma".split()
)
"""Operations that are for bools or for numbers; which of them generated code takes, it sees from one operand."""

_SAME = {
    "and_": "bitwise_and",
    "or_": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "div_rn": "truediv",
    "int_truediv": "truediv",
    "mul_rn": "mul",
    "dot": "mul",
    "gammainc": "igamma",
    "gammaincc": "igammac",
}


def reduce_plain(reduction: str, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """A reduction of one value to one value; sums and products add up in `dtype`."""
    if reduction in ("sum", "dot"):
        return rows.sum(-1, dtype=dtype)
    if reduction == "prod":
        return rows.prod(-1, dtype=dtype)
    if reduction in ("max", "min"):
        return (rows.amax(-1) if reduction == "max" else rows.amin(-1)).to(dtype)
    if reduction == "any":
        return rows.to(torch.bool).any(-1).to(dtype)
    if reduction == "xor_sum":
        while rows.shape[-1] > 1:
            if rows.shape[-1] % 2:
                rows = torch.cat([rows, torch.zeros_like(rows[..., :1])], -1)
            half = rows.shape[-1] // 2
            rows = rows[..., :half] ^ rows[..., half:]
        return rows[..., 0].to(dtype)
    raise NotEvaluated(f"the reduction {reduction}")


def arg_reduce(rows: Tensor, positions: Tensor | None, which: str) -> tuple[Tensor, Tensor]:
    """The extreme value and the least position of it; NaN is more extreme than any number.

    Args:
        positions: what each element's position counts as; None for its place in the row.
        which: `argmax` or `argmin`.
    """
    extreme = rows.amax(-1) if which == "argmax" else rows.amin(-1)
    there = rows == extreme.unsqueeze(-1)
    if rows.is_floating_point():
        there = there | (rows.isnan() & extreme.isnan().unsqueeze(-1))
    if positions is None:
        positions = torch.arange(rows.shape[-1], device=rows.device)
    return extreme, torch.where(there, positions, torch.iinfo(torch.int64).max).amin(-1)


def welford(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, sum of squared deviations and weight; from values, or from three such combined."""
    if len(rows) == 1:
        mean, deviations, weight = rows[0], torch.zeros_like(rows[0]), torch.ones_like(rows[0])
    else:
        mean, deviations, weight = rows
    total = weight.sum(-1)
    center = (mean * weight).sum(-1) / total
    center = torch.where(total == 0, torch.zeros_like(center), center)
    return center, (deviations + weight * (mean - center.unsqueeze(-1)) ** 2).sum(-1), total


def online_softmax(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Maximum, and sum of the exponentials relative to it; from values, or from such pairs combined."""
    values = rows[0]
    weights = rows[1] if len(rows) > 1 else torch.ones_like(values)
    most = values.amax(-1)
    shift = torch.where(most == -torch.inf, torch.zeros_like(most), most)
    return most, (weights * torch.exp(values - shift.unsqueeze(-1))).sum(-1)


def scan(combine: Callable[[Parts, Parts], Parts], rows: Sequence[Tensor]) -> Parts:
    """Inclusive scan with an associative `combine`, in about log2 steps."""
    done: Parts = tuple(rows)
    length, step = done[0].shape[-1], 1
    while step < length:
        later = combine(tuple(x[..., :-step] for x in done), tuple(x[..., step:] for x in done))
        done = tuple(torch.cat([x[..., :step], y], -1) for x, y in zip(done, later, strict=True))
        step *= 2
    return done


def sort(rows: Sequence[Tensor], descending: bool) -> Parts:
    """Rows ordered by the first of them, always stable."""
    keys, order = torch.sort(rows[0], dim=-1, descending=descending, stable=True)
    return (keys, *(torch.gather(x, -1, order) for x in rows[1:]))


class Memory(Protocol):
    """Where loads and stores go.

    Attributes:
        env: what the graph's symbols stand for.
        kinds: buffers into which a value of another kind of dtype was stored, and that value's dtype.
        mixed: buffers whose loops have an operation on a bool and a number: the operation, the dtypes.
    """

    env: dict[Any, Any]
    kinds: dict[str, torch.dtype]
    mixed: dict[str, tuple[str, torch.dtype, torch.dtype]]

    def flat(self, name: str) -> Tensor:
        """The storage of a buffer, one-dimensional; writing to it writes the buffer."""

    def dtype(self, name: str) -> torch.dtype:
        """The dtype that the IR gives a buffer."""

    def fault(self, text: str) -> None:
        """Take note of an access that the memory does not have, or of an assertion that does not hold."""


@dataclasses.dataclass
class Nest:
    """The loop nest that is being run: its sizes, of which the last `reduced` are reduced or scanned over."""

    name: str
    sizes: list[int]
    reduced: int
    device: torch.device
    env: dict[Any, Any]
    mask: Tensor | None = None


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Inductor computes half precisions in float32."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def kind(dtype: torch.dtype) -> str:
    """bool, int, float or complex."""
    if dtype == torch.bool:
        return "bool"
    return "complex" if dtype.is_complex else "float" if dtype.is_floating_point else "int"


def _to_int(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda ops, x, dtype: function(ops._value(x)).to(dtype)


class TensorOps(DefaultHandler):
    """The handler; `nest` says which loop nest runs, set it with `running`."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.nest = Nest("", [], 0, torch.device("cpu"), {})

    @contextmanager
    def running(self, nest: Nest) -> Iterator[None]:
        """Handle the operations of one loop nest."""
        if math.prod(nest.sizes) > MOST_ELEMENTS:
            raise NotEvaluated(f"a loop nest of {math.prod(nest.sizes)} steps is too large")
        outer, self.nest = self.nest, nest
        try:
            yield
        finally:
            self.nest = outer

    def loop_variables(self, symbols: Sequence[Any]) -> None:
        """Bind one symbol per dimension of the nest; a dimension of size one has the number 0 instead of a symbol."""
        count = len(self.nest.sizes)
        for at, (symbol, size) in enumerate(zip(symbols, self.nest.sizes, strict=True)):
            if isinstance(symbol, sympy.Symbol):
                shape = [size if at == other else 1 for other in range(count)]
                self.nest.env[symbol] = torch.arange(size, device=self.nest.device).reshape(shape)

    def _value(self, x: Any) -> Tensor:
        if isinstance(x, OpsValue):
            x = x.value
        if isinstance(x, Tensor):
            return x
        if isinstance(x, (bool, int, float)):
            # Without dimensions: like a Python number it does not widen the dtype of what it meets.
            dtype = torch.float64 if isinstance(x, float) else None
            return torch.tensor(x, dtype=dtype, device=self.nest.device)
        raise NotEvaluated(f"a value of type {type(x).__name__}")

    def _index(self, index: Any) -> Tensor:
        found = evaluate(index, self.nest.env)
        return found if isinstance(found, Tensor) else torch.tensor([found], device=self.nest.device)

    def _typed(self, x: Any, dtype: torch.dtype) -> Tensor:
        return self._value(x).to(compute_dtype(dtype))

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = _SAME.get(name, name)
        function: Callable[..., Any] | None = _OWN.get(name) or getattr(torch, name, None)
        function = function or getattr(torch.special, name, None)
        if function is None or name in _RANDOM or kwargs:
            raise NotEvaluated(f"ops.{name}")
        values = [self._value(arg) for arg in args]
        self._alike(name, values)
        return function(*values)

    def _alike(self, name: str, values: Sequence[Tensor]) -> None:
        """Note operands of which one is a bool and another is not: operations do not promote."""
        if name in _SAME_KIND:
            dtypes = [value.dtype for value in values if value.ndim]
            for other in dtypes:
                if (other == torch.bool) != (dtypes[0] == torch.bool):
                    self.memory.mixed.setdefault(self.nest.name, (f"ops.{name}", dtypes[0], other))

    # Memory.

    def load(self, name: str, index: sympy.Expr) -> Tensor:
        """The elements at `index`; what lies outside is noted unless it is masked out, and reads some element."""
        flat, at = self.memory.flat(name), self._index(index)
        inside = (at >= 0) & (at < flat.numel())
        if not bool(inside.all()):
            self._outside(f"reads {name}", at, inside, flat.numel())
            at = at.clamp(0, max(flat.numel() - 1, 0))
            if not flat.numel():
                return torch.zeros(at.shape, dtype=compute_dtype(flat.dtype), device=at.device)
        return self._typed(flat[at.to(flat.device)], flat.dtype)

    def load_seed(self, name: str, offset: Any) -> Tensor:
        """One of the seeds that a call has drawn."""
        return self.load(name, offset)

    def _outside(self, what: str, at: Tensor, inside: Tensor, count: int) -> None:
        wrong = ~inside if self.nest.mask is None else ~inside & self.nest.mask
        if bool(wrong.any()):
            first = int(torch.broadcast_to(at, wrong.shape)[wrong][0])
            self.memory.fault(f"{self.nest.name} {what} at {first}, which has {count} elements")

    def store(self, name: str, index: sympy.Expr, value: Any, mode: str | None = None) -> None:
        """Write every element of the loop nest; `atomic_add` adds up what falls on the same place."""
        shape = self.nest.sizes
        if mode not in (None, "atomic_add", "tma"):
            raise NotEvaluated(f"a store with mode {mode!r}")
        self._write(name, index, value, shape, add=mode == "atomic_add")

    def store_reduction(self, name: str, index: sympy.Expr, value: Any) -> None:
        """Write what a reduction left."""
        kept = len(self.nest.sizes) - self.nest.reduced
        self._write(name, index, value, [*self.nest.sizes[:kept], *[1] * self.nest.reduced], add=False)

    def _write(self, name: str, index: Any, value: Any, shape: list[int], *, add: bool) -> None:
        flat, at, found = self.memory.flat(name), self._index(index), self._value(value)
        if kind(found.dtype) != kind(self.memory.dtype(name)):
            self.memory.kinds.setdefault(name, found.dtype)
        at = at.expand(shape or [1]).reshape(-1).to(flat.device)
        found = found.expand(shape or [1]).reshape(-1).to(device=flat.device, dtype=flat.dtype)
        inside = (at >= 0) & (at < flat.numel())
        if not bool(inside.all()):
            self._outside(f"writes {name}", at, inside, flat.numel())
            at, found = at[inside], found[inside]
        flat.index_put_((at,), found, accumulate=add)

    def masked(self, mask: Any, body: Callable[[], Any], other: Any) -> Tensor:
        """`body` where `mask` holds, else `other`; accesses of `body` outside the mask do not count."""
        outer, here = self.nest.mask, self._value(mask).to(torch.bool)
        self.nest.mask = here if outer is None else outer & here
        try:
            value = self._value(body())
        finally:
            self.nest.mask = outer
        return torch.where(here, value, self._value(other).to(value.dtype))

    def indirect_indexing(self, x: Any, size: Any, check: bool = True, wrap_neg: bool = True) -> sympy.Symbol:
        """A symbol for values used as an index; negative ones count from the end."""
        at = self._value(x).to(torch.int64)
        length = evaluate(size, self.nest.env)
        if wrap_neg:
            at = torch.where(at < 0, at + length, at)
        if check:
            inside = (at >= 0) & (at < length)
            if not bool(inside.all()):
                self._outside("checks an index", at, inside, int(torch.as_tensor(length).max()))
        symbol = sympy.Symbol(f"indirect{len(self.nest.env)}", integer=True, nonnegative=True)
        self.nest.env[symbol] = at
        return symbol

    def check_bounds(self, expr: sympy.Expr, size: sympy.Expr, lower: bool, upper: bool) -> None:
        """Note an index that the IR itself says must be inside."""
        at, length = self._index(expr), evaluate(size, self.nest.env)
        inside = torch.ones_like(at, dtype=torch.bool)
        inside = inside & (at >= 0) if lower else inside
        inside = inside & (at < length) if upper else inside
        if not bool(inside.all()):
            self._outside("checks an index", at, inside, int(torch.as_tensor(length).max()))

    def device_assert_async(self, cond: Any, msg: str) -> Tensor:
        """Note an assertion that does not hold."""
        found = self._value(cond)
        if not bool(found.all()):
            self.memory.fault(f"{self.nest.name} asserts: {msg}")
        return found

    def bucketize(
        self,
        values: Any,
        boundaries: tuple[str, Any, Any, Any],
        boundary_indices: Any,
        indexing_dtype: torch.dtype,
        right: bool,
        sorter: tuple[str, Any] | None = None,
        sorter_indices: Any = None,
    ) -> Tensor:
        """How many boundaries lie before each value."""
        name, size, _, stride = boundaries
        count, step = evaluate(size, self.nest.env), evaluate(stride, self.nest.env)
        at = torch.arange(count, device=self.nest.device)
        if sorter is not None:
            other, other_step = sorter[0], evaluate(sorter[1], self.nest.env)
            at = self.memory.flat(other)[self._value(sorter_indices).unsqueeze(-1) + at * other_step]
        bounds = self.load(name, self._value(boundary_indices).unsqueeze(-1) + at * step)
        wanted = self._value(values).unsqueeze(-1)
        before = ~(bounds > wanted) if right else ~(bounds >= wanted)
        return before.sum(-1).to(indexing_dtype)

    # Values.

    def constant(self, value: Any, dtype: torch.dtype) -> Tensor:
        """A number with a dtype of its own: unlike a Python number it takes part in promotion."""
        number = evaluate(value, self.nest.env)
        return torch.full((1,), number, dtype=compute_dtype(dtype), device=self.nest.device)

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Tensor:
        """An index as a value."""
        return self._typed(self._index(expr), dtype)

    value_expr = index_expr

    def to_dtype(
        self, x: Any, dtype: torch.dtype, src_dtype: torch.dtype | None = None, use_compute_types: bool = True
    ) -> Tensor:
        """A conversion; to a half precision only where the IR asks for the rounding."""
        compute = compute_dtype(dtype)
        if not use_compute_types and compute != torch.float64:
            return self._value(x).to(dtype)
        return self._value(x).to(compute)

    def to_dtype_bitcast(self, x: Any, dtype: torch.dtype, src_dtype: torch.dtype) -> Tensor:
        """The same bits read as another dtype."""
        return self._typed(self._value(x).to(src_dtype).contiguous().view(dtype), dtype)

    trunc_to_int, ceil_to_int = _to_int(torch.trunc), _to_int(torch.ceil)
    floor_to_int, round_to_int = _to_int(torch.floor), _to_int(torch.round)

    def where(self, condition: Any, input: Any, other: Any) -> Tensor:
        return torch.where(self._value(condition).to(torch.bool), self._value(input), self._value(other))

    # Over a whole dimension.

    def _rows(self, value: Any) -> Tensor:
        """A value of the nest with the dimensions that are reduced made one, the last."""
        kept = len(self.nest.sizes) - self.nest.reduced
        return self._value(value).expand(self.nest.sizes or [1]).reshape([*self.nest.sizes[:kept], -1])

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: str, value: Any) -> Any:
        """What is left of a value after a reduction, with dimensions of size one in the place of those reduced."""
        rows = [self._rows(x) for x in (value if isinstance(value, (tuple, list)) else (value,))]
        compute = compute_dtype(dtype)
        if reduction_type.startswith(("argmax", "argmin")):
            largest, position = arg_reduce(rows[0], rows[1] if len(rows) > 1 else None, reduction_type[:6])
            position = position.to(torch.int64)
            if reduction_type.endswith("_with_value"):
                return self._left(largest), self._left(position)
            return self._left(largest.to(compute) if reduction_type.endswith("_value") else position)
        if reduction_type.startswith("welford"):
            return tuple(self._left(x.to(compute)) for x in welford(rows))
        if reduction_type == "online_softmax_reduce":
            return tuple(self._left(x.to(compute)) for x in online_softmax(rows))
        return self._left(reduce_plain(reduction_type, rows[0], compute))

    def _left(self, rows: Tensor) -> Tensor:
        return rows.reshape([*rows.shape, *[1] * self.nest.reduced])

    def scan(self, dtypes: tuple[torch.dtype, ...], combine_fn: Callable[..., Any], values: Any) -> tuple[Tensor, ...]:
        """Every prefix combined."""
        rows = [self._rows(x).to(compute_dtype(d)) for x, d in zip(values, dtypes, strict=True)]
        combined = scan(lambda a, b: tuple(self._value(x) for x in combine_fn(a, b)), rows)
        return tuple(x.to(compute_dtype(d)) for x, d in zip(combined, dtypes, strict=True))

    def sort(self, dtypes: tuple[torch.dtype, ...], values: Any, stable: bool, descending: bool) -> tuple[Tensor, ...]:
        """Rows by the first value, the others along with it."""
        return sort([self._rows(x) for x in values], descending)


def _divided(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """`function` with integer zeros of the divisor made ones, as PyTorch raises where a masked kernel goes on."""

    def call(a: Tensor, b: Tensor) -> Tensor:
        whole = not (a.is_floating_point() or b.is_floating_point())
        return function(a, torch.where(b == 0, torch.ones_like(b), b) if whole else b)

    return call


def _fma(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    exact = x.double() * y.double() + z.double()
    return exact.to(torch.promote_types(torch.result_type(x, y), z.dtype))


_OWN: dict[str, Callable[..., Any]] = {
    "identity": lambda x: x,
    "square": lambda x: x * x,
    "truediv": torch.true_divide,
    "truncdiv": _divided(lambda a, b: torch.div(a, b, rounding_mode="trunc")),
    "floordiv": _divided(lambda a, b: torch.div(a, b, rounding_mode="floor")),
    "mod": _divided(torch.fmod),
    "fmod": _divided(torch.fmod),
    "remainder": _divided(torch.remainder),
    "fma": _fma,
    "polygamma": lambda n, x: torch.polygamma(int(n.reshape(-1)[0]), x),
    "frexp": lambda x: tuple(torch.frexp(x)),
}
