"""Holds the calls of one rung of the ladder against the uncompiled program's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from graphprobe.diagnose.local import tolerated
from graphprobe.diagnose.program import CallResult
from graphprobe.engine.isolate import Raised
from graphprobe.engine.reference import array_from, dtype_of, is_noisy
from graphprobe.engine.values import same_bits
from graphprobe.findings import Kind
from graphprobe.numerics.divergence import Run
from graphprobe.numerics.exact import judge_exact
from graphprobe.numerics.noise import Array, Noise, sigma_from_runs
from graphprobe.numerics.verdict import judge

COMPILING = re.compile(r"_compile_fx_inner|convert_frame\.py|compile_to_module|_compile_fx_main|fx_codegen_and_compile")
"""In a traceback: the exception came while something was compiled."""


@dataclass(frozen=True)
class Difference:
    """One way in which a call differs from the uncompiled one.

    Attributes:
        kind: of the finding it becomes.
        call: number of the call.
        where: `outputs[0]`, `inputs[2]`, `gradients[1]`, or empty.
        text: with figures.
        z: largest error in units of noise; inf for what is no number.
        certain: False: numbers differ by more than rounding, and there was no reference to judge them by.
    """

    kind: Kind
    call: int
    where: str
    text: str
    z: float = float("inf")
    certain: bool = True


@dataclass
class Reference:
    """What the uncompiled program gives.

    Attributes:
        eager: its calls; the first run is what is compared with, the others are as legitimate.
        wide: the same in float64, None where that was impossible or means nothing.
        perturbed: float64 runs on perturbed inputs.
        before: the inputs before each call.
        roundoff: u of the coarsest dtype among inputs and outputs.
        draws: random numbers are drawn, in the calls or between them.
    """

    eager: list[list[CallResult]]
    wide: list[CallResult] | None = None
    perturbed: list[list[CallResult]] = field(default_factory=list)
    before: list[list[Any]] = field(default_factory=list)
    roundoff: float = 2.0**-24
    draws: bool = False


def compare_calls(reference: Reference, got: Sequence[CallResult]) -> list[Difference]:
    """Every difference, call by call; empty when all are as they should be."""
    found: list[Difference] = []
    for i, result in enumerate(got):
        found += _compare_call(reference, i, result)
    return found


def _compare_call(reference: Reference, i: int, got: CallResult) -> list[Difference]:
    eager = reference.eager[0][i]
    if eager.raised is not None or got.raised is not None:
        return _exceptions(eager.raised, got.raised, i)
    found: list[Difference] = []
    for part in ("outputs", "inputs", "gradients"):
        expected, mine = getattr(eager, part), getattr(got, part)
        if len(expected) != len(mine):
            kind: Kind = "wrong_gradient" if part == "gradients" else "wrong_shape"
            found.append(Difference(kind, i, part, f"{len(mine)} {part}, uncompiled {len(expected)}"))
            continue
        for j, (e, m) in enumerate(zip(expected, mine, strict=True)):
            found += _compare_value(reference, i, part, j, e, m)
    if eager.shared != got.shared:
        lost, new = eager.shared - got.shared, got.shared - eager.shared
        what = [f"{len(lost)} shared memories are lost"] if lost else []
        what += [f"{len(new)} are new"] if new else []
        found.append(Difference("aliasing", i, "outputs", ", ".join(what)))
    return found


def _exceptions(eager: Raised | None, got: Raised | None, call: int) -> list[Difference]:
    if eager is not None and got is not None:
        return []
    if got is None and eager is not None:
        text = f"uncompiled it raises {eager.type}: {_short(eager.message)}; compiled it does not"
        return [Difference("missing_exception", call, "", text)]
    assert got is not None
    kind: Kind = "crash_compile" if while_compiling(got) else "crash_runtime"
    return [Difference(kind, call, "", f"{got.type}: {_short(got.message)}")]


def while_compiling(raised: Raised) -> bool:
    """Whether the exception came from a compilation, by its type or its traceback."""
    return raised.type.endswith(("BackendCompilerFailed", "InductorError")) or bool(COMPILING.search(raised.trace))


def _short(message: str) -> str:
    """The first two lines of a message: a wrapper's first line often says only that there is a second."""
    return " ".join(line.strip() for line in message.strip().splitlines()[:2])[:240]


def _compare_value(reference: Reference, call: int, part: str, j: int, e: Any, m: Any) -> list[Difference]:
    where = f"{part}[{j}]"
    if not isinstance(e, torch.Tensor) or not isinstance(m, torch.Tensor):
        if (e is None and m is None) or not same_bits(e, m):
            return []
        if _unsteady(reference, call, part, j, e):
            return []
        kind: Kind = "wrong_gradient" if part == "gradients" else "wrong_value"
        return [Difference(kind, call, where, f"{_brief(m)}, uncompiled {_brief(e)}")]
    if e.dtype == torch.float64 and e.dim() == 0 and _unsteady(reference, call, part, j, e):
        return []
    if e.dtype != m.dtype:
        return [Difference("wrong_dtype", call, where, f"dtype {m.dtype}, uncompiled {e.dtype}")]
    if e.shape != m.shape:
        return [Difference("wrong_shape", call, where, f"shape {tuple(m.shape)}, uncompiled {tuple(e.shape)}")]
    found = []
    if part == "outputs" and strides(e) != strides(m):
        found.append(Difference("wrong_stride", call, where, f"stride {m.stride()}, uncompiled {e.stride()}"))
    if not same_bits(e, m):
        return found
    verdict, text, z = _judge(reference, call, part, j, e, m)
    if verdict != "ok":
        kind = _kind_of_value(reference, call, part, j, e, m)
        found.append(Difference(kind, call, where, text, z, certain=verdict == "worse"))
    return found


