"""Does a piece fail, and how? A process that has compiled once already forks a child for each question.

A child that a fork makes of a warm process compiles a small graph in a tenth of the time that a cold one takes, and
nothing that it does reaches the next question: torch's caches and counters, random generators, settings, a crash.
"""

from __future__ import annotations

import contextlib
import mmap
import re
import resource
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.fx import symbolic_trace

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.check_case import allowed, program_of, reference_of, settings_of
from graphprobe.diagnose.dossier.case_check import whole_or_directly
from graphprobe.diagnose.reduction import signature as sign
from graphprobe.diagnose.reduction.edits import NotApplicable, Recipe
from graphprobe.diagnose.reduction.problem import Problem
from graphprobe.diagnose.reduction.recording import record
from graphprobe.engine.forked_child import Outcome, isolated
from graphprobe.engine.values import capture, from_bytes, to_bytes
from graphprobe.errors import Raised, UsageError, raised_from
from graphprobe.internals import after_fork
from graphprobe.internals.caches import bypassed
from graphprobe.internals.names import require
from graphprobe.judge.judging import Difference, compare, identical
from graphprobe.judge.observation import Observation, read
from graphprobe.judge.uncompiled import Reference
from graphprobe.reduce.outcome import Answer, OracleVerdict


class Question(msgspec.Struct, frozen=True):
    """What is asked of a piece."""

    wanted: str = ""  # signature of the failure that is looked for; empty: any
    fail_regex: str | None = None  # what the text of a failure must match to be the one that is looked for


class Job(msgspec.Struct, frozen=True):
    """A question about a piece, to be answered within `timeout_s` seconds."""

    recipe: Recipe
    question: Question
    timeout_s: float


class Service:
    """Answers jobs; one process holds it.

    Args:
        memory_bytes: what a child may take beyond what this process has; None: no bound.
        backend: makes what to compile with; None: the case's own backend.
    """

    def __init__(
        self, problem: Problem, *, memory_bytes: int | None = None, backend: Callable[[], Any] | None = None
    ) -> None:
        self.memory_bytes, self.backend = memory_bytes, backend
        self.original = problem
        self._problems: dict[Recipe | None, Problem] = {None: problem}

    def handle(self, job: bytes) -> bytes:
        """The answer to a job, both as JSON."""
        return msgspec.json.encode(self.answer(msgspec.json.decode(job, type=Job)))

    def problem_based_on(self, base: Recipe | None, *, timeout_s: float) -> Problem:
        """A piece as a problem of its own, so that edited calls can be left out; None: the original.

        Raises:
            UsageError, NotApplicable: it cannot be built or run.
        """
        if base is not None and base not in self._problems:
            case = self.problem_based_on(base.base, timeout_s=timeout_s).case_of(base)
            self._problems[base] = Problem(case, record(case, timeout_s=timeout_s), base)
        return self._problems[base]

    def answer(self, job: Job) -> Answer:
        """Judge a piece in a child process."""
        try:
            problem = self.problem_based_on(job.recipe.base, timeout_s=job.timeout_s)
        except (UsageError, NotApplicable) as error:
            return unresolved(f"it cannot be built: {error}")
        compiling = mmap.mmap(-1, 1)  # which the child shares

        def step() -> Answer:
            limit(self.memory_bytes)
            try:
                case = problem.case_of(job.recipe)
            except NotApplicable as error:
                return unresolved(f"it cannot be built: {error}")
            return judge(case, job.question, lambda: compiling.write(b"1"), backend=self.backend)

        with compiling:
            outcome = isolated(step, timeout_s=job.timeout_s)
            return msgspec.structs.replace(_answer(outcome, compiling=bool(compiling[0])), seconds=outcome.seconds)


def _answer(outcome: Outcome, *, compiling: bool) -> Answer:
    if outcome.died:
        how = "did not end in its time" if outcome.timed_out else f"was killed by {outcome.signal}"
        if not compiling:
            return unresolved(f"the uncompiled run {how}")
        return Answer(OracleVerdict.FAILS, sign.of_death(outcome.signal), f"the process {how}")
    if outcome.raised is not None:
        text = f"{outcome.raised.type}: {outcome.raised.message}"
        if not compiling or outcome.stuck:
            return unresolved(text)
        return Answer(OracleVerdict.FAILS, sign.of_exception(outcome.raised, compiling=False), text)
    return msgspec.convert(outcome.value, Answer)


