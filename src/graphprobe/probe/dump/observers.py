"""Which observers a plan asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphprobe.probe.dump.exception import ExceptionObserver
from graphprobe.probe.dump.ops import OpObserver
from graphprobe.probe.dump.overflow import OverflowObserver
from graphprobe.probe.dump.plan_recorder import PlanRecorder
from graphprobe.probe.dump.single_ops import SingleOps
from graphprobe.probe.dump.watch import WatchObserver

if TYPE_CHECKING:
    from graphprobe.probe.dump.session import DumpSession


def observers_of(session: DumpSession) -> tuple[list[OpObserver], list[str]]:
    """The observers of a session's plan, and what is asked for that nobody does, one sentence each."""
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
    return found, []


def begin_single_ops(session: DumpSession) -> None:
    """Watch the ops outside compiled graphs, if the plan asks for that; on this thread, from now on."""
    for observer in session.observers:
        if isinstance(observer, SingleOps):
            observer.start()
