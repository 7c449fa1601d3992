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

LEAST_S = 1e-3
"""Of an alarm, which never comes for 0."""

LIMITS: tuple[Option, ...] = (
    Option(
        "budget_s", "seconds", None, "GRAPHPROBE_BUDGET", "--budget",
        "end after so many seconds in all, whatever runs then; the same command goes on from there", metavar="SECONDS"
    ),
    Option(
        "step_limit_s", "seconds", STEP_LIMIT_S, "GRAPHPROBE_STEP_LIMIT", "--step-limit",
        "take a compilation that lasts longer, with its runs, for one that never ends. Default: 600", metavar="SECONDS",
        former="--timeout"
    ),
    Option("first", "flag", False, "GRAPHPROBE_FIRST", "--first", "stop at the first fault"),
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


class NoTimeLeft(Exception):
    """A step was not begun, or was ended, because no time is left: that, and for a step that was ended which it was."""


class TimeBudget:
    """Seconds that are spent from the moment on at which it is made; None is no bound."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._clock, self._began = seconds, clock, clock()

    @property
    def left_s(self) -> float:
        """What is left, not below 0."""
        return float("inf") if self.seconds is None else max(0.0, self.seconds - (self._clock() - self._began))

    @property
    def told(self) -> str:
        """That it is spent, in words."""
        return f"the budget of {self.seconds:g} s is spent"

    @contextlib.contextmanager
    def alarmed(self) -> Iterator[None]:
        """Raise NoTimeLeft in the middle of the block once nothing is left, where a signal can do that."""
        here = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
        if self.seconds is None or not here or signal.getsignal(signal.SIGALRM) != signal.SIG_DFL:
            yield
            return
        pid = os.getpid()

        def come(*_: object) -> None:
            if os.getpid() == pid:
                raise NoTimeLeft(self.told)

        signal.signal(signal.SIGALRM, come)
        signal.setitimer(signal.ITIMER_REAL, max(self.left_s, LEAST_S))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def check(self) -> None:
        """Raise NoTimeLeft where nothing is left."""
        if not self.left_s:
            raise NoTimeLeft(self.told)
