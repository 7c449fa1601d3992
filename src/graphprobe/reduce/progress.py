"""What an observer is told while a reduction runs."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from graphprobe.reduce.outcome import OracleVerdict


class Progress(msgspec.Struct, frozen=True):
    """The state of a reduction after a candidate was judged.

    Attributes:
        original: size of the case that the reduction began with.
        size: size of the simplest failing case so far.
        calls: answers that the oracle has given in this process.
        replayed: answers that came out of the journal instead.
        elapsed_s: since the reduction began, in this process.
        by: the pass that asked.
        verdict: on the candidate.
    """

    original: tuple[int, ...]
    size: tuple[int, ...]
    calls: int
    replayed: int
    elapsed_s: float
    by: str
    verdict: OracleVerdict

    @property
    def calls_per_s(self) -> float:
        """0 before the first call."""
        return self.calls / self.elapsed_s if self.calls and self.elapsed_s > 0 else 0.0


Observer = Callable[[Progress], None]
