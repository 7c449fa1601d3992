"""The four verdicts, and what must not change them; integers, booleans, and floats that nothing has rounded."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphprobe.errors import UsageError
from graphprobe.numerics.divergence import RunValues
from graphprobe.numerics.dtypes import DTYPES
from graphprobe.numerics.noise import Noise
from graphprobe.numerics.verdict import DEFAULT, LIBRARY, Thresholds, Verdict, judge, judge_exact, judge_unrounded

SINGLE, HALF = DTYPES["float32"], DTYPES["float16"]


def verdict(values: np.ndarray, reference: np.ndarray, eager: np.ndarray | None = None, **kwargs: object) -> Verdict:
    dtype = kwargs.pop("dtype", SINGLE)
    noise = Noise(kwargs.pop("sigma", np.abs(np.nan_to_num(reference, posinf=0.0, neginf=0.0))))  # type: ignore[arg-type]
    legitimate = [] if eager is None else [RunValues(eager, dtype)]  # type: ignore[arg-type]
    return judge(RunValues(values, dtype), reference, noise, legitimate, **kwargs)  # type: ignore[arg-type]


def case(seed: int, error: float, n: int = 500) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A reference, eager's rounding of it, and a candidate that is `error` roundoffs off in one element."""
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal(n)
    reference = reference.astype(np.float32) * (1 + 0.3 * 2.0**-24)
    eager = reference.astype(np.float32).astype(np.float64)
    candidate = eager.copy()
    i = int(np.argmax(np.abs(reference)))
    candidate[i] = reference[i] * (1 + error * 2.0**-24)
    return reference, eager, candidate


def test_rounding_is_ok_and_a_wrong_element_is_found() -> None:
    reference, eager, candidate = case(0, 1000.0)
    assert verdict(eager, reference, eager).answer == "ok"
    found = verdict(candidate, reference, eager)
    assert found.answer == "candidate_worse"
    assert found.worst == (int(np.argmax(np.abs(reference))),)
    assert found.excess > 10
    assert verdict(eager, reference, candidate).answer == "candidate_better"


def test_a_negated_tiny_gradient_is_found() -> None:
    gradient = np.random.default_rng(1).standard_normal((8, 8)) * 1e-5
    assert verdict(-gradient, gradient, gradient).answer == "candidate_worse"


def test_a_wrong_divisor_is_found_by_its_gain_alone() -> None:
    rng = np.random.default_rng(2)
    reference = rng.standard_normal(4000) + 3
    eager = reference.astype(np.float16)
    off = (reference * (1 + 2.0**-10)).astype(np.float16)  # one ulp at most, everywhere in one direction
    found = verdict(off, reference, eager, dtype=HALF)
    assert (found.answer, found.statistic) == ("candidate_worse", "gain")
    loose = Thresholds(floor_gain=math.inf)
    assert verdict(off, reference, eager, dtype=HALF, thresholds=loose).answer == "ok"


def test_a_correctly_rounded_result_is_never_worse() -> None:
    grid = np.arange(1024, 1524) / 1024
    reference = grid + 0.49 * 2.0**-10  # every rounding goes down, by nearly half an ulp
    found = verdict(grid, reference, reference, dtype=HALF, sigma=np.zeros(500))
    assert found.excess > 1
    assert (found.answer, found.candidate.beyond_rounding) == ("ok", 0)


def test_an_excuse_of_eager_covers_its_like_only() -> None:
    reference = np.concatenate([np.full(500, 1.0), np.full(500, 1e-6)]) * np.linspace(1, 1.5, 1000)
    noise = np.abs(reference)
    eager = reference.copy()
    eager[600] *= 1.1
    same_size, other_size = reference.copy(), reference.copy()
    same_size[700] *= 1.1
    other_size[100] *= 1.00001
    assert verdict(other_size, reference, eager, sigma=noise).answer == "candidate_worse"
    by_maximum = Thresholds(floor_rms=math.inf, floor_q999=math.inf, floor_gain=math.inf)
    assert verdict(same_size, reference, eager, sigma=noise, thresholds=by_maximum).answer == "ok"
    assert verdict(same_size, reference, reference, sigma=noise, thresholds=by_maximum).answer == "candidate_worse"


def test_noise_as_large_as_the_values_is_inconclusive() -> None:
    reference = np.random.default_rng(3).standard_normal(100)
    sigma = np.full(100, 2.0**27)
    found = verdict(reference * 1.01, reference, reference, sigma=sigma)
    assert found.answer == "inconclusive"
    rounded = reference.astype(np.float32)
    assert verdict(rounded, reference, rounded, sigma=sigma).answer == "ok"  # correctly rounded is right in any noise


def test_results_that_underflow_to_zero_are_ok() -> None:
    reference = np.random.default_rng(4).standard_normal(100) * 1e-9
    zeros = np.zeros(100, np.float16)
    assert verdict(zeros, reference, zeros, dtype=HALF).answer == "ok"


