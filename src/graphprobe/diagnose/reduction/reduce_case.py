"""From a failing case to the smallest one that fails the same way, with its repro on disk from the first moment on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.check_case import reference_of
from graphprobe.diagnose.dossier.long import owns_of
from graphprobe.diagnose.dossier.short import short_repros
from graphprobe.diagnose.dossier.writer import first_shown, run_repro
from graphprobe.diagnose.reduction import signature as sign
from graphprobe.diagnose.reduction.case_folder import JOURNAL, REPRO, CaseFolder, State, finding_of
from graphprobe.diagnose.reduction.oracle import CommandOracle, CompilerOracle
from graphprobe.diagnose.reduction.problem import FxCandidate, Problem, combined, shrinks_for
from graphprobe.diagnose.reduction.service import Service, allowed_differences
from graphprobe.engine.memory import free_memory
from graphprobe.errors import EXIT_FOUND, EXIT_OK, UsageError
from graphprobe.findings import Finding
from graphprobe.reduce.gate import Budget
from graphprobe.reduce.journal import Journal
from graphprobe.reduce.outcome import Answer, OracleVerdict, Progress
from graphprobe.reduce.reducer import INTERRUPTED, Reduction, reduce

TIMEOUT_S = 300.0
STALE_S = 5.0
"""After so long the repro on disk is replaced by that of the best case so far; at the end in any case."""

REPRO_S = 300.0


@dataclass(frozen=True)
class CaseReduction:
    """What came of a reduction.

    Attributes:
        before, after: calls in the graph.
    """

    reduction: Reduction[FxCandidate]  # of the search
    folder: Path  # where everything lies; the repro in `repro`
    case: Case | None  # the smallest failing case; None when the case does not fail
    finding: Finding | None  # what its dossier says
    before: int
    after: int
    problems: list[str]  # why the repro cannot be run elsewhere, one line each
    repro_exit: int | None  # exit code of the repro in a process of its own: 1 while the fault is there; None: not run
    by_command: bool = False  # a command of the user's says what fails

    @property
    def signature(self) -> str:
        """Of the failure; empty when there was none."""
        return self.reduction.signature

    @property
    def unproven(self) -> str:
        """Why the repro of a case that fails is no proof; empty where it is one, or a command of the user's judged."""
        if not self.reduction.failed or (self.by_command and not self.problems) or self.repro_exit == EXIT_FOUND:
            return ""
        missing = [*self.problems, *(self.case.unsaved_settings if self.case is not None else ())]
        if missing:
            return "; ".join(missing)
        if self.repro_exit == EXIT_OK:
            return "run by itself, the repro shows no fault: it needs something of this process that cannot be saved"
        if self.reduction.stopped == INTERRUPTED:
            return "the search was interrupted, and the repro not tried"
        if self.repro_exit is None:
            return "the repro does not hold the backend"
        return "run by itself, the repro cannot tell; if it needs operators of a program, give it --import MODULE"


class _Saver:
    """Keeps the repro of the best case on disk, written as soon as the one that is there is old."""

    def __init__(self, folder: CaseFolder, problem: Problem) -> None:
        self.folder, self.problem = folder, problem
        self.best: FxCandidate | None = None
        self.written: FxCandidate | None = None
        self.case: Case | None = None
        self.finding: Finding | None = None
        self.problems: list[str] = []
        self._when = 0.0

    def on_exit(self, kind: object, error: BaseException | None, trace: object) -> None:
        """What is left by an exception leaves the best case on disk."""
        if error is not None:
            with contextlib.suppress(Exception):
                self.write()

    def on_best(self, candidate: FxCandidate) -> None:
        """Take note of a new best case."""
        self.best = candidate
        if time.monotonic() - self._when > STALE_S:
            self.write()

    def write(self, *, rate: float = 1.0) -> None:
        """Write the repro of the best case, unless it is there."""
        if self.best is None or (self.best is self.written and rate >= 1):
            return
        signature = self.folder.state.signature
        kind = sign.kind_of(signature) if signature else self.problem.case.kind
        limits = []
        if sign.needs_values(signature):
            limits = allowed_differences(self.best.problem, self.best.recipe, timeout_s=TIMEOUT_S)
        case = self.best.problem.case_of(self.best.recipe)
        case = replace(case, kind=kind, allowed=limits)
        finding = finding_of(case, f"Reduced to {self.best.calls} calls. The failure: {signature}.", rate=rate)
        self.problems = self.folder.save_repro(case, finding)
        finding.dossier = str(self.folder.path / REPRO)
        self.case, self.finding, self.written = case, finding, self.best
        self._when = time.monotonic()

    def shorten(self, took_s: float) -> bool:
        """Put a short repro in the place of the long one, where one shows the fault alone.

        Args:
            took_s: how long the longest question took that did not hang.
        """
        if self.case is None or self.finding is None:
            return False
        parts = ("outputs", "inputs", "gradients")
        scripts = short_repros(self.case, reference_of(self.case), self.finding, parts=parts, took_s=took_s)
        shown = first_shown(scripts, self.finding.stage)
        if shown is not None:
            self.problems = self.folder.save_repro(self.case, self.finding, shown)
        return shown is not None


