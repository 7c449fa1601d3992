"""The dumps of this process: one for each plan, with the observers it asks for, closed when the process ends."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

import msgspec

from graphprobe.dump_plan import DumpPlan
from graphprobe.probe.dump.exception import ExceptionObserver
from graphprobe.probe.dump.overflow import OverflowObserver
from graphprobe.probe.dump.recorder import PlanRecorder
from graphprobe.probe.dump.running import DumpSession, OpObserver
from graphprobe.probe.dump.single_ops import SingleOps
from graphprobe.probe.dump.watch import WatchObserver


class _Sessions:
    """One instance a process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_plan: dict[bytes, DumpSession] = {}
        self.at_exit: Callable[[], None] | None = None


_sessions = _Sessions()


def session_for(plan: DumpPlan) -> DumpSession:
    """The dump of a plan. Backends with equal plans share one, until it is closed."""
    key = msgspec.json.encode(plan)
    with _sessions.lock:
        found = _sessions.by_plan.get(key)
        if found is None or found.closed:
            found = _sessions.by_plan[key] = DumpSession(plan)
            found.observers = observers_of(found)
        if _sessions.at_exit is None:
            _sessions.at_exit = atexit.register(close_all)
        return found


def open_sessions() -> list[DumpSession]:
    """The dumps that have not ended, oldest first."""
    with _sessions.lock:
        return [session for session in _sessions.by_plan.values() if not session.closed]


def close_all() -> None:
    """End every dump: all that was handed in is written, and each says what it lacks."""
    for session in open_sessions():
        session.close()
    with _sessions.lock:
        _sessions.by_plan.clear()


def observers_of(session: DumpSession) -> tuple[OpObserver, ...]:
    """Those that a session's plan asks for."""
    plan = session.plan
    found: list[OpObserver] = [PlanRecorder(plan, session.writer)] if plan.models or plan.single_ops else []
    if plan.overflow:
        found.append(OverflowObserver(plan, session.writer))
    if plan.watch:
        found.append(WatchObserver(plan, session.writer))
    if plan.exceptions:
        found.append(ExceptionObserver(plan, session.writer))
    if plan.single_ops:
        found.append(SingleOps(session))
    return tuple(found)


def begin_single_ops(session: DumpSession) -> None:
    """Watch the ops outside compiled graphs, if the plan asks for that; on this thread, from now on."""
    for observer in session.observers:
        if isinstance(observer, SingleOps):
            observer.start()