def test_flushed_subnormals_are_ok_where_the_caller_allows_them() -> None:
    reference = np.random.default_rng(5).uniform(1e-6, 6e-5, 100)
    zeros, eager = np.zeros(100, np.float16), reference.astype(np.float16)
    assert verdict(zeros, reference, eager, dtype=HALF).answer == "candidate_worse"
    assert verdict(zeros, reference, eager, dtype=HALF, flush=True).answer != "candidate_worse"


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_classes(wrong: float) -> None:
    reference = np.ones(10)
    bad = reference.copy()
    bad[3] = wrong
    found = verdict(bad, reference, reference)
    assert (found.answer, found.statistic, found.worst, found.excess) == ("candidate_worse", "class", (3,), math.inf)
    assert verdict(bad, reference, bad).answer == "ok"
    assert verdict(reference, reference, bad).answer == "candidate_better"
    assert verdict(bad, bad, bad).answer == "ok"
    assert verdict(reference, bad, bad).answer == "candidate_worse"


def test_empty_and_scalar() -> None:
    empty = np.empty((0, 3))
    assert verdict(empty, empty, empty).answer == "ok"
    assert verdict(np.array(2.0), np.array(1.0)).worst == ()
    assert verdict(np.array(2.0), np.array(1.0)).answer == "candidate_worse"


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(UsageError, match="int64"):
        judge(RunValues(np.ones(2), DTYPES["int64"]), np.ones(2), Noise(np.zeros(2)))
    with pytest.raises(UsageError, match="float64"):
        judge_exact(np.ones(1), np.ones(1))


def test_a_verdict_survives_json() -> None:
    reference, eager, candidate = case(0, 1000.0)
    found = verdict(candidate, reference, eager)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Verdict) == found


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 50), st.sampled_from([0.0, 3.0, 12.0, 1e3]), st.integers(-60, 60))
def test_scaling_by_powers_of_two_changes_nothing(seed: int, error: float, power: int) -> None:
    reference, eager, candidate = case(seed, error)
    plain = verdict(candidate, reference, eager)
    f = 2.0**power
    scaled = verdict(candidate * f, reference * f, eager * f)
    assert (scaled.answer, scaled.statistic, scaled.worst) == (plain.answer, plain.statistic, plain.worst)
    assert (scaled.candidate.rms, scaled.candidate.max) == (plain.candidate.rms, plain.candidate.max)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 50), st.sampled_from([0.0, 3.0, 12.0, 1e3]))
def test_permuting_the_elements_permutes_the_evidence(seed: int, error: float) -> None:
    reference, eager, candidate = case(seed, error)
    order = np.random.default_rng(seed).permutation(reference.size)
    plain, moved = verdict(candidate, reference, eager), verdict(candidate[order], reference[order], eager[order])
    assert moved.answer == plain.answer
    assert moved.candidate.max == plain.candidate.max
    assert moved.candidate.rms == pytest.approx(plain.candidate.rms)
    assert plain.worst is not None and moved.worst is not None
    if error:
        assert order[moved.worst[0]] == plain.worst[0]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 50), st.floats(0, 1e6), st.floats(1, 1e3))
def test_a_larger_error_is_never_judged_milder(seed: int, error: float, factor: float) -> None:
    reference, eager, small = case(seed, error)
    large = case(seed, error * factor)[2]
    near, far = verdict(small, reference, eager), verdict(large, reference, eager)
    assert far.candidate.max >= near.candidate.max
    assert not (near.answer == "candidate_worse" and far.answer == "ok")


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 50))
def test_exact_candidates_are_never_worse(seed: int) -> None:
    reference, eager, _ = case(seed, 0.0)
    found = verdict(reference, reference, eager)
    assert (found.candidate.max, found.excess) == (0.0, 0.0)
    assert found.answer in ("ok", "candidate_better")