def _unsteady(reference: Reference, call: int, part: str, j: int, e: Any) -> bool:
    """Whether the uncompiled program gives another value each time, as of a clock; a float of an object is a tensor."""
    runs = [getattr(run[call], part) for run in reference.eager[1:]]
    return any(j >= len(values) or bool(same_bits(e, values[j])) for values in runs)


def strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides that address something."""
    if tensor.numel() == 0:
        return ()
    return tuple(step if size > 1 else 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _kind_of_value(reference: Reference, call: int, part: str, j: int, e: torch.Tensor, m: torch.Tensor) -> Kind:
    if part == "gradients":
        return "wrong_gradient"
    if part == "inputs" and call < len(reference.before) and j < len(reference.before[call]):
        before = reference.before[call][j]
        if isinstance(before, torch.Tensor) and before.shape == m.shape and not same_bits(before, m):
            return "lost_mutation"
    if is_noisy(e) and not all(torch.equal(test(e), test(m)) for test in (torch.isfinite, torch.isnan)):
        return "nonfinite"
    return "wrong_value"


def _judge(
    reference: Reference, call: int, part: str, j: int, e: torch.Tensor, m: torch.Tensor
) -> tuple[Literal["ok", "worse", "unsure"], str, float]:
    if not is_noisy(e):
        verdict = judge_exact(array_from(m), array_from(e))
        if reference.roundoff > 0 and _depends_on_noise(reference, call, part, j, e, m):
            return "ok", "", 0.0
        return "worse", verdict.reason, float("inf")
    wide = _wide(reference.wide, call, part, j)
    runs = [w for p in reference.perturbed if (w := _wide(p, call, part, j)) is not None]
    legitimate = [Run(array_from(_value(run, call, part, j)), dtype_of(e)) for run in reference.eager]
    if wide is None or wide.shape != tuple(e.shape) or _is_another(wide, runs, legitimate[0].values, reference):
        return _without_reference(e, m, reference.roundoff)
    facts = dtype_of(e)
    u = max(facts.unit_roundoff, reference.roundoff)
    noise = Noise(sigma_from_runs(wide, runs, reference.roundoff) * (u / facts.unit_roundoff))
    answer = judge(Run(array_from(m), facts), wide, noise, legitimate, thresholds=tolerated(facts), flush=True)
    if answer.answer == "candidate_worse":
        return "worse", answer.reason, answer.candidate.max if answer.candidate.max else float("inf")
    return "ok", answer.reason, answer.candidate.max


OTHER_RMS, OTHER_MOVES = 1e-3, 32.0
"""The float64 run drew other numbers if it is apart from the uncompiled one by this relative rms, and by so many times
what the perturbed inputs move."""


def _is_another(wide: Array, runs: Sequence[Array], eager: Array, reference: Reference) -> bool:
    """Whether the float64 run drew other numbers than the program does, so that it says nothing about it."""
    if not reference.draws:
        return False
    finite = np.isfinite(wide) & np.isfinite(eager)
    size = _rms(wide[finite])
    if size == 0.0:
        return False
    gap = _rms(eager[finite].astype(wide.dtype) - wide[finite]) / size
    moved = max(
        (_rms(np.nan_to_num(run[finite] - wide[finite], posinf=0, neginf=0)) / size for run in runs), default=0.0
    )
    return gap > max(OTHER_RMS, OTHER_MOVES * max(moved, reference.roundoff))


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.abs(values) ** 2))) if values.size else 0.0


def _value(run: Sequence[CallResult], call: int, part: str, j: int) -> Any:
    return getattr(run[call], part)[j]


def _wide(run: Sequence[CallResult] | None, call: int, part: str, j: int) -> Array | None:
    if run is None or call >= len(run) or run[call].raised is not None:
        return None
    values = getattr(run[call], part)
    if j >= len(values) or not isinstance(values[j], torch.Tensor):
        return None
    return array_from(values[j])


def _depends_on_noise(reference: Reference, call: int, part: str, j: int, e: torch.Tensor, m: torch.Tensor) -> bool:
    """Whether exact values move when the floating-point inputs do, everywhere that they are wrong."""
    moved = torch.zeros(e.shape, dtype=torch.bool)
    for run in [*reference.perturbed, *([reference.wide] if reference.wide else []), *reference.eager[1:]]:
        if call < len(run) and run[call].raised is None:
            value = getattr(run[call], part)[j]
            if isinstance(value, torch.Tensor) and value.shape == e.shape:
                moved |= (value.cpu() != e.cpu()).cpu()
    return bool(moved[(e.cpu() != m.cpu())].all())


def _without_reference(
    e: torch.Tensor, m: torch.Tensor, roundoff: float
) -> tuple[Literal["ok", "worse", "unsure"], str, float]:
    """Only the class of each element is certain."""
    if not torch.equal(torch.isnan(e), torch.isnan(m)) or not torch.equal(torch.isinf(e), torch.isinf(m)):
        return "worse", "NaN or infinity where the uncompiled program has a number, or the reverse", float("inf")
    finite = torch.isfinite(e)
    if not bool(finite.any()):
        return "ok", "", 0.0
    a, b = e[finite].to(torch.float64), m[finite].to(torch.float64)
    gap = float((a - b).square().mean().sqrt() / a.square().mean().sqrt().clamp_min(1e-300))
    if gap <= 256 * roundoff:
        return "ok", "", 0.0
    return "unsure", f"relative rms difference {gap:.3g}; there is no float64 reference to judge it by", gap / roundoff


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {tuple(value.shape)}"
    return repr(value)[:80]
