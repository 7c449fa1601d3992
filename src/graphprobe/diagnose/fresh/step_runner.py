"""Runs the steps of one diagnosis, each in a process that can be ended, within the time that is left."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Any

from graphprobe.diagnose.exceptions import origin_of_stack
from graphprobe.diagnose.fresh.processes import FreshProcesses
from graphprobe.engine.forked_child import TOLD_EVERY_S, Board, Outcome, isolated, told_on
from graphprobe.findings import NamedStep
from graphprobe.internals import after_fork
from graphprobe.settings.limits import STEP_LIMIT_S, NoTimeLeft, TimeBudget

log = logging.getLogger(__name__)

HANG_FACTOR, HANG_LEAST_S, LONG_S = 10.0, 60.0, 1.5
"""What takes so many times the longest step that ended, and so long, does not end; a step is long after LONG_S."""

STOOD = re.compile(r" It stood( in .+?)\.$")
"""The place in the words for a step that was ended."""


class StepRunner:
    """Runs the steps of one diagnosis, and tells which one is under way.

    Attributes:
        name: of the step under way.
        board: what a step writes on it is shown while it runs.
        limit_s: what a step may take; less once one has hung.
        fresh: the processes that begin with the program as it was saved; None where a fork does.
    """

    def __init__(self, budget: TimeBudget, limit_s: float, tell: Callable[[NamedStep], None]) -> None:
        self.name, self.board, self.limit_s = "", Board(), limit_s
        self.fresh: FreshProcesses | None = None
        self._budget, self._tell, self._began = budget, tell, 0.0
        self._longest_s, self._hangs = 0.0, False
        self._imports = after_fork.imported()

    def close(self) -> None:
        """Remove what was saved."""
        if self.fresh is not None:
            self.fresh.close()

    def begin(self, name: str) -> None:
        """Tell that a step begins, which is told again each second while it runs."""
        self.name, self._began = name, time.monotonic()
        self.board.write("")
        self._tell(NamedStep(name))

    def tell(self, *facts: str) -> None:
        """Tell what is known from now on."""
        for fact in facts:
            self._tell(NamedStep(self.name, time.monotonic() - self._began, fact=fact))

    def timed(self, step: Callable[[], Any], save: Callable[[], FreshProcesses], limit_s: float = 0.0) -> Outcome:
        """As `run`; after a step that hangs, nobody waits as long for another one."""
        outcome = self.run(step, save, limit_s)
        if outcome.timed_out:
            self.limit_s = min(self.limit_s, max(HANG_LEAST_S, HANG_FACTOR * self._longest_s))
            self._hangs = True
        else:
            self._longest_s = max(self._longest_s, outcome.seconds)
        return outcome

    def of_several(self, compilations: int) -> float:
        """What a step of several compilations may take, each of which may hang, in seconds."""
        return max(STEP_LIMIT_S, compilations * self.limit_s) if compilations > 1 and self._hangs else 0.0

    def run(self, step: Callable[[], Any], save: Callable[[], FreshProcesses], limit_s: float = 0.0) -> Outcome:
        """Run a step in a child process.

        Args:
            save: saves the program, for a step whose forked process waits for what a thread of this one holds.
            limit_s: it may take so long, where this is more than others may.

        Raises:
            NoTimeLeft: the time for all steps is over, and this one was not begun or was ended.
        """
        self._budget.check()
        limit, left, last = max(self.limit_s, limit_s), self._budget.left_s, time.monotonic()

        def wait() -> None:
            nonlocal last
            if self._budget.ended:  # nobody asks where the step was, as where the time is over
                self._budget.check()
            if self.fresh is None and time.monotonic() - self._began > LONG_S:
                next(self._imports, None)  # while the child is at work
            if time.monotonic() - last >= TOLD_EVERY_S:
                last = time.monotonic()
                self._tell(NamedStep(self.name, last - self._began, self.board.read()))

        with told_on(self.board):
            outcome = self.fresh.outcome(step, limit, left, self.board, wait) if self.fresh is not None else None
            outcome = outcome or isolated(step, timeout_s=min(limit, left), look=origin_of_stack, wait=wait)
            if outcome.stuck and self.fresh is None:  # where no thread of this process has a lock
                self.fresh = save()
                outcome = self.fresh.outcome(step, limit, left, self.board, wait) or outcome
        if outcome.timed_out and left <= limit:  # it had its share of the time, which is not to say that it hangs
            where = STOOD.search(outcome.end)
            detail = f"the last {left:.0f} s in the step {self.name}{where[1] if where else ''}"
            raise NoTimeLeft(self._budget.told, detail)
        named = getattr(step, "func", step)
        log.info("%s: %s: %.1f s", self.name, getattr(named, "__qualname__", type(named).__name__), outcome.seconds)
        return outcome