SIZES = st.sampled_from([1, 2, 17, 500, 3000, 70_000])
WHAT = ["nothing", "one", "tail", "factor", "noisy", "zeros", "nan", "large", "eager", "other dtype"]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), SIZES, st.sampled_from(WHAT), st.floats(-1, 5), st.booleans(), st.booleans())
def test_a_brief_answer_is_the_whole_one(
    seed: int, n: int, what: str, power: float, library: bool, is_complex: bool
) -> None:
    rng, u = np.random.default_rng(seed), 2.0**-24

    def parts() -> np.ndarray:
        return rng.standard_normal(n) + (1j * rng.standard_normal(n) if is_complex else 0.0)

    scatter = rng.exponential(size=n) ** 2
    reference = parts() * (0.0 if what == "zeros" else 1.0)
    sigma = np.sqrt(sum(np.abs(scatter * rng.standard_normal(n)) ** 2 for _ in range(3)) / 3)
    eager, candidate = (reference + u * scatter * parts() for _ in range(2))
    off, where = u * 10.0**power, slice(0, max(1, n // 300))
    if what == "large":
        reference, eager, candidate, sigma = (v * 3e38 / 4 for v in (reference, eager, candidate, sigma))
    if what in ("one", "nan"):
        candidate[n // 2] = candidate[n // 2] + off if what == "one" else np.nan
    elif what == "eager":
        eager[n // 2] += off
    elif what in ("tail", "noisy"):
        candidate[where if what == "tail" else slice(None)] += off * parts()[where if what == "tail" else slice(None)]
    elif what == "factor":
        candidate = candidate * (1 + off)
    facts, narrow = DTYPES["complex64" if is_complex else "float32"], np.complex64 if is_complex else np.float32
    runs = [RunValues(values.astype(narrow), facts) for values in (candidate, eager)]
    if what == "other dtype":
        runs[1] = RunValues(eager, DTYPES["complex128" if is_complex else "float64"])
    settled = {"thresholds": LIBRARY if library else DEFAULT, "flush": True}
    whole = judge(runs[0], reference, Noise(sigma), runs[1:], **settled)  # type: ignore[arg-type]
    brief = judge(runs[0], reference, Noise(sigma), runs[1:], brief=True, **settled)  # type: ignore[arg-type]
    assert brief.answer == whole.answer
    if brief.limits:
        assert brief == whole
    else:
        assert brief.reason == whole.reason
        for name in ("compared", "rms", "gain", "max"):
            assert math.isclose(
                getattr(brief.candidate, name), getattr(whole.candidate, name), rel_tol=1e-6, abs_tol=1e-9
            )


def test_most_healthy_tensors_are_judged_in_brief() -> None:
    rng, u = np.random.default_rng(0), 2.0**-24
    seen = []
    for n in (50, 5000, 100_000):
        reference, sigma = rng.standard_normal(n), np.full(n, 3.0)
        candidate, eager = ((reference + u * 3 * rng.standard_normal(n)).astype(np.float32) for _ in range(2))
        runs = [RunValues(values, SINGLE) for values in (candidate, eager)]
        seen.append(judge(runs[0], reference, Noise(sigma), runs[1:], thresholds=LIBRARY, brief=True))
    assert [(v.answer, v.limits) for v in seen] == [("ok", ())] * 3


def nothing_but_rounding(seed: int, factor: float) -> Verdict:
    """A gradient that is zero in exact arithmetic, such as that of a key's bias.

    The reference is 1e-17 or less, the runs are 1e-9: rounding on the way, which no noise of the inputs shows.
    """
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal(64) * 10.0 ** rng.uniform(-26, -17, 64)
    eager, candidate = rng.standard_normal((2, 64)) * 1e-9
    return verdict(candidate * factor, reference, eager)


def test_values_where_none_should_be_are_a_fault_unless_they_are_rounding() -> None:
    for seed in range(40):
        assert nothing_but_rounding(seed, 1.0).answer == "inconclusive", seed
    for factor in (1e3, 1e6):
        assert nothing_but_rounding(0, factor).answer == "candidate_worse"


def test_integers_agree_or_do_not() -> None:
    a = np.arange(6).reshape(2, 3)
    assert judge_exact(a, a.copy()).answer == "ok"
    b = a.copy()
    b[1, 0] += 5
    b[0, 1] -= 1
    found = judge_exact(b, a)
    assert (found.answer, found.worst, found.candidate.max, found.candidate.wrong_finite) == (
        "candidate_worse", (1, 0), 5.0, 2,
    )  # fmt: skip


def test_unsigned_booleans_and_large_integers() -> None:
    assert judge_exact(np.array([0], np.uint8), np.array([1], np.uint8)).candidate.max == 1.0
    assert judge_exact(np.array([True]), np.array([False])).answer == "candidate_worse"
    assert judge_exact(np.array([2**62 + 1]), np.array([2**62])).answer == "candidate_worse"
    assert judge_exact(np.empty((0,), bool), np.empty((0,), bool)).answer == "ok"


def test_floats_that_nothing_has_rounded() -> None:
    a = np.array([[1.0, -0.0, np.nan], [np.inf, 3e-5, 65504.0]], np.float16)
    same = np.array([[1.0, 0.0, np.nan], [np.inf, 0.0, 65504.0]], np.float16)
    assert judge_unrounded(RunValues(same, HALF), a).answer == "ok"
    assert judge_unrounded(RunValues(same, HALF), a.astype(np.float64)).answer == "ok"
    for index, value in {(0, 0): 1.001, (0, 1): 7e-5, (0, 2): 0.0, (1, 0): -np.inf, (1, 2): np.inf}.items():
        wrong = a.copy()
        wrong[index] = value
        found = judge_unrounded(RunValues(wrong, HALF), a)
        assert (found.answer, found.worst, found.candidate.wrong_finite) == ("candidate_worse", index, 1)
    assert judge_unrounded(RunValues(np.ones((), np.float16), HALF), np.zeros((), np.float16)).worst == ()
    assert judge_unrounded(RunValues(np.ones((0, 2), np.float16), HALF), np.ones((0, 2))).answer == "ok"
