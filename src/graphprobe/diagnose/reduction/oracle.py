"""Judges of candidates: the compiler in a worker process, or a command of the user's."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.dossier.proof_run import run_group
from graphprobe.diagnose.dossier.writer import write_dossier
from graphprobe.diagnose.reduction import signature as sign
from graphprobe.diagnose.reduction.case_folder import finding_of
from graphprobe.diagnose.reduction.edits import NotApplicable
from graphprobe.diagnose.reduction.problem import FxCandidate
from graphprobe.diagnose.reduction.service import Job, Question, Service, limit, unresolved, uses_cuda, warm_up
from graphprobe.engine.worker import Worker
from graphprobe.internals import after_fork
from graphprobe.reduce.outcome import Answer, OracleVerdict

GRACE_S = 60.0
"""What a worker gets beyond the time of a question: to stop the child that works on it, and to record values."""

HANG_FACTOR, HANG_LEAST_S = 8.0, 10.0
"""A piece of a case that hangs has so many times what the longest piece took that did not hang, and no less than this.
"""

UNRESOLVED_EXIT = 125
TAIL = 2000


class CompilerOracle:
    """Asks a worker how candidates fail; once one has failed, others are held against its signature.

    Args:
        service: what the worker does.
        timeout_s: for one candidate, uncompiled and compiled.
        wanted: signature that is looked for; empty: that of the first candidate that fails.
        fail_regex: what the text of the failure must match.
        first: what the original was just seen to do; it is not asked again for the first answer.

    Attributes:
        longest_s: how long the longest question took that did not hang.
    """

    def __init__(
        self,
        service: Service,
        *,
        timeout_s: float,
        wanted: str = "",
        fail_regex: str | None = None,
        first: Answer | None = None,
    ) -> None:
        self.question = Question(wanted, fail_regex)
        self.timeout_s = timeout_s
        self._first = first
        self.longest_s = 0.0
        self._hung: dict[str, Answer] = {}
        after_fork.preload()
        case, whole = service.original.case, service.original.whole()
        self._original = whole.digest if whole is not None else ""
        warm = not uses_cuda(service.original)

        def start() -> None:
            limit(None)
            if warm:
                warm_up(case.backend, grad=case.grad)

        self._worker = Worker(service.handle, timeout_s=timeout_s + GRACE_S, on_start=start)

    def __call__(self, candidate: FxCandidate) -> Answer:
        """The answer of the worker; UNRESOLVED when the worker itself did not survive.

        A candidate that hung is not asked again: that would take as long again, and say little.
        """
        if candidate.digest in self._hung:
            return self._hung[candidate.digest]
        if self._first is not None and candidate.digest == self._original:
            answer, self._first = self._first, None
        else:
            answer = self._asked(candidate)
        if answer.signature == sign.HANG:
            self._hung[candidate.digest] = answer
        else:
            self.longest_s = max(self.longest_s, answer.seconds)
        if answer.verdict is OracleVerdict.FAILS and not self.question.wanted:
            self.question = msgspec.structs.replace(self.question, wanted=answer.signature)
        return answer

    def _asked(self, candidate: FxCandidate) -> Answer:
        job = Job(candidate.recipe, self.question, self._limit_s())
        reply = self._worker.ask(msgspec.json.encode(job))
        if reply.value is None:
            why = reply.raised.trace if reply.raised is not None else reply.end
            return unresolved(f"the worker did not survive the question: {why}")
        return msgspec.json.decode(reply.value, type=Answer)

    def _limit_s(self) -> float:
        if self.question.wanted != sign.HANG or not self.longest_s:
            return self.timeout_s
        return min(self.timeout_s, max(HANG_LEAST_S, HANG_FACTOR * self.longest_s))

    def close(self) -> None:
        """End the worker."""
        self._worker.close()


class CommandOracle:
    """Runs a command in a folder with the repro of each candidate: 0 passes, 125 is unresolved, anything else fails.

    Args:
        command: for the shell; it runs in the folder that holds `repro.py`, whose path is in `GRAPHPROBE_CASE`.
        timeout_s: after it, the command is stopped and the candidate is unresolved.
        fail_regex: what the output of a failing command must match; otherwise the candidate is unresolved.
    """

    def __init__(self, command: str, *, timeout_s: float, fail_regex: str | None = None) -> None:
        self.command, self.timeout_s, self.fail_regex = command, timeout_s, fail_regex

    def __call__(self, candidate: FxCandidate) -> Answer:
        """What the command's exit code says."""
        started = time.monotonic()
        try:
            case = candidate.problem.case_of(candidate.recipe)
        except NotApplicable as error:
            return unresolved(f"it cannot be built: {error}")
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as parent:
            problems = write_dossier(Path(parent) / "case", case, finding_of(case, ""))
            if problems:
                return unresolved("; ".join(problems))
            answer = self._run(Path(parent) / "case", case)
        return msgspec.structs.replace(answer, seconds=time.monotonic() - started)

    def _run(self, folder: Path, case: Case) -> Answer:
        env = {**os.environ, "GRAPHPROBE_CASE": str(folder)}
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
        code, text = run_group(self.command, self.timeout_s, shell=True, cwd=folder, env=env)
        if code is None:
            return unresolved(f"the command did not end within {self.timeout_s:g} s")
        if code in (0, UNRESOLVED_EXIT):
            return Answer(OracleVerdict.PASSES) if code == 0 else unresolved(text[-TAIL:])
        if self.fail_regex is not None and not re.search(self.fail_regex, text):
            return unresolved(f"exit code {code}, and the output does not match {self.fail_regex!r}")
        return Answer(OracleVerdict.FAILS, f"{case.kind} for the command", f"exit code {code}")
