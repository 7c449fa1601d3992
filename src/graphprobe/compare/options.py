"""What a comparison may be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graphprobe.compare.judge import Replayer
from graphprobe.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `compare_dumps`.

    Attributes:
        replayer: calls operations again where values are there; None: verdicts come from both sides' values alone.
        jobs: threads that judge pairs; None: one for each processor that this process may use where both dumps hold
            values, else one, because statistics are compared while the interpreter is held.
        scheduler: address of a Dask scheduler whose workers judge; they must see both dumps under the same paths.
        remote_replayer: with a scheduler, the class its workers replay with, `module:class`; empty: none.
        steps, ranks: only these; None for all.
        on_progress: called now and then with what is being judged, in words.
    """

    replayer: Replayer | None = None
    jobs: int | None = None
    scheduler: str = ""
    remote_replayer: str = ""
    steps: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    on_progress: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"jobs is {self.jobs}", hint="pass 1 or more")
        if self.scheduler and self.replayer is not None:
            raise UsageError(
                "a replayer cannot be sent to a scheduler's workers", hint="name its class: remote_replayer"
            )
