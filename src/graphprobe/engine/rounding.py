"""Runs of a program in its own precision, in which every result in a narrow dtype is rounded anew.

A program of mixed precision has float32 inputs and outputs and bfloat16 in between: the dtypes of neither say how far
its outputs may legitimately be off. So the noise is made where roundings are. One rounding to nearest is off by up to
half a unit in the last place (ulp). A compiled program may round in other places, or not at all: then the two errors
are up to one ulp apart. So each result y of an operator in a narrow dtype becomes

    round(y + ulp(y)·ξ),   ulp(y) = 2u·2^floor(log2 max(|y|, smallest normal)),   ξ uniform in [-3/4, 3/4]

with one ξ for each element. A third of the elements move by one ulp; the rms change is twice the rms error of a
rounding. (Stochastic arithmetic: Parker, Monte Carlo Arithmetic, 1997, perturbs each operation by up to half an ulp, to
see how many digits a result has.) What is wider than narrow is left alone: float64 runs on perturbed inputs say how
much that moves. `judge_narrow` puts the two together; `bench/autocast.py` has its false alarms and misses. Where the
float64 run cannot be of the same program, wide results are rounded anew, too.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch

from graphprobe.engine.reference import array_from, dtype_of, is_noisy, is_plain
from graphprobe.internals.operators.operators import OpMode, Overload, arguments_of, is_written, operator_of
from graphprobe.internals.tensors import WeakStorages, tree_leaves
from graphprobe.numerics.divergence import RunValues
from graphprobe.numerics.dtypes import DTYPES, WorkingDtype
from graphprobe.numerics.noise import Array, Float64Array, Noise, flat, sigma_from_runs, typical_magnitude
from graphprobe.numerics.verdict import DEFAULT, NARROW, judge, tolerated

log = logging.getLogger(__name__)

STEP = 0.75
"""Largest change of an element before it is rounded, in ulp."""

RUNS, MORE_RUNS = 6, 24
"""Rounded runs to begin with, and before anything is accused: a choice that hangs on a rounding, such as that of an
expert, may have fallen the same way in the first six runs."""

POOL = 6.0
"""How many runs the noise of an element's row and column stands for, next to the element's own."""

BEYOND_DOUBT = 4.0
"""How many times what is tolerated an error has to be, where there is no float64 run to judge it by."""

SHARE = 1 / 16
"""Share of the typical noise that every element has."""

WIDE = 8.0
"""What `verdict.LIBRARY` tolerates in wide dtypes, in units of what `verdict.DEFAULT` tolerates."""

CONVERSIONS = frozenset("_to_copy copy _copy_from _copy_from_and_resize".split())
"""Results are exact where they equal the source."""

LOOSE = frozenset(
    # computed
    "arange linspace logspace "
    # of the process: drawn, never written, Python's
    "rand rand_like randn randn_like randint randint_like randperm bernoulli multinomial normal normal_functional "
    "uniform exponential random cauchy log_normal geometric poisson empty_strided lift lift_fresh".split()
)
"""Of `EXACT`: those that may give other numbers where they are compiled."""

EXACT = LOOSE.union(
    # copies and arrangements
    "clone cat _cat stack hstack vstack index index_select gather take embedding slice_scatter select_scatter "
    "diagonal_scatter as_strided_scatter slice_backward select_backward diagonal_backward as_strided_backward "
    "index_copy scatter repeat roll flip rot90 tril triu constant_pad_nd reflection_pad1d reflection_pad2d "
    "reflection_pad3d replication_pad1d replication_pad2d replication_pad3d _pad_enum unfold im2col pixel_shuffle "
    "pixel_unshuffle channel_shuffle upsample_nearest1d upsample_nearest2d upsample_nearest3d repeat_interleave "
    "contiguous view reshape _reshape_alias _unsafe_view expand permute transpose t squeeze unsqueeze alias detach "
    "split split_with_sizes unbind slice select diagonal as_strided unsafe_split "
    "unsafe_split_with_sizes unsafe_chunk resize resize_as set_ set resolve_conj resolve_neg combinations meshgrid "
    "_pin_memory new_tensor scalar_tensor swap_axes _conj_physical block_diag "
    # choices among the elements
    "where masked_fill masked_scatter masked_select relu relu6 threshold threshold_backward hardtanh hardtanh_backward "
    "clamp clamp_min clamp_max clip neg negative abs absolute sign sgn signbit copysign max min amax amin aminmax "
    "maximum minimum fmax fmin argmax argmin sort topk kthvalue median nanmedian mode cummax cummin "
    "_cummax_helper _cummin_helper max_pool1d max_pool2d_with_indices max_pool3d_with_indices max_pool2d "
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d nan_to_num heaviside _unique _unique2 "
    "unique_dim unique_consecutive "
    # whole numbers
    "round floor ceil trunc fix bucketize searchsorted one_hot "
    # steps from one number to another
    "nextafter ldexp frexp "
    # made of nothing
    "zeros zeros_like ones ones_like full full_like empty empty_like empty_permuted new_zeros new_ones "
    "new_full new_empty new_empty_strided zero fill eye tril_indices triu_indices "
    "_efficientzerotensor".split()
)
"""Operators whose results are elements of their inputs, or known numbers: nothing is rounded."""

ACCUMULATING = frozenset("index_put _unsafe_index_put _index_put_impl put".split())
"""Exact unless they add up."""

CHOOSING = frozenset(
    "where maximum minimum fmax fmin clamp clamp_min clamp_max clip copysign heaviside nextafter cat _cat stack hstack "
    "vstack masked_fill fill eq ne lt le gt ge isin searchsorted bucketize".split()
)
"""Operators that turn arguments of one dtype into another before they choose among the elements, or compare them."""

_paused = 0

FAR = 2.0**13
"""Roundings: in float32, one part in 2048 of a result's rms."""


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """Inside, nothing is rounded anew: for what is done around a program and not by it, such as making cotangents."""
    global _paused
    _paused += 1
    try:
        yield
    finally:
        _paused -= 1


