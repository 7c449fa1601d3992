"""`diagnose`: up the ladder rung by rung, each in a child process, and into the rung that fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from graphprobe.diagnose import steps
from graphprobe.diagnose.check_case import roundoff_of
from graphprobe.diagnose.compare_calls import Difference, Reference, compare_calls
from graphprobe.diagnose.dossier.writer import rewrite_finding
from graphprobe.diagnose.fallback import STAGE_OF_RUNG, unlocated
from graphprobe.diagnose.program import CallRecord, CallResult, Program, read
from graphprobe.diagnose.rungs import RungReport
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.isolate import Outcome, isolated
from graphprobe.engine.values import from_bytes
from graphprobe.errors import UsageError
from graphprobe.findings import STAGES, Diagnosis, Finding, LargestZ, Rung, kind_of_death
from graphprobe.internals import after_fork

log = logging.getLogger(__name__)

PERTURBED = 3
"""Float64 runs of the program on perturbed inputs."""

ONE_THREAD = (
    "torch had one thread: what goes wrong only where a loop is shared out among threads was not looked into; "
    "OMP_NUM_THREADS=2 gives it two, unless the program sets their number itself"
)
"""Of a healthy verdict for kernels on CPU: the number of threads is part of the code that Inductor writes."""


def diagnose(
    fn: Callable[..., Any],
    *args: Any,
    backend: str | Callable[..., Any] = "inductor",
    dynamic: bool | None = None,
    grad: bool | Literal["auto"] = "auto",
    calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] | None = None,
    between: Callable[[Any, int], Any] | None = None,
    budget_s: float | None = None,
    out: str | Path | None = None,
    on_step: Callable[[str], None] | None = None,
    **kwargs: Any,
) -> Diagnosis:
    """Find out whether `fn` computes the same compiled as uncompiled, and if not, which stage, pass and op is to blame.

    Everything runs in child processes made by fork, so that the caller's modules, arguments and random generators are
    left as they are and a crash of the compiled program is a finding. Where CUDA is in use a fork is impossible: then
    it runs in this process, and a crash ends it.

    Args:
        fn: function or module, not compiled (a compiled one is taken apart).
        args, kwargs: of the one call to make.
        backend: as `torch.compile` takes it. Inductor's stages are looked into one by one, another backend as a whole.
        dynamic: as `torch.compile` takes it.
        grad: "auto": forward, and backward where any input or parameter requires a gradient. True: the same. False:
            everything under `no_grad`.
        calls: `[(args, kwargs), …]` for a sequence of calls of one compiled function. `args` and `kwargs` are then left
            out, or are the first call's.
        between: called as `between(fn, i)` before call i, i ≥ 1.
        budget_s: no further step begins after this many seconds; what was not looked into is named in `notes`.
        out: folder for the dossiers; by default a new one under `graphprobe-diagnosis`.
        on_step: called with the name of each step before it begins: "uncompiled", "float64", then the rungs.

    Returns:
        the Diagnosis; its findings are proven by a piece of the program that fails on its own.

    Raises:
        UsageError: an argument is not of the kind named above.
    """
    program, compilation = _prepared(fn, args, kwargs, backend, dynamic, grad, calls, between, out)
    return Ladder(program, compilation, budget_s, on_step).climb()


def _prepared(
    fn: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    backend: Any,
    dynamic: bool | None,
    grad: Any,
    calls: Any,
    between: Any,
    out: str | Path | None,
) -> tuple[Program, Compilation]:
    if not callable(fn):
        raise UsageError(f"diagnose(fn={fn!r:.80}): fn must be a function or module")
    if calls is not None and (args or kwargs) and not _is_first(args, kwargs, calls):
        raise UsageError(
            "diagnose got arguments that are not those of the first of calls=…",
            hint="put them into the first call, or leave them out",
        )
    if grad not in (True, False, "auto"):
        raise UsageError(f"diagnose(grad={grad!r}): it takes True, False or 'auto'")
    if dynamic not in (True, False, None):
        raise UsageError(f"diagnose(dynamic={dynamic!r}): it takes True, False or None")
    if not isinstance(backend, str) and not callable(backend):
        raise UsageError(f"diagnose(backend={backend!r:.80}): it takes a name or a function, as torch.compile does")
    if isinstance(backend, str) and backend not in torch.compiler.list_backends(exclude_tags=()):
        hint = f"torch knows {', '.join(sorted(torch.compiler.list_backends(exclude_tags=())))}"
        raise UsageError(f"diagnose(backend={backend!r}): there is no such backend", hint=hint)
    listed = [(args, kwargs)] if calls is None else _checked_calls(calls)
    folder = Path(out) if out is not None else _new_folder()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"diagnose(out={str(folder)!r}): it exists and is not an empty folder")
    fn = _uncompiled(fn)
    program = Program(fn, listed, between, grad=False if grad is False else None)
    if grad is not False and program.wants_gradients():
        program = Program(fn, listed, between, grad=True)
    return program, Compilation(backend, dynamic, folder)


def _is_first(args: Sequence[Any], kwargs: Mapping[str, Any], calls: Any) -> bool:
    """Whether the very same objects are the first call's."""
    try:
        first, named = calls[0]
        same = len(first) == len(args) and all(a is b for a, b in zip(first, args, strict=True))
        return same and named.keys() == kwargs.keys() and all(named[key] is kwargs[key] for key in kwargs)
    except (TypeError, IndexError, ValueError, AttributeError):
        return False


