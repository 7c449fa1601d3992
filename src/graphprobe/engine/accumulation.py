"""Float64 runs in which every sum is as inaccurate as one that adds its terms one after the other in float32.

Compiled code may add in any order. The worst order in use is the plain one: a running sum s_k, rounded K-1 times, with
the error Σ δ_k·s_k, |δ_k| <= u (taken for u, as everywhere). For terms of mean m and mean square v, s_k is about
k·m + sqrt(k·(v - m²)), so that

    rms error = u·sqrt((K - 1)·(r²/3 + q/2)),   r = Σ x the result, q = Σ x²

which for products of matrices is op(a², b²) in the place of q. (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd edition, chapter 4, has the error of recursive summation; the model of the partial sums is ours.)
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from graphprobe.internals.operators.op_mode import OpMode, Overload, decomposition_of
from graphprobe.internals.operators.operators import operator_of
from graphprobe.internals.tensors.trees import tree_leaves, tree_map

ROUNDOFF = 2.0**-24
"""u of float32, in which sums of narrower dtypes are made, too."""

SUMS = frozenset("sum nansum".split())
MEANS = frozenset("mean".split())
PRODUCTS = frozenset("mm bmm addmm baddbmm addbmm mv addmv dot vdot convolution convolution_backward".split())
SCATTERS = frozenset(
    "cumsum index_add index_put _unsafe_index_put _index_put_impl scatter_add scatter_reduce "
    "embedding_dense_backward".split()
)
"""Here K differs from element to element: it is what the op makes of ones."""

POSITIVE = frozenset("var std norm linalg_vector_norm prod _scaled_dot_product_flash_attention_for_cpu".split())
"""Made of sums, or products, of positive numbers: their relative error is that of such a sum, u·sqrt(K)."""

PAIRS = frozenset("var_mean std_mean".split())

COMPOSED = frozenset(
    "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward native_batch_norm "
    "native_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_functional batch_norm_backward "
    "_batch_norm_with_update cudnn_batch_norm cudnn_batch_norm_backward _fused_rms_norm _fused_rms_norm_backward "
    "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data logsumexp mse_loss smooth_l1_loss "
    "huber_loss binary_cross_entropy nll_loss_forward nll_loss2d_forward".split()
)
"""Ops with sums inside: they run as torch's decomposition of them, and the sums are found there."""


@contextlib.contextmanager
def rough_sums(generator: torch.Generator, roundoff: float = ROUNDOFF) -> Iterator[None]:
    """Inside, every sum in float64 is off by what is usual in a dtype with unit roundoff `roundoff`.

    Each element gets the error ±e, e the rms error of recursive summation over its K terms, the sign drawn from
    `generator`. Sums of one term, other ops, and tensors in other dtypes are as ever; so is what higher-order
    operators run. `roundoff` above float32's counts as float32's: narrower dtypes are summed in float32.
    """
    with OpMode(_Rough(generator, min(roundoff, ROUNDOFF)).around):
        yield


class _Rough:
    def __init__(self, generator: torch.Generator, roundoff: float) -> None:
        self._generator, self._u = generator, roundoff

    def around(self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operator = operator_of(op)
        if operator is None or operator.namespace != "aten":
            return op(*args, **kwargs)
        name = operator.name.removesuffix("_")
        if name in COMPOSED:
            made_of = decomposition_of(op)
            if made_of is not None:
                with OpMode(self.around):
                    result = made_of(*args, **kwargs)
                return op(*args, **kwargs) if result is NotImplemented else result
        errors = self._errors(name)
        given = tree_leaves((args, kwargs))
        if errors is None or not all(map(_is_plain, given)) or not any(map(_is_wide, given)):
            return op(*args, **kwargs)
        finish = errors(op, args, kwargs)
        result = op(*args, **kwargs)
        outputs = _outputs(result)
        for output, error in zip(outputs, finish(outputs), strict=True):
            if error is not None and _is_wide(output):
                self._add(output, error)
        return result

    def _add(self, output: torch.Tensor, error: _Error) -> None:
        signs = torch.randint(0, 2, output.shape, generator=self._generator, dtype=torch.int8) * 2 - 1
        for part in _parts(output):
            found = torch.nan_to_num(error(part) * self._u, posinf=0.0, neginf=0.0)
            _at(output, part).add_(found * _at(signs, part).to(output.device, torch.float64))

    def _errors(self, name: str) -> _Errors | None:
        if name in PRODUCTS or name in SUMS or name in MEANS:
            return lambda op, args, kwargs: _of_sums(name, op, args, kwargs)
        if name in SCATTERS:
            return _of_scatters
        if name in PAIRS:
            return _of_pairs
        return _of_positive if name in POSITIVE else None


AT_ONCE = 1 << 20
"""Elements whose errors are computed together: what that takes is several times as large as they are."""

_Error = Callable[[slice | None], torch.Tensor]
"""The errors of some rows of a result, as that is now; of all of it for None."""

_Finish = Callable[[list[Any]], list[_Error | None]]
_Errors = Callable[[Overload, tuple[Any, ...], dict[str, Any]], _Finish]
"""Looks at the arguments before the op runs, which may overwrite them, and then turns the results into their errors, in
units of u; None: no error."""


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
    terms = terms.detach().clone()
    return lambda outputs: [_recursive(terms.abs_(), outputs[0], squares) if _is_wide(outputs[0]) else None]


def _of_pairs(_: Overload, args: tuple[Any, ...], __: dict[str, Any]) -> _Finish:
    size = args[0].numel()

    def finish(outputs: list[Any]) -> list[Any]:
        spread, mean = outputs
        terms = max(1, size // max(1, mean.numel()))
        both = (mean.abs() ** 2 + spread) / terms
        return [_relative(terms, spread), _recursive(terms, mean, both)]

    return finish


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
    error = (count * (result.abs() ** 2 / 3 + squares.abs() / 2)).sqrt()
    whole = (result == result.round()) & (squares == squares.round()) if not result.is_complex() else None
    if whole is not None:  # sums of integers are exact, in any order
        error = torch.where(whole & (squares.abs() <= 1 / ROUNDOFF), 0.0, error)
    return error


def _terms(name: str, args: tuple[Any, ...], i: int, result: torch.Tensor) -> int:
    """How many terms each element of result i adds up."""
    if name in ("mm", "bmm", "mv", "dot", "vdot"):
        return int(args[0].shape[-1])
    if name in ("addmm", "addmv", "baddbmm", "addbmm"):
        return int(args[1].shape[-1]) + 1
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


def _is_plain(value: Any) -> bool:
    """Whether a value is no tensor, or one of the usual kind with data."""
    if not isinstance(value, torch.Tensor):
        return True
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and not value.is_meta


def _squared(value: Any) -> Any:
    return value.abs().square().to(value.dtype) if _is_wide(value) else _copy(value)


def _one(value: Any) -> Any:
    return torch.ones_like(value) if _is_wide(value) else _copy(value)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
