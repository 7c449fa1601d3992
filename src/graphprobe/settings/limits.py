"""How far a diagnosis goes: the options that say so, and the time that is counted down while it runs."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from graphprobe.errors import SettingError
from graphprobe.settings.option import Option, from_environment

STEP_LIMIT_S = 600.0
"""What one compilation with its runs may take, unless somebody says otherwise."""

LEAST_S, AGAIN_S = 1e-3, 1.0
"""Of an alarm, which never comes for 0, and which comes again where somebody has caught it."""

LIMITS: tuple[Option, ...] = (
    Option(
        "budget_s", "seconds", None, "GRAPHPROBE_BUDGET", "--budget",
        "end after so many seconds in all, whatever runs then", metavar="SECONDS"
    ),
    Option(
        "step_limit_s", "seconds", STEP_LIMIT_S, "GRAPHPROBE_STEP_LIMIT", "--step-limit",
        "take a compilation that lasts longer, with its runs, for one that never ends. Default: 600", metavar="SECONDS"
    ),
    Option("first", "flag", False, "GRAPHPROBE_FIRST", "--first", "stop at the first fault"),
    Option(
        "exact", "flag", False, "GRAPHPROBE_EXACT", "--exact",
        "make a fault of results that are right and differ in their last bits"
    ),
    Option(
        "workaround", "flag", True, "GRAPHPROBE_WORKAROUND", "--no-workaround",
        "try changes of a program that is wrong until it is right"
    ),
)  # fmt: skip


def limits_from(
    given: Mapping[str, object], environ: Mapping[str, str], *, called: Callable[[str], str]
) -> dict[str, Any]:
    """The values of `LIMITS` by name, those of the environment where `given` has None; what nobody gives is left out.

    Args:
        called: what the caller calls an option, by its name.

    Raises:
        SettingError: an option cannot take its value, or two of them exclude each other.
    """
    named = from_environment(LIMITS, environ)
    found: dict[str, Any] = {}
    for row in LIMITS:
        by_hand = given.get(row.name) is not None
        if not by_hand and row.name not in named:
            continue
        value = given[row.name] if by_hand else named[row.name][0]
        found[row.name] = row.converted(value, from_text=not by_hand)
        if found[row.name] is None:
            name = called(row.name) if by_hand else f"environment variable {row.env}"
            raise SettingError(f"{name} is {str(value)[:80]!r}; it takes {row.accepted(from_text=not by_hand)}")
    budget_s, step_limit_s = found.get("budget_s"), found.get("step_limit_s")
    if budget_s is not None and step_limit_s is not None and step_limit_s > budget_s:
        raise SettingError(
            f"{called('step_limit_s')} is {step_limit_s:g}, more than the {budget_s:g} of {called('budget_s')}",
            hint="the budget is for all steps together: give a step no more than that",
        )
    return found


class NoTimeLeft(BaseException):
    """A step was not begun, or was ended, because no time is left: that, and for a step that was ended which it was.

    Like Ctrl-C it is no failure of what it ends, and is not to be caught as one.
    """


class TimeBudget:
    """Seconds that are spent from the moment on at which it is made; None is no bound.

    Attributes:
        ended: what has ended it before its time, in words; empty while nothing has.
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._clock, self._began = seconds, clock, clock()
        self.ended = ""
        self._rings: list[Callable[[], None]] = []

    @property
    def left_s(self) -> float:
        """What is left, not below 0."""
        bound = 0.0 if self.ended else self.seconds
        return float("inf") if bound is None else max(0.0, bound - (self._clock() - self._began))

    @property
    def told(self) -> str:
        """That it is spent, in words."""
        return self.ended or f"the budget of {self.seconds:g} s is spent"

    def check(self) -> None:
        """Raise NoTimeLeft where nothing is left."""
        if not self.left_s:
            raise NoTimeLeft(self.told)

    def end(self, why: str) -> None:
        """Take what is left away, as a signal does; the block of an alarm ends as it does when the time is over."""
        self.ended = self.ended or why
        if self._rings:
            self._rings[-1]()

    @contextlib.contextmanager
    def alarm(self, ring: Callable[[], None] | None = None) -> Iterator[None]:
        """A block that ends with the budget, by what `ring` raises: NoTimeLeft unless somebody says otherwise."""
        self._rings.append(ring or self.check)
        try:
            with Alarm(self.left_s, self._rings[-1]):
                yield
        finally:
            self._rings.pop()


class Alarm:
    """Calls a function in the middle of a block, as soon as so many seconds have gone by and each second from then on.

    What it raises ends the block. It is a signal: only the main thread gets it, only where nobody else has taken the
    signal, and not before a single operation of torch or numpy has ended. An alarm within another stands in for it.
    """

    def __init__(self, seconds: float, ring: Callable[[], None]) -> None:
        self._seconds, self._ring, self._pid = seconds, ring, os.getpid()
        self._before: Any = None
        self._left, self._began = (0.0, 0.0), 0.0

    def __call__(self, *_: object) -> None:
        """Ring, but not in processes forked from this one."""
        if os.getpid() == self._pid:
            self._ring()

    def __enter__(self) -> None:
        here = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
        before: Any = signal.getsignal(signal.SIGALRM) if here and self._seconds != float("inf") else None
        if before == signal.SIG_DFL or isinstance(before, Alarm):
            self._before, self._began = before, time.monotonic()
            signal.signal(signal.SIGALRM, self)
            self._left = signal.setitimer(signal.ITIMER_REAL, max(self._seconds, LEAST_S), AGAIN_S)

    def __exit__(self, *_: object) -> None:
        holder: Any = signal.getsignal(signal.SIGALRM) if self._before is not None else None
        if holder is self:
            left, again = self._left
            left = max(left - (time.monotonic() - self._began), LEAST_S) if left else 0.0
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
            signal.setitimer(signal.ITIMER_REAL, left, again)
