"""The float64 reference of an op on captured inputs, and the noise of each of its elements.

In some float64 runs every sum is as inaccurate as one that adds its terms one after the other in float32.

Compiled code may add in any order. The worst order in use is the plain one: a running sum s_k, rounded K-1 times, with
the error Σ δ_k·s_k, |δ_k| <= u (taken for u, as everywhere). For terms of mean m and mean square v, s_k is about
k·m + sqrt(k·(v - m²)), so that

    rms error = u·sqrt((K - 1)·(r²/3 + q/2)),   r = Σ x the result, q = Σ x²

which for products of matrices is op(a², b²) in the place of q. (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd edition, chapter 4, has the error of recursive summation; the model of the partial sums is ours.)
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from graphprobe.engine.interpret import copied_together
from graphprobe.engine.value_file import ValueFile
from graphprobe.errors import UsageError
from graphprobe.internals.operators.operators import OpMode, Overload, decomposition_of, operator_of
from graphprobe.internals.tensors import PLAIN_TYPES, tree_leaves, tree_map
from graphprobe.numerics.dtypes import WorkingDtype, working_dtype
from graphprobe.numerics.noise import Array, Float64Array, Noise, RunningSigma, sigma_from_runs, signs

ROUNDOFF = 2.0**-24
"""u of float32, in which sums of narrower dtypes are made, too."""

PLAIN_SUMS = frozenset("sum nansum".split())
MEANS = frozenset("mean".split())
PRODUCTS = frozenset("mm bmm addmm baddbmm addbmm mv addmv dot vdot convolution convolution_backward".split())
SCATTERS = frozenset(
    "cumsum index_add index_put _unsafe_index_put _index_put_impl scatter_add scatter_reduce "
    "embedding_dense_backward".split()
)
"""Here K differs from element to element: it is what the op makes of ones."""

POSITIVE = frozenset("norm linalg_vector_norm prod _scaled_dot_product_flash_attention_for_cpu".split())
"""Made of sums, or products, of positive numbers: their relative error is that of such a sum, u·sqrt(K)."""

SPREADS = frozenset("var std var_mean std_mean".split())
"""Made of squares of differences from a mean: an error m of this mean makes the variance larger by m²."""

COMPOSED = frozenset(
    "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward native_batch_norm "
    "native_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_functional batch_norm_backward "
    "_batch_norm_with_update cudnn_batch_norm cudnn_batch_norm_backward _fused_rms_norm _fused_rms_norm_backward "
    "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data logsumexp mse_loss smooth_l1_loss "
    "huber_loss binary_cross_entropy nll_loss_forward nll_loss2d_forward".split()
)
"""Ops with sums inside: they run as torch's decomposition of them, and the sums are found there."""

AT_ONCE = 1 << 17
"""Elements that are worked on together: what that takes is several times as large as they are, and stays in cache."""

_Error = Callable[[slice | None], torch.Tensor]
"""The errors of some rows of a result, as that is now; of all of it for None."""

_Finish = Callable[[list[Any]], list[_Error | None]]
_Errors = Callable[[Overload, tuple[Any, ...], dict[str, Any]], _Finish]
"""Looks at the arguments before the op runs, which may overwrite them, and then turns the results into their errors, in
units of u; None: no error."""

RUNS = 4
"""Perturbed runs behind each sigma."""

BALANCED = ((1, 1, 1), (-1, 1, -1), (1, -1, -1), (-1, -1, 1))
"""Signs of up to three inputs in four runs, from a Hadamard matrix: columns, and products of two, add up to nothing."""

WIDE = {torch.complex32: torch.complex128, torch.complex64: torch.complex128, torch.complex128: torch.complex128}
"""Complex dtypes and what they become; every other floating-point dtype becomes float64."""

CASTS = ("half", "bfloat16", "float", "double")

SUMS = frozenset(
    "sum mean nansum cumsum mm bmm addmm addmv addbmm baddbmm mv dot vdot matmul linear bilinear convolution conv1d "
    "conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d index_add scatter_add index_put "
    "segment_reduce avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "_adaptive_avg_pool2d _adaptive_avg_pool3d einsum tensordot embedding_dense_backward convolution_backward "
    "trace upsample_bilinear2d_backward".split()
)
"""Ops whose results are sums of products of their inputs, so that op(|x|) is the sum of the terms' magnitudes."""