def judge(
    case: Case, question: Question, compiling: Callable[[], object], *, backend: Callable[[], Any] | None = None
) -> Answer:
    """Run the case and say whether it fails.

    Args:
        compiling: is called before anything is compiled: what ends the process until then is no fault of the compiler.
        backend: makes what to compile with; None: the case's own.

    Never raises for what the case does; the process may still die of it.
    """
    try:
        eager = [read(r) for r in program_of(case).run(lambda fn: fn)]
    except Exception as error:  # values that cannot be saved, a backward that cannot be run
        return unresolved(f"uncompiled: {type(error).__name__}: {error}")
    broken = next((c.raised for c in eager if c.raised is not None), None)
    if broken is not None and question.wanted != "missing_exception" and question.wanted:
        return unresolved(f"uncompiled it raises {broken.short}")
    compiling()
    got, raised = compiled_calls(case, backend)
    raised = raised or next((c.raised for c, e in zip(got, eager, strict=False) if c.raised and not e.raised), None)
    if raised is not None:
        return _of_exception(raised, question)
    if question.wanted and not sign.needs_values(question.wanted):
        return Answer(OracleVerdict.PASSES)
    if broken is None and identical(Reference([eager]), got):
        return Answer(OracleVerdict.PASSES)
    try:
        reference = reference_of(case) if broken is None else Reference([eager, eager])
    except Exception as error:
        return unresolved(f"uncompiled: {type(error).__name__}: {error}")
    return _of_differences(compare(reference, got), question)


def compiled_calls(case: Case, backend: Callable[[], Any] | None) -> tuple[list[Observation], Raised | None]:
    """The compiled calls; or what ended them outside of any call.

    A graph that Dynamo does not trace again in one piece goes to the backend directly, as in a repro.
    """
    with contextlib.nullcontext() if case.caches else bypassed(), settings_of(case):
        torch.compiler.reset()
        program = program_of(case)
        try:
            chosen = case.backend if backend is None else backend()
            compiled = whole_or_directly(program.fn, chosen, case.dynamic)  # type: ignore[arg-type]
            return [read(r) for r in program.run(lambda _: compiled)], None
        except Exception as error:
            return [], raised_from(error)


def _of_exception(raised: Raised, question: Question) -> Answer:
    found = sign.of_exception(raised, compiling=raised.while_compiling)
    if question.fail_regex is not None:
        found = _by_regex(question.fail_regex, found, f"{raised.type}: {raised.message}\n{raised.trace}")
    return Answer(OracleVerdict.FAILS, found, raised.short)


def _of_differences(differences: Sequence[Difference], question: Question) -> Answer:
    certain = [d for d in differences if d.certain]
    if not certain:
        return unresolved(differences[0].text) if differences else Answer(OracleVerdict.PASSES)
    wanted = sign.kind_of(question.wanted) if question.wanted else certain[0].kind
    shown = next((d for d in certain if d.kind == wanted), certain[0])
    found: str = shown.kind
    if question.fail_regex is not None:
        found = _by_regex(question.fail_regex, found, "\n".join(f"{d.kind} {d.where}: {d.text}" for d in certain))
    return Answer(OracleVerdict.FAILS, found, f"{shown.where or f'call {shown.call}'}: {shown.text}")


def _by_regex(pattern: str, found: str, text: str) -> str:
    """Failures whose text matches are the same one; what does not match stays what it is."""
    return f"{sign.kind_of(found)} matching {pattern}" if re.search(pattern, text) else found


def unresolved(reason: str) -> Answer:
    """The answer when nothing can be said."""
    return Answer(OracleVerdict.UNRESOLVED, "", reason)


def limit(memory_bytes: int | None) -> None:
    """Bound what this process takes from now on, and let it leave no core file."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is None:
        return
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        bound = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))


def warm_up(backend: str, *, grad: bool) -> None:
    """Compile something small once, in a thread that ends with it, so that children can have threads of their own.

    Not done where children need CUDA: a device that was looked at before a fork is lost to the child.
    """

    def work() -> None:
        with contextlib.suppress(Exception), torch.set_grad_enabled(grad), bypassed():
            after_fork.prepare()
            require("torch._inductor", "config", purpose="compiling in a child process").compile_threads = 1
            compiled = torch.compile(symbolic_trace(lambda x: ((x + 1).sum(), x @ x)), backend=backend)
            total, _ = compiled(torch.ones(4, 4, requires_grad=grad))
            if grad:
                total.backward()
            torch.compiler.reset()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()


def allowed_differences(problem: Problem, recipe: Recipe, *, timeout_s: float) -> list[list[torch.Tensor]]:
    """How far each value of a piece may be off, see `Case.allowed`; empty where nothing tells it."""

    def step() -> tuple[bytes, bytes] | None:
        reference = reference_of(problem.case_of(recipe))
        known = reference.wide is not None or reference.exact
        return to_bytes(capture(allowed(reference), rng=False)) if known else None

    outcome = isolated(step, timeout_s=timeout_s)
    if not isinstance(outcome.value, list):
        return []
    return from_bytes(*outcome.value).restore()


def uses_cuda(problem: Problem) -> bool:
    """Whether any value of the case lies on a GPU."""
    captures = [captured for r in problem.recordings for captured in (r.inputs, r.values)]
    devices = {str(entry["device"]) for captured in captures for entry in captured.doc["storages"].values()}
    return any(device.startswith("cuda") for device in devices)
