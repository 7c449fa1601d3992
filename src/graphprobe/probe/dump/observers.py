"""Which observers a plan asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphprobe.probe.dump.exception import ExceptionObserver
from graphprobe.probe.dump.ops import OpObserver
from graphprobe.probe.dump.overflow import OverflowObserver
from graphprobe.probe.dump.recorder import Recorder
from graphprobe.probe.dump.watch import WatchObserver

if TYPE_CHECKING:
    from graphprobe.probe.dump.session import DumpSession


def observers_of(session: DumpSession) -> tuple[list[OpObserver], list[str]]:
    """The observers of a session's plan, and what is asked for that nobody does, one sentence each."""
    plan = session.plan
    lacking = []
    for wanted, name in ((plan.single_ops, "dump_op_switch: ops outside compiled graphs"),):
        if wanted:
            lacking.append(f"{name} is not available in this version: it is left out")
    found: list[OpObserver] = [Recorder(plan, session.writer)] if plan.models else []
    if plan.overflow:
        found.append(OverflowObserver(plan, session.writer))
    if plan.watch:
        found.append(WatchObserver(plan, session.writer))
    if plan.exceptions:
        found.append(ExceptionObserver(plan, session.writer))
    return found, lacking