def reduce_case(
    case: Case,
    folder: Path,
    *,
    check: str | None = None,
    fail_regex: str | None = None,
    backend: Callable[[], Any] | None = None,
    timeout_s: float = TIMEOUT_S,
    memory_bytes: int | None = None,
    budget_s: float | None = None,
    max_calls: int | None = None,
    resume: bool = False,
    seed: int = 0,
    hints: Sequence[str] = (),
    tried: tuple[Answer, Problem] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> CaseReduction:
    """Reduce a case. Arguments that are not told of here are as `graphprobe.reduce` has them.

    Args:
        folder: for the original case, the journal and the repro; new or empty, except with `resume`.
        backend: makes what to compile with, for backends without a name.
        tried: what the case was just seen to do, and the case with its values: neither is found out again.

    Ctrl-C ends it with what was found.

    Raises:
        UsageError: the case cannot be run uncompiled, or the folder is not usable.
    """
    first, problem = tried if tried is not None else (None, Problem.of(case, timeout_s=timeout_s))
    whole = problem.whole()
    if whole is None:
        raise UsageError("the graph has no calls that could be left out, or cannot be rebuilt")
    identity = combined(whole.digest, case.backend, case.grad, case.dynamic, check, fail_regex, _settings(case))
    state = State(identity=identity, check=check, fail_regex=fail_regex)
    place = CaseFolder.open(folder, case, state, resume=resume)
    if backend is None and case.own_backend is not None:
        backend = case.own_backend.value
    service = Service(problem, memory_bytes=memory_bytes or free_memory(), backend=backend)
    with contextlib.ExitStack() as stack:
        oracle = _oracle(service, stack, state=place.state, timeout_s=timeout_s, first=first)
        journal = stack.enter_context(Journal.open(folder / JOURNAL, identity=identity, resume=resume))
        saver = _Saver(place, problem)
        stack.push(saver.on_exit)
        reduction: Reduction[FxCandidate] = reduce(
            problem,
            _noting(oracle, place),
            shrinks=shrinks_for(problem),
            rebase=lambda candidate: service.problem_based_on(candidate.recipe, timeout_s=timeout_s),
            signature=place.state.signature,
            hints=_indices(problem, hints),
            seed=seed,
            budget=Budget(max_calls, budget_s),
            journal=journal,
            on_best=saver.on_best,
            on_progress=on_progress,
        )
    alone = backend is None or case.own_backend is not None  # the repro has all that it needs
    return _finished(reduction, saver, whole.calls, run=alone, oracle=oracle)


def _oracle(
    service: Service, stack: contextlib.ExitStack, *, state: State, timeout_s: float, first: Answer | None
) -> CompilerOracle | CommandOracle:
    """The judge; `stack` ends its worker."""
    pattern = state.fail_regex
    if state.check is not None:
        return CommandOracle(state.check, timeout_s=timeout_s, fail_regex=pattern)
    first = first if pattern is None else None
    oracle = CompilerOracle(service, timeout_s=timeout_s, wanted=state.signature, fail_regex=pattern, first=first)
    return stack.enter_context(contextlib.closing(oracle))


def _noting(oracle: CompilerOracle | CommandOracle, place: CaseFolder) -> Callable[[FxCandidate], Answer]:
    """The oracle; the folder takes note of the first failure, which is the one that is looked for."""

    def ask(candidate: FxCandidate) -> Answer:
        answer = oracle(candidate)
        if answer.verdict is OracleVerdict.FAILS and not place.state.signature:
            place.found(answer.signature)
        return answer

    return ask


def _settings(case: Case) -> list[str]:
    texts = {key: own.text for key, own in owns_of(case).items() if key != "backend"}
    return [repr(sorted(c.items())) for c in (*case.configs.values(), *([texts] if texts else []))]


def _indices(problem: Problem, names: Sequence[str]) -> list[int]:
    """The units of these nodes."""
    found = [problem.unit_of(name) for name in names]
    unknown = [name for name, i in zip(names, found, strict=True) if i is None]
    if unknown:
        raise UsageError(f"hints: the graph has no call named {', '.join(unknown)}")
    return list(dict.fromkeys(i for i in found if i is not None))


def _finished(
    reduction: Reduction[FxCandidate],
    saver: _Saver,
    before: int,
    *,
    run: bool,
    oracle: CompilerOracle | CommandOracle,
) -> CaseReduction:
    by_command = isinstance(oracle, CommandOracle)
    code: int | None = None
    folder = saver.folder.path
    if reduction.failed:
        saver.best = reduction.case
        saver.folder.found(reduction.signature)
        flaky = reduction.rate is not None and reduction.rate < 1
        saver.write(rate=max(reduction.rate or 0.0, 0.01) if flaky else 1.0)
        run = run and not saver.problems and reduction.stopped != INTERRUPTED
        if run and saver.shorten(oracle.longest_s if isinstance(oracle, CompilerOracle) else 0.0):
            code = EXIT_FOUND
        elif run and not by_command:
            code = run_repro(folder / REPRO, timeout_s=REPRO_S)
    return CaseReduction(
        reduction=reduction,
        folder=folder,
        case=saver.case,
        finding=saver.finding,
        before=before,
        after=reduction.case.calls,
        problems=saver.problems,
        repro_exit=code,
        by_command=by_command,
    )