class RoundedAnew(OpMode):  # type: ignore[no-untyped-call]
    """A context manager: inside, each result in a narrow dtype is rounded anew, in a backward as well.

    Only memory that an operator made, or wrote, changes, and in place: shapes, strides, aliases and the autograd graph
    stay as they are; what higher-order operators run is left alone. Zeros, infinities, NaN, ±1 and the dtype's largest
    number stay, too (masks, saturated functions, softmax over one element); so does what a conversion did not change.
    Tensors that are no plain strided ones with data are left alone. A result that cannot be rounded anew stays.

    Args:
        generator: on the CPU; everything is drawn from generators seeded by it. The program's own
            generators are not touched.
        least: dtypes of a larger unit roundoff are rounded anew; 0.0: all of them.

    Attributes:
        narrowest: the largest unit roundoff of any floating-point dtype that a result had; 0.0 before the first.
        rounded: results that were rounded anew.
        failed: results that could not be.
        rounds: whether any operator may have rounded. False: each element that came out is one that went in, or a
            known number, so that no other legitimate run has other bits.
    """

    def __init__(
        self, generator: torch.Generator, least: float = NARROW, given: Sequence[torch.Tensor] | None = None
    ) -> None:
        """`given`: what the program has to begin with; None: not known, so that anything may round."""
        super().__init__(self._run, unseen=self._may_have_rounded)
        self.narrowest = 0.0
        self.rounds = given is None
        self._known: dict[int, object] = {}
        self._know(given or [])
        self._least = least
        self.rounded = 0
        self.failed = 0
        self._first = generator
        self._generators: dict[torch.device, torch.Generator] = {}

    def move(self, tensors: Sequence[torch.Tensor]) -> None:
        """Round the values of a program anew before it begins, in place."""
        for target in _once([t for t in tensors if _is_rounded(t, self._least)]):
            self._round(target, None)

    def _run(self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = op(*args, **kwargs)
        if not self.rounds:
            self._look(op, args, kwargs, result)
        if _paused:
            return result
        try:
            self._after(op, args, kwargs, result)
        except Exception as error:  # the program comes first
            self.failed += 1
            log.debug("%s: not rounded anew: %s", op, error)
        return result

    def _after(self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        returned = _tensors(result)
        for tensor in returned:
            self._note(tensor)
        written = _written(op, args, kwargs)
        targets = [t for t in _once([*written, *returned]) if _is_rounded(t, self._least)]
        if not targets or _is_exact(op, args, kwargs):
            return
        mine = {id(t) for t in written}
        given = [t for t in _tensors((args, kwargs)) if id(t) not in mine]
        memory = {_memory(t) for t in given if is_plain(t)}
        source = _source(op, args)
        for target in targets:
            if id(target) not in mine and _memory(target) in memory:
                continue  # a view, whatever the schema says
            try:
                self._round(target, source)
            except Exception as error:
                self.failed += 1
                log.debug("%s: not rounded anew: %s", op, error)

    def _may_have_rounded(self) -> None:
        self.rounds = True

    def _look(self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Whether this operator rounds, or its arguments come from where no operator is seen, such as numpy."""
        try:
            got, returned = _tensors((args, kwargs)), _tensors(result)
            outside = any(_memory(t) not in self._known for t in got)
            results = [*_written(op, args, kwargs), *returned]
            self.rounds = not _paused and (outside or _may_round(op, args, kwargs, results))
            self._know(returned)
        except Exception as error:  # a tensor without memory
            self.rounds = True
            log.debug("%s: may round: %s", op, error)

    def _know(self, tensors: Sequence[torch.Tensor]) -> None:
        """Remember the memory of these. What is freed is remembered, too: nothing else gets its address."""
        try:
            for tensor in tensors:
                self._known.setdefault(_memory(tensor), WeakStorages([tensor]))
        except Exception as error:
            self.rounds = True
            log.debug("a tensor without memory: %s", error)

    def _note(self, tensor: torch.Tensor) -> None:
        facts = _facts(tensor.dtype)
        if facts is not None:
            self.narrowest = max(self.narrowest, facts.unit_roundoff)

    def _round(self, target: torch.Tensor, source: torch.Tensor | None) -> None:
        facts = _facts(target.dtype)
        assert facts is not None
        target = target.detach()
        value = target.to(torch.float32 if facts.unit_roundoff > NARROW else torch.float64)
        size = value.abs()
        keep = (size == 0) | (size == 1) | ~(size < facts.largest)  # ~(<): NaN stays
        if source is not None and source.shape == value.shape:
            keep |= value.to(torch.float64) == source.to(torch.float64)
        draws = torch.empty_like(value).uniform_(-1.0, 1.0, generator=self._generator(target.device))
        exponent = torch.frexp(size.clamp_min(facts.smallest_normal)).exponent
        step = torch.ldexp(draws.mul_(STEP * facts.eps / 2), exponent)
        moved = step.add_(value).clamp_(-facts.largest, facts.largest)
        target.copy_(torch.where(keep, value, moved))
        self.rounded += 1

    def _generator(self, device: torch.device) -> torch.Generator:
        """One for each device. It is seeded by a number drawn: a program with the same seed draws other numbers."""
        if device not in self._generators:
            seed = int(torch.randint(0, 2**62, (), generator=self._first))
            self._generators[device] = torch.Generator(device).manual_seed(seed)
        return self._generators[device]


def _facts(dtype: torch.dtype) -> WorkingDtype | None:
    """The facts of a floating-point or complex dtype; None for others, and for those without an ordinary rounding."""
    facts = DTYPES.get(str(dtype).removeprefix("torch."))
    return None if facts is None or facts.is_exact else facts


def _is_rounded(tensor: torch.Tensor, least: float) -> bool:
    facts = _facts(tensor.dtype)
    if facts is None or facts.kind != "float" or facts.unit_roundoff <= least:
        return False
    return is_plain(tensor) and tensor.numel() > 0


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _once(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(t): t for t in tensors}.values())


def _written(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments that the operator writes, by its schema."""
    scaled = kwargs.get("grad_scale") is not None  # fused optimisers write gradients only then
    written = (v for a, v in arguments_of(op, args, kwargs) if is_written(a) and (scaled or a.name != "grads"))
    return [tensor for value in written for tensor in _tensors(value)]


def _is_exact(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    operator = operator_of(op)
    if operator is None or operator.namespace not in ("aten", "prims"):
        return False
    name = _base(operator.name)
    if name in ACCUMULATING:
        return not any(value is True for value in (*args[3:4], kwargs.get("accumulate")))
    return name in EXACT and "reduce" not in (operator.overload or "")


def _may_round(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[torch.Tensor]) -> bool:
    """Whether a result may be anything but an element of the arguments, or a number of its own in each dtype."""
    operator = operator_of(op)
    if operator is None or operator.namespace not in ("aten", "prims"):
        return True
    name, given = _base(operator.name), _tensors((args, kwargs))
    made = [t for t in results if t.is_floating_point() or t.is_complex()]
    if name in LOOSE or not all(is_plain(t) and not t.is_complex() for t in (*given, *results)):
        return True
    if name in CONVERSIONS:
        source = _source(op, args)
        return source is None or not all(_holds(t.dtype, source.dtype) for t in made)
    if made and (operator.overload == "decimals" or not _is_exact(op, args, kwargs)):
        return True
    if name == "_local_scalar_dense" and given[0].is_floating_point():
        return True  # Python computes with it, which nobody sees
    kept = {t.dtype for t in (made or given) if t.is_floating_point()}
    turned = {t.dtype for t in given if t.is_floating_point() or name in CHOOSING}
    if made and not all(_holds(k, t) for k in kept for t in turned):
        return True
    if not made and not all(any(_holds(k, t) for k in kept) for t in turned if kept):
        return True
    return not all(_holds_number(k, v) for k in kept for v in _numbers(op, args, kwargs))


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def _numbers(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[float]:
    """The arguments that stand for elements, not for sizes, dimensions or positions."""
    typed = ((v, str(a.type)) for a, v in arguments_of(op, args, kwargs))
    elements = (value for value, kind in typed if "number" in kind or "float" in kind)
    return [float(v) for value in elements for v in tree_leaves(value) if isinstance(v, (int, float))]


def _holds(target: torch.dtype, source: torch.dtype) -> bool:
    """Whether each number of a dtype is one of the other, too."""
    into, of = _facts(target), _facts(source)
    if into is None or target == source or source == torch.bool:
        return True  # what is no floating-point dtype takes whole numbers
    if of is None:
        bits = torch.iinfo(source).bits - torch.iinfo(source).min.bit_count()
        return 2.0**bits <= min(1 / into.unit_roundoff, into.largest)
    finer = into.unit_roundoff <= of.unit_roundoff and into.largest >= of.largest
    return finer and into.smallest_normal <= of.smallest_normal


def _holds_number(dtype: torch.dtype, value: float) -> bool:
    return not math.isfinite(value) or float(torch.tensor(value, dtype=torch.float64).to(dtype)) == value


def _base(name: str) -> str:
    """`relu` of `relu_`, `_foreach_neg_` and `relu_copy`."""
    name = name.removeprefix("_foreach_").removesuffix("_")
    return name if name in CONVERSIONS else name.removesuffix("_copy")


def _source(op: Overload, args: tuple[Any, ...]) -> torch.Tensor | None:
    """What a conversion converts; None for every other operator."""
    operator = operator_of(op)
    name = None if operator is None or operator.namespace != "aten" else _base(operator.name)
    if name not in CONVERSIONS:
        return None
    source = args[1] if name == "copy" and len(args) > 1 else args[0] if args else None
    return source if isinstance(source, torch.Tensor) and is_plain(source) else None


def judge_narrow(
    candidate: torch.Tensor,
    eager: Sequence[torch.Tensor],
    wide: Array | None,
    perturbed: Sequence[Array],
    rounded: Sequence[Array],
    narrowest: float,
) -> tuple[Literal["ok", "better", "worse", "unsure"], str, float]:
    """Judge one observable of a program that rounds to a narrow dtype somewhere.

    Args:
        candidate: the observable under suspicion: noisy, of eager's dtype and shape.
        eager: the uncompiled program's, one a run.
        wide: the same in float64. None where there is none: then it is held against the first eager run, whose own
            error the noise has to cover as well, and a difference is `unsure` unless it is `BEYOND_DOUBT`.
        perturbed: the same in float64, on inputs moved by the roundoff of float32, whatever the program's dtypes.
        rounded: the same of eager runs under `RoundedAnew`; `RUNS` of them, or `MORE_RUNS` before an accusation.
        narrowest: of `RoundedAnew`.

    Returns:
        the answer, one sentence with figures, and the largest error in units of noise. `better`: it is the first eager
        run that is further off than noise explains.
    """
    facts = dtype_of(eager[0])
    values = [array_from(run) for run in eager]
    centre = values[0] if wide is None else wide
    noise = noise_of(values[0], centre, perturbed, rounded, facts, narrowest)
    if noise is not None and wide is None:
        noise = Noise(2 * noise.sigma)
    if noise is None:
        sigma = sigma_from_runs(centre, perturbed, facts.unit_roundoff)
        noise, legitimate, thresholds = Noise(sigma), values, tolerated(facts)
    else:
        legitimate, thresholds = [*values, *rounded[: min(len(rounded) // 2, RUNS)]], DEFAULT
    runs = [RunValues(run, facts) for run in legitimate]
    answer = judge(
        RunValues(array_from(candidate), facts), centre, noise, runs, thresholds=thresholds, flush=True, brief=True
    )
    if answer.answer == "candidate_worse" and wide is None and answer.excess < BEYOND_DOUBT:
        return "unsure", f"{answer.reason}; there is no float64 reference to judge it by", answer.candidate.max
    if answer.answer == "candidate_worse":
        return "worse", answer.reason, answer.candidate.max or float("inf")
    better = wide is not None and answer.answer == "candidate_better"
    return "better" if better else "ok", answer.reason, answer.candidate.max


def noise_of(
    eager: Array,
    wide: Array,
    perturbed: Sequence[Array],
    rounded: Sequence[Array],
    facts: WorkingDtype,
    narrowest: float,
) -> Noise | None:
    """The noise of an observable of dtype `facts`, or None where no rounding to a narrow dtype moves it.

    With n rounded runs, v_i the mean square of (rounded − eager), P(v) its pooled form (`pooled`), s_i the rms of
    (perturbed − wide), and t(·) the typical magnitude:

        sigma² = (n·v + POOL·P(v)) / (n + POOL) + w²
        w      = s in narrow dtypes;  WIDE·(s + u·|r| + u·t(r)) in others: what libraries are allowed there
        d      = sigma + SHARE·t(sigma) + u'·(|r| + t(r)/16)

    u' is the roundoff of the format that the values really have where that is a narrow one: the gradient of a float32
    bias that was summed in bfloat16 moves in steps of bfloat16.

    Args:
        eager, wide, perturbed, rounded: all of one shape.

    Returns:
        sigma in units of the unit roundoff of `facts`, float64, the shape of `wide`.
    """
    u, is_wide = facts.unit_roundoff, facts.unit_roundoff < NARROW
    squares = sigma_from_runs(eager, rounded, 1.0) ** 2
    if is_wide and not squares.any():
        return None
    squares = _blended(squares, len(rounded))
    size, typical = np.abs(wide), typical_magnitude(wide)
    rest = sigma_from_runs(wide, perturbed, 1.0)
    if is_wide:
        rest = WIDE * (rest + u * size + u * typical)
    with np.errstate(invalid="ignore", over="ignore"):
        sigma = np.sqrt(squares + rest**2)
        sigma = sigma + SHARE * typical_magnitude(sigma)
        if is_wide and (held := min(held_roundoff([eager, *rounded]), narrowest)) > NARROW:
            sigma = sigma + held * (size + typical / 16)
    return Noise(np.where(np.isnan(sigma), np.inf, sigma) / u)


def of_few(sigma: Array, runs: int) -> Float64Array:
    """The noise of so many runs that in single elements it may by chance be much too small.

    sqrt((n·v + POOL·P(v)) / (n + POOL)) + SHARE·t, with n runs, v = sigma², P(v) its pooled form (`pooled`), and t the
    typical magnitude of the root; infinities stay.
    """
    found = np.sqrt(_blended(sigma**2, runs))
    return np.asarray(found + SHARE * typical_magnitude(found))


def _blended(squares: Array, runs: int) -> Float64Array:
    found = np.asarray(POOL * pooled(squares))
    found += runs * squares
    found /= runs + POOL
    return found


def pooled(squares: Array) -> Float64Array:
    """What mean squares would be if each were a product of factors, one for each index.

    The noise of a weight's gradient is about that of its row times that of its column. Infinities do not count, and
    stay.

    Args:
        squares: not negative; any shape.

    Returns:
        float64: the product of the means over all other dimensions, each divided by the mean, times the mean.
    """
    finite = np.isfinite(squares)
    whole = bool(finite.all())
    values = np.asarray(squares if whole else np.where(finite, squares, 0.0), np.float64)
    mean = float(values.mean()) if values.size else 0.0
    if values.ndim == 0 or mean <= 0.0:
        return np.asarray(squares, np.float64)
    result: Float64Array = np.full(values.shape, mean)
    for dim, size in enumerate(values.shape):
        if size > 1:
            others = tuple(d for d in range(values.ndim) if d != dim)
            result *= values.mean(axis=others, keepdims=True) / mean
    return result if whole else np.where(finite, result, squares)


def held_roundoff(arrays: Sequence[Array]) -> float:
    """u of the narrowest binary format, its exponents unlimited, that holds every value exactly; 0.0 if all are zero.

    Args:
        arrays: any float or complex dtype and shape; what is not finite does not count.
    """
    bits = 0
    for array in arrays:
        values = flat(array)
        parts = (values.real, values.imag) if np.iscomplexobj(values) else (values,)
        for part in parts:
            finite = part[np.isfinite(part) & (part != 0)].astype(np.float64)
            if finite.size:
                whole = (np.abs(np.frexp(finite)[0]) * 2.0**53).astype(np.int64)  # 53 bits, the first is set
                bits = max(bits, 54 - int((whole & -whole).min()).bit_length())
    return 2.0**-bits if bits else 0.0


def roundings_apart(want: Any, have: Any) -> float:
    """The rms of the difference of two tensors over that of the first, in units of roundoff.

    inf where the second alone is not finite; 0 where they cannot be compared in this way, as whole numbers.
    """
    if not is_noisy(want) or not is_noisy(have) or want.shape != have.shape or want.dtype != have.dtype:
        return 0.0
    if want.layout is not torch.strided or have.layout is not torch.strided:
        return 0.0
    size, gap = (float(torch.linalg.vector_norm(value.detach())) for value in (want, have - want))
    if not math.isfinite(size) or gap == 0.0:
        return 0.0
    return gap / size / dtype_of(want).unit_roundoff if size > 0 and math.isfinite(gap) else math.inf
