"""The dumps of this process: one for each plan, with the observers it asks for, closed when the process ends."""

from __future__ import annotations

import atexit
import threading

import msgspec

from graphprobe.dump_plan import DumpPlan
from graphprobe.probe.dump.overflow import OverflowObserver
from graphprobe.probe.dump.recorder import OpRecorder
from graphprobe.probe.dump.running import DumpSession, OpObserver
from graphprobe.probe.dump.side_files import ExceptionObserver
from graphprobe.probe.dump.single_ops import SingleOps
from graphprobe.probe.dump.watch import WatchObserver

_lock = threading.RLock()
_by_plan: dict[bytes, DumpSession] = {}


def session_for(plan: DumpPlan) -> DumpSession:
    """The dump of a plan. Backends with equal plans share one, until it is closed."""
    key = msgspec.json.encode(plan)
    with _lock:
        found = _by_plan.get(key)
        if not _by_plan:
            atexit.unregister(close_all)
            atexit.register(close_all)
        if found is None or found.closed:
            found = _by_plan[key] = DumpSession(plan)
            own: list[OpObserver] = [OpRecorder(plan, found.writer)] if plan.models or plan.single_ops else []
            kinds = (plan.overflow, OverflowObserver), (plan.watch, WatchObserver), (plan.exceptions, ExceptionObserver)
            own += [kind(plan, found.writer) for wanted, kind in kinds if wanted]
            found.observers = (*own, *([SingleOps(found)] if plan.single_ops else ()))
        return found


def open_sessions() -> list[DumpSession]:
    """The dumps that have not ended, oldest first."""
    with _lock:
        return [session for session in _by_plan.values() if not session.closed]


def close_all() -> None:
    """End every dump: all that was handed in is written, and each says what it lacks."""
    for session in open_sessions():
        session.close()
    with _lock:
        _by_plan.clear()


def begin_single_ops(session: DumpSession) -> None:
    """Watch the ops outside compiled graphs, if the plan asks for that; on this thread, from now on."""
    for observer in session.observers:
        if isinstance(observer, SingleOps):
            observer.start()