DRAWN = frozenset(("rand", "randn"))
DRAWN_LIKE = frozenset(("rand_like", "randn_like"))
DRAWN_FROM = frozenset(("bernoulli", "normal"))
DRAWN_INTO = frozenset(("uniform_", "normal_", "exponential_", "log_normal_", "cauchy_", "bernoulli_"))
"""Functions that draw floating-point numbers: which ones depends on the dtype that they are drawn in."""


class RoughSums(OpMode):  # type: ignore[no-untyped-call]
    """Inside, every sum in float64 is off by what is usual in a dtype with unit roundoff `roundoff`.

    Each element gets the error ±e, e the rms error of recursive summation over its K terms, the sign drawn from
    `generator`; a complex one gets ±e/√2 in each of its parts. Sums of one term, other ops, and tensors in other dtypes
    are as ever; so is what higher-order operators run. `roundoff` above float32's counts as float32's: narrower dtypes
    are summed in float32. With `sign` -1 each error is the opposite of that with 1.
    """

    def __init__(self, generator: torch.Generator, roundoff: float = ROUNDOFF, sign: int = 1) -> None:
        super().__init__(self._run)
        self._generator, self._u, self._sign = generator, min(roundoff, ROUNDOFF), sign

    def _run(self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operator = operator_of(op)
        if operator is None or operator.namespace != "aten":
            return op(*args, **kwargs)
        name = operator.name.removesuffix("_")
        if name in COMPOSED:
            made_of = decomposition_of(op)
            if made_of is not None:
                with OpMode(self._run):
                    result = made_of(*args, **kwargs)
                return op(*args, **kwargs) if result is NotImplemented else result
        errors = self._errors(name)
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        if errors is None or not all(map(is_plain, tensors)) or not any(map(_is_wide, tensors)):
            return op(*args, **kwargs)
        finish = errors(op, args, kwargs)
        result = op(*args, **kwargs)
        outputs = _outputs(result)
        for output, error in zip(outputs, finish(outputs), strict=True):
            if error is not None and _is_wide(output):
                self._add(output, error)
        return result

    def _add(self, output: torch.Tensor, error: _Error) -> None:
        drawn = [_Signs(output, self._generator) for _ in range(2 if output.is_complex() else 1)]
        for part in _parts(output):
            rows, found = _at(output, part), error(part).mul_(self._u).nan_to_num_(posinf=0.0, neginf=0.0)
            ways = [one.of(rows) for one in drawn]
            way = torch.complex(*ways) / math.sqrt(2) if rows.is_complex() else ways[0]
            rows.addcmul_(found.to(way.dtype), way, value=self._sign)

    def _errors(self, name: str) -> _Errors | None:
        if name in PRODUCTS or name in PLAIN_SUMS or name in MEANS:
            return lambda op, args, kwargs: _of_sums(name, op, args, kwargs)
        if name in SCATTERS:
            return _of_scatters
        if name in SPREADS:
            return functools.partial(_of_spreads, name, self._u)
        return _of_positive if name in POSITIVE else None


class _Signs:
    """1 or -1 for each element of a tensor, float64, drawn on the CPU; taken row by row, in order."""

    def __init__(self, like: torch.Tensor, generator: torch.Generator) -> None:
        size, bounds = -(-like.numel() // 64), (-(2**63), 2**63 - 1)
        self._drawn = torch.randint(*bounds, (size,), generator=generator, dtype=torch.int64).numpy().view(np.uint8)
        self._taken = 0

    def of(self, rows: torch.Tensor) -> torch.Tensor:
        """Those of the next rows."""
        begin, self._taken = self._taken, self._taken + rows.numel()
        return torch.from_numpy(signs(self._drawn, begin, self._taken)).reshape(rows.shape).to(rows.device)


def nudge(wide: torch.Tensor, generator: torch.Generator, step: float) -> None:
    """Multiply each element of a tensor by 1 + step or 1 - step, in place; its dtype has to have these numbers."""
    drawn = _Signs(wide, generator)
    for rows in (_at(wide, part) for part in _parts(wide)):
        rows.mul_(drawn.of(rows).mul_(step).add_(1))


def _parts(output: torch.Tensor) -> Iterator[slice | None]:
    """Rows of a tensor, so many that they are not much more than `AT_ONCE` elements."""
    if output.numel() <= AT_ONCE or output.dim() == 0:
        yield None
        return
    rows = max(1, AT_ONCE * output.shape[0] // output.numel())
    yield from (slice(low, low + rows) for low in range(0, output.shape[0], rows))


def _at(value: Any, part: slice | None) -> Any:
    """These rows of a tensor; a number as it is."""
    return value[part] if part is not None and isinstance(value, torch.Tensor) else value


def _of_sums(name: str, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Finish:
    squares = _outputs(op(*tree_map(_squared, args), **tree_map(_squared, kwargs)))

    def finish(outputs: list[Any]) -> list[Any]:
        found: list[_Error | None] = []
        for i, (r, q) in enumerate(zip(outputs, squares, strict=True)):
            if not _is_wide(r) or not isinstance(q, torch.Tensor):
                found.append(None)
                continue
            terms = _terms(name, args, i, r)
            found.append(_recursive(terms, r, q.abs() / terms if name in MEANS else q.abs()))
        return found

    return finish


def _of_scatters(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Finish:
    (squares,) = _outputs(op(*tree_map(_squared, args), **tree_map(_squared, kwargs)))
    (terms,) = _outputs(op(*tree_map(_one, args), **tree_map(_one, kwargs)))
    counts = terms.detach().abs()
    return lambda outputs: [_recursive(counts, outputs[0], squares) if _is_wide(outputs[0]) else None]


def _of_spreads(name: str, u: float, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Finish:
    size, pairs = args[0].numel(), name.endswith("_mean")
    with_mean = op if pairs else getattr(getattr(torch.ops.aten, f"{name}_mean"), op._overloadname)
    spread, mean = with_mean(*args, **kwargs)
    terms = max(1, size // max(1, mean.numel()))
    both = (mean.abs() ** 2 + (spread if name.startswith("var") else spread**2)) / terms
    of_mean, of_squares = _recursive(terms, mean, both), _relative(terms, spread)

    def of_spread(part: slice | None) -> torch.Tensor:
        more, own = of_mean(part).abs() * u, _at(spread, part)
        moved = more**2 if name.startswith("var") else (own**2 + more**2).sqrt() - own
        return (of_squares(part) + moved / u).minimum(own * (0.999 / u))  # none is negative

    return lambda _: [of_spread, of_mean] if pairs else [of_spread]


def _of_positive(_: Overload, args: tuple[Any, ...], __: dict[str, Any]) -> _Finish:
    size = max((v.numel() for v in tree_leaves(args) if isinstance(v, torch.Tensor)), default=1)

    def finish(outputs: list[Any]) -> list[Any]:
        terms = max(1, size // max(1, outputs[0].numel()))
        if outputs[0].dim() == 4 and len(outputs) > 1:  # attention: the terms are the keys
            terms = args[1].shape[-2]
        return [_relative(terms, outputs[0]), *(None for _ in outputs[1:])]

    return finish


def _relative(terms: int, result: torch.Tensor) -> _Error:
    return lambda part: _at(result, part).abs() * math.sqrt(terms - 1)


def _recursive(terms: int | torch.Tensor, result: torch.Tensor, squares: torch.Tensor) -> _Error:
    return lambda part: _error_of(_at(terms, part), _at(result, part), _at(squares, part))


def _error_of(terms: int | torch.Tensor, result: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    count = terms - 1
    count = count.clamp_min(0) if isinstance(count, torch.Tensor) else max(count, 0)
    error, size = squares.abs().mul_(count / 2), result.abs() if result.is_complex() else result
    error.add_((size * size).mul_(count / 3)).sqrt_()
    if not result.is_complex() and bool((whole := result == result.round()).any()):  # sums of integers are exact
        error.masked_fill_(whole & (squares == squares.round()) & (squares.abs() <= 1 / ROUNDOFF), 0.0)
    return error


def _terms_of_product(name: str, shapes: Sequence[Sequence[int]]) -> int | None:
    """How many terms each element of a product of matrices of these shapes adds up; None of another operation."""
    if name in ("mm", "bmm", "matmul", "mv", "dot", "vdot"):
        return int(shapes[0][-1]) if shapes[0] else 1
    return int(shapes[1][-1]) + 1 if name in ("addmm", "addmv", "baddbmm", "addbmm") else None


def _terms(name: str, args: tuple[Any, ...], i: int, result: torch.Tensor) -> int:
    """How many terms each element of result i adds up."""
    if (terms := _terms_of_product(name, [getattr(value, "shape", ()) for value in args[:2]])) is not None:
        return terms
    if name == "convolution":
        x, weight, transposed = args[0], args[1], bool(args[6])
        products = (x if transposed else result).numel() * math.prod(weight.shape[1:])
        return max(1, int(products) // max(1, result.numel())) + 1
    if name == "convolution_backward":
        grad, x, weight, transposed = *args[:3], bool(args[7])
        products = grad.numel() if i == 2 else (x if transposed else grad).numel() * math.prod(weight.shape[1:])
        return max(1, int(products) // max(1, result.numel()))
    return max(1, int(args[0].numel()) // max(1, result.numel()))


def _outputs(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _is_wide(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float64, torch.complex128)


def is_plain(value: object) -> bool:
    """Whether it is a tensor of the usual kind, with data of its own."""
    return (
        isinstance(value, torch.Tensor)
        and type(value) in PLAIN_TYPES
        and value.layout is torch.strided
        and not (value.is_meta or value.is_nested or value.is_quantized or value._is_zerotensor())
    )


def _squared(value: Any) -> Any:
    return (value.abs() if value.is_complex() else value).square().to(value.dtype) if _is_wide(value) else _copy(value)


def _one(value: Any) -> Any:
    return torch.ones_like(value) if _is_wide(value) else _copy(value)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


@dataclass(frozen=True, slots=True, eq=False)
class OpReference:
    """One floating-point output of an op, in float64, with its noise.

    Attributes:
        values: r64: float64 or complex128, the shape of the output.
        noise: sigma per unit roundoff, and the accumulation term of sums.
    """

    values: Array
    noise: Noise


class InFloat64(TorchFunctionMode):
    """Makes a function of torch that names dtypes work in float64: casts become no-ops, new tensors are float64.

    Random numbers are drawn in the dtype that the program draws them in, and then widened: the same numbers. Where that
    is the dtype of a tensor, which is float64 here, it is `drawn`.
    """

    def __init__(self, drawn: torch.dtype = torch.float32) -> None:
        super().__init__()
        self._drawn = drawn

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in CASTS and args and isinstance(args[0], torch.Tensor):
            return _widen(args[0])
        if name == "view" and len(args) > 1 and isinstance(args[1], torch.dtype):
            return func(*args, **(kwargs or {}))  # a reinterpretation of bits has no float64 counterpart
        if name in DRAWN_INTO or getattr(func, "__module__", None) == torch.nn.init.__name__:
            rest = self._narrowed(args[1:])
            return _drawn_into(func, (*args[:1], *rest), kwargs or {}, self._drawn)
        if name in DRAWN or (name in DRAWN_LIKE and args[0].dtype is torch.float64):
            own = (kwargs or {}).get("dtype", torch.float64 if name in DRAWN_LIKE else None)
            dtype = {"dtype": self._drawn} if own is torch.float64 else {}
            return _widen(func(*args, **{**(kwargs or {}), **dtype}))
        if name in DRAWN_FROM:
            args, kwargs = self._narrowed(args), self._narrowed(kwargs or {})
            return _widen(func(*args, **kwargs))
        args, kwargs = tree_map(_wide_dtype, args), tree_map(_wide_dtype, kwargs or {})
        return tree_map(_widen, func(*args, **kwargs))

    def _narrowed(self, value: Any) -> Any:
        """The parameters of a distribution as the program has them; no gradient goes through what is drawn."""
        wide = torch.float64
        return tree_map(lambda v: v.detach().to(self._drawn) if getattr(v, "dtype", None) is wide else v, value)


def _drawn_into(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], drawn: torch.dtype) -> Any:
    """Fill a float64 tensor, the first argument or the one called `tensor`, with what one of `drawn` would hold."""
    kwargs = dict(kwargs)
    tensor, *rest = args if args else (kwargs.pop("tensor", None),)
    if not isinstance(tensor, torch.Tensor) or tensor.dtype is not torch.float64:
        return func(tensor, *rest, **kwargs)
    with torch.no_grad():
        return tensor.copy_(func(tensor.to(drawn), *rest, **kwargs))


def _wide_dtype(value: object) -> object:
    if isinstance(value, torch.dtype):
        if value.is_complex:
            return torch.complex128
        return torch.float64 if value.is_floating_point else value
    return value


def _widen(value: Any) -> Any:
    """A tensor in float64 or complex128, differentiable; anything else and exact tensors unchanged."""
    if not isinstance(value, torch.Tensor) or value.dtype in (torch.float64, torch.complex128):
        return value
    if value.is_complex():
        return value.to(torch.complex128)
    return value.to(torch.float64) if value.is_floating_point() else value


def array_from(tensor: torch.Tensor) -> Array:
    """The values of `tensor` as numpy holds them: bfloat16 and float8 widened to float32, complex32 to complex64.

    Exact: every widening keeps all bits. Raises RuntimeError for tensors without strided data.
    """
    value = tensor.detach().cpu().resolve_conj().resolve_neg()
    if value.dtype is torch.complex32:
        value = value.to(torch.complex64)
    elif value.is_floating_point() and value.dtype not in (torch.float16, torch.float32, torch.float64):
        value = value.to(torch.float32)
    result: Array = value.numpy()
    return result


def dtype_of(tensor: torch.Tensor) -> WorkingDtype:
    """The facts of the tensor's dtype. Raises UsageError for quantized and other dtypes the criterion knows not."""
    return working_dtype(str(tensor.dtype))


def is_noisy(value: object) -> bool:
    """Whether a value is judged by noise: a floating-point or complex tensor."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _input(
    value: Any, roundoff: float, generator: torch.Generator | None, magnitude: bool, flips: Iterator[int]
) -> Any:
    """One captured input, ready for a run: a copy in float64, perturbed, or its magnitude.

    `flips` has 1 or -1 for the signs of each input that is perturbed.
    """
    if not isinstance(value, torch.Tensor):
        return value
    if not is_noisy(value):
        return value.detach().clone()
    wide = value.detach().to(torch.complex128 if value.is_complex() else torch.float64, copy=True)
    if magnitude:
        wide = wide.abs().to(wide.dtype)
    if generator is not None:
        nudge(wide, generator, next(flips) * roundoff)
    return wide.requires_grad_(value.requires_grad)


def _call(fn: Callable[..., Any], state: dict[str, Any], args: Any, kwargs: Any) -> list[Array]:
    """The noisy outputs of one float64 run, as arrays."""
    with InFloat64():
        result = torch.func.functional_call(fn, state, args, kwargs) if state else fn(*args, **kwargs)  # type: ignore[arg-type]
    return [array_from(leaf) for leaf in tree_leaves(result) if is_noisy(leaf)]


def _runner(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    roundoff: float,
    shared: torch.Generator,
    pointwise: bool,
) -> Callable[..., list[Array]]:
    """Runs `fn` in float64: as `run()` on the captured inputs, `run(number)` on perturbed ones."""
    state: dict[str, Any] = {}
    if isinstance(fn, torch.nn.Module):
        state = {**dict(fn.named_parameters()), **dict(fn.named_buffers())}
    positional, named = tree_map(_wide_dtype, tuple(args)), tree_map(_wide_dtype, dict(kwargs))

    def run(number: int | None = None, magnitude: bool = False) -> list[Array]:
        generator = None if number is None else shared
        flips: Iterator[int] = itertools.repeat(1)
        if pointwise and number is not None:  # the same signs in each run, but for the flips
            generator, flips = (
                torch.Generator().manual_seed(shared.initial_seed()),
                itertools.cycle(BALANCED[number % len(BALANCED)]),
            )
        change = functools.partial(_input, roundoff=roundoff, generator=generator, magnitude=magnitude, flips=flips)
        return _call(fn, tree_map(change, state), tree_map(change, positional), tree_map(change, named))

    return run


def _sigmas(
    exact: Sequence[Array], noisy: Callable[[int], list[Array]], runs: int, roundoff: float, file: ValueFile | None
) -> list[Float64Array]:
    """The noise of each output, in units of the roundoff; in a file if there is one."""
    if file is None:
        running = [RunningSigma(values, roundoff) for values in exact]
        for number in range(runs):
            found = noisy(number)
            while found:  # each is let go of as soon as it is taken in
                running[len(found) - 1].add(found.pop())
        return [one.result() for one in running]
    sigmas = []
    for values, *rest in zip(exact, *map(noisy, range(runs)), strict=True):
        sigma = torch.from_numpy(sigma_from_runs(values, rest, roundoff))
        sigmas.append(array_from(copied_together([sigma], file.copy)[0]))
        file.release(values, *rest)
    return sigmas


def references(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    roundoff: float,
    runs: int = RUNS,
    terms: int | None = None,
    rough: bool = False,
    pointwise: bool = False,
    file: ValueFile | None = None,
) -> list[OpReference]:
    """Runs `fn` in float64 on captured inputs, and on inputs perturbed by ±u·x.

    Floating-point tensors among the arguments, and the parameters and buffers of a module, are widened exactly and
    copied for each run; their `requires_grad` is kept, so that `fn` may call autograd. Casts inside `fn` to other
    floating-point dtypes have no effect. `fn` must draw no random number: declare such a value not comparable.

    Args:
        fn: an operator, function or module of torch that returns tensors, perhaps nested in lists, tuples and dicts.
        roundoff: u of the working dtype.
        runs: perturbed runs; 0 leaves sigma 0.
        terms: K, for sums over K products (see `terms_of`): adds sqrt(K)·op(|x|). None for everything else.
        rough: for what has sums inside, such as a variance: in the perturbed runs these are as inaccurate as sums made
            one term after the other, see `RoughSums`.
        pointwise: elements of the result hang on those of the same place only. Then the signs of up to three inputs
            are such that in four runs each is up and down twice, and each two are alike and unlike twice: what is left
            of a - b where both are nearly the same would otherwise be nothing at all in an eighth of the elements.
        file: has the memory of the result, and while this runs of the outputs of all runs, of which otherwise those of
            two are there at once. `fn` should leave in it what it returns as soon as that is there.

    Returns:
        a `OpReference` for every floating-point or complex output, in order.

    Raises:
        UsageError: `runs` is negative, or the number or shape of outputs changes with the perturbation.
    """
    if runs < 0:
        raise UsageError(f"runs must not be negative, not {runs}")
    shared = torch.Generator().manual_seed(0)
    run = _runner(fn, args, kwargs or {}, roundoff, shared, pointwise)
    exact = run()

    def noisy(number: int) -> list[Array]:
        with RoughSums(shared, roundoff) if rough else contextlib.nullcontext():
            values = run(number)
        if len(values) != len(exact):
            raise UsageError(f"{len(values)} outputs on perturbed inputs, {len(exact)} on the captured ones")
        return values

    sigmas = _sigmas(exact, noisy, runs, roundoff, file)
    sums = run(magnitude=True) if terms is not None else [None] * len(exact)
    result = []
    for values, sigma, extra in zip(exact, sigmas, sums, strict=True):
        if extra is not None and terms is not None:
            extra = np.nan_to_num(np.sqrt(float(terms)) * np.abs(extra), posinf=0.0)
        result.append(OpReference(values, Noise(sigma, extra)))
    return result


def terms_of(op_name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> int | None:
    """K of a sum: how many terms each element of the result adds up, at most.

    Args:
        op_name: `aten.mm.default`, `sum`, `torch.nn.functional.conv2d`: the last part that names an op of `SUMS`.
        inputs, outputs: the op's tensors and other values, flat.

    Returns:
        None where op(|x|) would not be the sum of the terms' magnitudes: for all ops not in `SUMS`. For matrix
        products the shared dimension; for convolutions the weight's elements per output channel; else the ratio of
        the largest input's elements to the result's, and for scans the longest dimension.
    """
    name = next((part for part in reversed(op_name.split(".")) if part in SUMS), None)
    tensors = [value for value in inputs if is_noisy(value)]
    sizes: list[int] = [value.numel() for value in outputs if is_noisy(value)]
    if name is None or not tensors or not sizes:
        return None
    shapes: list[tuple[int, ...]] = [tuple(int(n) for n in value.shape) for value in tensors]
    if (terms := _terms_of_product(name, shapes)) is not None:
        return terms
    if name == "linear":
        return shapes[0][-1] + 1
    if name in ("convolution", "conv1d", "conv2d", "conv3d") and len(shapes) > 1:
        return max(1, math.prod(shapes[1][1:])) + 1
    if name == "cumsum":
        return max(shapes[0], default=1)
    largest: int = max(math.prod(shape) for shape in shapes)
    return max(1, largest // max(1, min(sizes)))
