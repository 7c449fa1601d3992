"""How many threads judge where nobody has said it."""

from __future__ import annotations

import dataclasses
import os

from graphprobe.compare.options import Options
from graphprobe.store.calls import CallDump

FIRST_CALLS = 200
"""Calls that are looked at for values."""


def has_values(dump: CallDump) -> bool:
    """Whether any of the first calls has values that are whole: a dump of statistics needs no torch and no threads."""
    for rank in dump.ranks()[:1]:
        for step in dump.steps(rank)[:1]:
            for number, call in enumerate(dump.calls(rank, step)):
                if any(slot.value and not slot.sampled for slot in call.slots):
                    return True
                if number > FIRST_CALLS:
                    break
    return False


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_jobs(*, values: bool) -> int:
    """As many as there are processors where values are compared, which is done outside of the interpreter; else one."""
    return processors() if values else 1


def with_jobs(options: Options, candidate: CallDump, reference: CallDump) -> Options:
    """The options with a number of threads, unless there is one or the workers of a scheduler judge."""
    if options.jobs is not None or options.scheduler:
        return options
    both = has_values(candidate) and has_values(reference)
    return dataclasses.replace(options, jobs=default_jobs(values=both))