def _checked_calls(calls: Any) -> list[tuple[Sequence[Any], Mapping[str, Any]]]:
    listed = list(calls)
    for i, call in enumerate(listed):
        shape = isinstance(call, (list, tuple)) and len(call) == 2
        if not shape or not isinstance(call[0], (list, tuple)) or not isinstance(call[1], Mapping):
            raise UsageError(f"diagnose(calls=…): call {i} is {call!r:.80}, expected (args, kwargs)")
    if not listed:
        raise UsageError("diagnose(calls=[]): there must be at least one call")
    return listed


def _new_folder() -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    return Path("graphprobe-diagnosis").resolve() / stamp


def _uncompiled(fn: Any) -> Any:
    """What `torch.compile` was given."""
    fn = getattr(fn, "_orig_mod", fn)
    return getattr(fn, "_torchdynamo_orig_callable", fn)


class Ladder:
    """One diagnosis under way."""

    def __init__(
        self,
        program: Program,
        compilation: Compilation,
        budget_s: float | None,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        self.program, self.compilation, self.budget_s = program, compilation, budget_s
        self.on_step = on_step or (lambda name: None)
        self.started = time.monotonic()
        self.result = Diagnosis(verdict="undecided")
        self.failing: dict[str, list[Difference]] = {}
        self.reports: dict[str, RungReport] = {}
        self.reference: Reference | None = None

    def climb(self) -> Diagnosis:
        """Run every rung and settle the verdict."""
        after_fork.preload()  # once here, not in each child
        self.reference = reference = self._reference()
        if reference is not None:
            self._rungs(reference)
            self._settle()
            self.result.rungs = [self._state(name) for name in STAGE_OF_RUNG if self._has_rung(name)]
            for finding in self.result.findings:
                rewrite_finding(finding)
        self.result.seconds = round(time.monotonic() - self.started, 2)
        return self.result

    def step(self, step: Callable[[], Any]) -> Outcome:
        """Run a step in a child process."""
        outcome = isolated(step, timeout_s=self.compilation.timeout_s)
        log.info("%s: %.1f s", getattr(step, "__qualname__", step), outcome.seconds)
        return outcome

    def _late(self, what: str) -> bool:
        if self.budget_s is None or time.monotonic() - self.started < self.budget_s:
            return False
        self.result.notes.append(f"{what} was not looked into: the budget of {self.budget_s:g} s is spent")
        return True

    def _reference(self) -> Reference | None:
        self.on_step("uncompiled")
        outcomes = [self.step(lambda: steps.eager(self.program)) for _ in range(2)]
        if any(o.died or o.raised is not None for o in outcomes):
            bad = next(o for o in outcomes if o.died or o.raised is not None)
            why = bad.raised.message if bad.raised is not None else f"it was ended by {bad.signal or 'its time limit'}"
            self.result.notes.append(f"the uncompiled program cannot be run: {why}")
            return None
        reports = [msgspec.convert(o.value, steps.EagerReport) for o in outcomes]
        runs: list[list[CallResult]] = [[read(r) for r in report.calls] for report in reports]
        before = from_bytes(*reports[0].before).restore()
        values = [v for call in runs[0] for v in (*call.outputs, *call.inputs)]
        roundoff = roundoff_of([v for v in [*before[0], *values] if isinstance(v, torch.Tensor)])
        reference = Reference(runs, before=before, roundoff=roundoff, draws=reports[0].moves)
        if reports[0].draws:
            self.compilation = replace(self.compilation, align_random=True)
            self.result.notes.append("the program draws random numbers: compiled random ops were made to draw as eager")
        self._widen(reference)
        return reference

    def _widen(self, reference: Reference) -> None:
        """Float64 runs, plain and perturbed, in one child."""
        self.on_step("float64")

        def wide() -> list[list[CallRecord]]:
            seeds = [None, *range(PERTURBED)]
            return [isolated_wide(self.program, seed, reference.roundoff) for seed in seeds]

        outcome = self.step(wide)
        if outcome.value is None:
            self.result.notes.append("the program could not be run in float64: numbers are judged op by op only")
            return
        runs = [[read(r) for r in run] for run in msgspec.convert(outcome.value, list[list[CallRecord]])]
        if all(r.raised is None for run in runs for r in run) and len(runs[0]) == len(reference.eager[0]):
            reference.wide, reference.perturbed = runs[0], runs[1:]

    def _rungs(self, reference: Reference) -> None:
        listed: list[tuple[str, Callable[[], RungReport]]] = [
            ("dynamo", lambda: steps.dynamo(self.program, self.compilation)),
        ]
        if self.compilation.is_inductor:
            listed += [
                ("aot", lambda: steps.aot(self.program, self.compilation)),
                ("passes", lambda: steps.passes(self.program, self.compilation)),
                ("kernels", self._kernels),
                ("plain", lambda: steps.plain(self.program, self.compilation)),
            ]
        else:
            listed.append(("kernels", lambda: steps.plain(self.program, self.compilation)))
        for name, step in listed:
            if name == "plain" and self._wrong("kernels"):
                continue  # nothing to learn from doing it again unobserved
            if not self._late(name):
                self._rung(name, step, reference)

    def _kernels(self, *, expose: bool = True) -> RungReport:
        accused = bool(self.result.findings)
        return steps.kernels(self.program, self.compilation, expose=expose, only_alone=accused)

    def _wrong(self, name: str) -> bool:
        return any(d.certain for d in self.failing.get(name, ()))

    def _rung(self, name: str, step: Callable[[], RungReport], reference: Reference) -> None:
        self.on_step(name)
        outcome = self.step(step)
        log.info("rung %s: %.1f s", name, outcome.seconds)
        if outcome.died and name == "kernels" and self.compilation.is_inductor:
            # Showing every value is a compilation of its own: is it that one which dies?
            again = self.step(partial(self._kernels, expose=False))
            if not again.died:
                self.result.notes.append("the kernels died when compiled to show their values, and not otherwise")
            outcome = again
        if outcome.died:
            kind = kind_of_death(outcome.signal)
            text = f"the process was ended by {outcome.signal or 'its time limit'}"
            self.failing[name] = [Difference(kind, 0, "", text)]
            return
        if outcome.raised is not None:
            log.info("%s: %s", name, outcome.raised.trace)
            self.result.notes.append(f"{name} could not be looked into: {outcome.raised.line}")
            return
        report = msgspec.convert(outcome.value, RungReport)
        self.reports[name] = report
        self.failing[name] = compare_calls(reference, [read(r) for r in report.calls])
        self.result.compiles += report.compiles
        self.result.notes += report.notes
        self.result.ruled_out += report.right
        self.result.findings += report.findings
        if report.largest.z > self.result.largest_z.z:
            self.result.largest_z = report.largest
        if name == "passes":
            self._without(report.findings)

    def _without(self, findings: list[Finding]) -> None:
        """Leave the accused passes out and look again: is the program right then, or does another do the same?"""
        accused: set[tuple[str, str | None]] = {(f.stage, f.pass_) for f in findings if f.pass_}
        latest = list(findings)
        while accused and latest and not self._late("what the passes do without the accused ones"):
            skip = [(stage, name) for stage, name in accused if name]
            outcome = self.step(partial(steps.passes, self.program, self.compilation, skip=skip))
            if outcome.died or outcome.raised is not None:
                return
            report = msgspec.convert(outcome.value, RungReport)
            if not self.differences(report):
                for finding in latest:
                    finding.reason += " With the pass left out, the graphs compute what they should."
            latest = [f for f in report.findings if f.pass_ and (f.stage, f.pass_) not in accused]
            self.result.findings += latest
            accused |= {(f.stage, f.pass_) for f in latest}

    def _settle(self) -> None:
        last = self.failing.get("plain" if self._wrong("plain") else "kernels")
        if last is None:
            self.result.notes.append("the compiled program itself was not run")
        certain = {name: [d for d in found if d.certain] for name, found in self.failing.items()}
        first = next((name for name in STAGE_OF_RUNG if certain.get(name)), None)
        for name in STAGE_OF_RUNG:
            if name in certain and not certain[name]:
                self.result.ruled_out.append(f"{name}: the program computes the same on this rung")
        shown = certain.get("kernels") or certain.get("plain") or []
        if first is not None and shown and not self._explained(first):
            self.result.findings += unlocated(self, first, certain[first])
        self.result.findings.sort(key=lambda f: STAGES.index(f.stage) if f.stage in STAGES else len(STAGES))
        unproven = [text for report in self.reports.values() for text in report.unproven]
        self.result.notes += [f"suspected, not proven: {text}" for text in unproven]
        if self.result.findings:
            self.result.verdict = "fault"
        elif shown or unproven or last is None or any(not d.certain for d in last):
            self.result.verdict = "undecided"
            self.result.notes += [f"{d.kind} in {d.where}: {d.text}" for d in last or []]
        else:
            self.result.verdict = "healthy"
            if self.compilation.is_inductor and self.reference is not None and in_one_thread(self.reference):
                self.result.notes.append(ONE_THREAD)

    def _has_rung(self, name: str) -> bool:
        return self.compilation.is_inductor or name in ("dynamo", "kernels")

    def _state(self, name: Any) -> Rung:
        found = self.failing.get(name)
        if found is None:
            return Rung(name=name, state="not_run")
        worst = next((d for d in found if d.certain), found[0] if found else None)
        if worst is None:
            return Rung(name=name, state="right")
        place = f" in {worst.where}" if worst.where else ""
        return Rung(
            name=name, state="wrong" if worst.certain else "unsure", difference=f"{worst.kind}{place}: {worst.text}"
        )

    def _explained(self, rung: str) -> bool:
        """Whether a finding is of a stage that the rung has: later faults do not make it fail."""
        last = STAGES.index(STAGE_OF_RUNG[rung])
        return any(f.stage not in STAGES or STAGES.index(f.stage) <= last for f in self.result.findings)

    def differences(self, report: RungReport) -> list[Difference]:
        """What is certainly wrong with a rung's calls."""
        assert self.reference is not None
        found = compare_calls(self.reference, [read(r) for r in report.calls])
        return [d for d in found if d.certain]


def in_one_thread(reference: Reference) -> bool:
    """Whether loops on a CPU were run, and no second thread could have a part in one."""
    values = [v for call in reference.eager[0] for v in (*call.outputs, *call.inputs) if isinstance(v, torch.Tensor)]
    return torch.get_num_threads() == 1 and any(v.device.type == "cpu" for v in values)


def isolated_wide(program: Program, seed: int | None, roundoff: float) -> list[CallRecord]:
    """One float64 run in a child of its own: it widens parameters in place."""
    outcome = isolated(lambda: program.run_wide(seed, roundoff))
    if outcome.value is None:
        raise RuntimeError(outcome.raised.message if outcome.raised is not None else "the process died")
    return msgspec.convert(outcome.value, list[CallRecord])


__all__ = ["Diagnosis", "Finding", "LargestZ", "diagnose"]
