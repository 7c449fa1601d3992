"""Does a case fail? It is run uncompiled, in float64, and compiled in a child process; and how far it may be off."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.program import Call, Program, RoundedRun
from graphprobe.diagnose.references import T, measure
from graphprobe.engine.forked_child import Outcome, isolated
from graphprobe.engine.reference import array_from, dtype_of, is_noisy
from graphprobe.engine.value_file import ValueFile
from graphprobe.findings import Kind
from graphprobe.internals.caches import bypassed
from graphprobe.internals.names import require
from graphprobe.judge.judging import PARTS, Difference, compare
from graphprobe.judge.observation import ObservationRecord, read
from graphprobe.judge.uncompiled import Reference, Spot, roundoff_of
from graphprobe.numerics.noise import Noise, scale, typical_magnitude
from graphprobe.numerics.verdict import tolerated

REPEATS = 3
SEED = 4711
NOISES = 1.2
"""What a repro allows: so many times the largest z that is tolerated, and four times the uncompiled program's error."""


@dataclass(frozen=True)
class CaseResult:
    """How a case did.

    Attributes:
        differences: of the first repetition that failed; empty if none did.
        died: signal name, or `timeout`; None if the process lived.
        rate: share of the repetitions that failed.
        reference: what it was compared with.
    """

    differences: list[Difference]
    died: str | None
    rate: float
    reference: Reference

    @property
    def fails(self) -> bool:
        """Whether it is wrong beyond doubt."""
        return self.died is not None or any(d.certain for d in self.differences)


def program_of(case: Case, file: ValueFile | None = None) -> Program:
    """The case as a program with fresh inputs; `file` takes the large values that are observed."""
    calls: list[Call] = [(captured.restore(), {}) for captured in case.calls]
    return Program(copy.deepcopy(case.graph), calls, grad=bool(case.grad), seed=SEED, effects=False, file=file)


def reference_of(case: Case) -> Reference:
    """The case uncompiled, twice, and in float64."""
    program, file = program_of(case), ValueFile()
    before = [[t.detach().clone() for t in call[0] if isinstance(t, torch.Tensor)] for call in program.calls]
    state = torch.get_rng_state()
    torch.manual_seed(SEED)
    fresh = torch.get_rng_state()
    eager = [[read(r) for r in program_of(case, file).run(lambda fn: fn)] for _ in range(2)]
    draws = not torch.equal(fresh, torch.get_rng_state())
    torch.set_rng_state(state)
    seen = [*(t for call in before for t in call), *program.state()]
    for result in eager[0]:
        seen += [v for v in (*result.outputs, *result.inputs) if isinstance(v, torch.Tensor)]
    roundoff = roundoff_of(seen)
    reference = Reference(eager, before=before, roundoff=roundoff, draws=draws, file=file)

    def run(step: Callable[[Program], T], kind: type[T]) -> T | None:
        try:
            if kind is RoundedRun:  # a mode that watches ops has ended processes
                outcome = isolated(lambda: step(program_of(case, file)))
                return None if outcome.value is None else msgspec.convert(outcome.value, kind)
            return step(program_of(case, file))
        except Exception:  # a program that cannot be widened: a custom kernel for one dtype, say
            return None

    measure(reference, run)
    return reference


@contextlib.contextmanager
def settings_of(case: Case) -> Iterator[None]:
    """torch configured as the case says."""
    with contextlib.ExitStack() as stack:
        for package, plain in case.configs.items():
            hooks = {key.partition(".")[2]: h for key, h in case.hooks.items() if key.startswith(f"{package}.")}
            if values := plain | {name: hook.value() for name, hook in hooks.items()}:
                config = require(f"torch._{package}", "config", purpose="the settings of a case")
                stack.enter_context(config.patch(values))
        yield


def run_compiled(
    case: Case, timeout_s: float, *, backend: Any = None, repeats: int = REPEATS, file: ValueFile | None = None
) -> Outcome:
    """The compiled case, `repeats` times in one child process; the value is a list of lists of CallRecords.

    Args:
        backend: makes what to compile with; None: the case's own backend.
        file: takes the large values; `read` is then for processes that have it.
    """

    def step() -> list[list[ObservationRecord]]:
        with contextlib.nullcontext() if case.caches else bypassed(), settings_of(case):
            torch.compiler.reset()
            program = program_of(case)
            chosen = case.backend if backend is None else backend()
            compiled = torch.compile(program.fn, backend=chosen, dynamic=case.dynamic)
            runs = []
            for _ in range(repeats):
                again = program_of(case, file)
                runs.append(dataclasses.replace(again, fn=program.fn).run(lambda _: compiled))
            return runs

    return isolated(step, timeout_s=timeout_s)


def check(
    case: Case,
    *,
    timeout_s: float = 300.0,
    reference: Reference | None = None,
    backend: Any = None,
    repeats: int = REPEATS,
) -> CaseResult:
    """Run the case and compare; arguments as for `run_compiled`."""
    reference = reference or reference_of(case)
    outcome = run_compiled(case, timeout_s, backend=backend, repeats=repeats, file=reference.file)
    if outcome.short_of_memory:
        return CaseResult([], None, 0.0, reference)
    if outcome.died:
        return CaseResult([], outcome.signal or "timeout", 1.0, reference)
    if outcome.raised is not None:
        kind: Kind = "crash_compile"
        return CaseResult([Difference(kind, 0, "", outcome.raised.short, log=outcome.raised.log)], None, 1.0, reference)
    runs = msgspec.convert(outcome.value, list[list[ObservationRecord]])
    failed: list[Difference] = []
    count = 0
    for run in runs:
        differences = compare(reference, [read(r) for r in run])
        if any(d.certain for d in differences):
            count += 1
            failed = failed or differences
    return CaseResult(failed, None, count / len(runs), reference)


def allowed(reference: Reference) -> list[list[torch.Tensor]]:
    """How far every floating-point leaf may be off, for each call; see `Case.allowed`."""
    result = []
    for i, call in enumerate(reference.eager[0]):
        leaves = [(part, j, value) for part in PARTS for j, value in enumerate(getattr(call, part))]
        result.append([_allowed(Spot(reference, i, part, j), value) for part, j, value in leaves if is_noisy(value)])
    return result


def _allowed(spot: Spot, value: torch.Tensor) -> torch.Tensor:
    facts = dtype_of(value)
    eager = array_from(value)
    if spot.reference.exact:
        small = (np.abs(eager) < facts.smallest_normal) & (eager != 0)
        return torch.full_like(value, facts.smallest_normal if small.any() else 0.0, dtype=torch.float64)
    wide = spot.array(spot.reference.wide)
    wide = wide if wide is not None and wide.shape == eager.shape else None
    centre = eager if wide is None else wide
    sigma = spot.sigma(wide) / facts.unit_roundoff
    typical, held = typical_magnitude(centre), tolerated(facts)
    noise = Noise(np.nan_to_num(sigma, posinf=0.0))
    d = scale(centre, noise, facts, typical, slice(None), c0=held.c0, flush=True)
    with np.errstate(invalid="ignore", over="ignore"):
        own = np.nan_to_num(np.abs(eager.astype(centre.dtype) - centre), posinf=0.0)
    limit = NOISES * held.floor_max * np.nan_to_num(d, posinf=0.0).reshape(eager.shape) + 4 * own
    return torch.from_numpy(np.ascontiguousarray(limit.astype(np.float64))).reshape(eager.shape)  # 0-d: made 1-d
