"""What a comparison may be told, and how many threads judge where nobody has said it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import msgspec

from graphprobe.compare.judge import Replayer
from graphprobe.errors import UsageError
from graphprobe.store.calls import CallDump

FIRST_CALLS = 200
"""Calls that are looked at for values."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `compare_dumps`.

    Attributes:
        replayer: calls operations again where values are there; None: verdicts come from both sides' values alone.
        jobs: threads that judge pairs; None: one for each processor that this process may use where both dumps hold
            values, else one, because statistics are compared while the interpreter is held.
        scheduler: address of a Dask scheduler whose workers judge; they must see both dumps under the same paths.
        remote_replayer: with a scheduler, the class its workers replay with, `module:class`; empty: none.
        steps, ranks: only these; None for all.
        exact: a difference that is noise is a difference, too.
        on_progress: called now and then with what is being judged, in words.
    """

    replayer: Replayer | None = None
    jobs: int | None = None
    scheduler: str = ""
    remote_replayer: str = ""
    steps: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    exact: bool = False
    on_progress: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"jobs is {self.jobs}", hint="pass 1 or more")
        if self.scheduler and self.replayer is not None:
            raise UsageError(
                "a replayer cannot be sent to a scheduler's workers", hint="name its class: remote_replayer"
            )


def has_values(dump: CallDump) -> bool:
    """Whether any of the first calls has values that are whole: a dump of statistics needs no torch and no threads."""
    for rank in dump.ranks()[:1]:
        for step in dump.steps(rank)[:1]:
            calls = itertools.islice(dump.calls(rank, step), FIRST_CALLS)
            return any(slot.value and not slot.sampled for call in calls for slot in call.slots)
    return False


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def with_jobs(options: Options, candidate: CallDump, reference: CallDump) -> Options:
    """The options with a number of threads, unless there is one or the workers of a scheduler judge."""
    if options.jobs is not None or options.scheduler:
        return options
    both = has_values(candidate) and has_values(reference)  # which are compared outside of the interpreter
    return msgspec.structs.replace(options, jobs=processors() if both else 1)
