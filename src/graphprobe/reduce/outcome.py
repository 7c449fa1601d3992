"""What an oracle says of a case, and what an observer is told while a reduction runs."""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec


class OracleVerdict(enum.Enum):
    """Three-valued: what could not be judged has not passed."""

    FAILS = "fails"
    PASSES = "passes"
    UNRESOLVED = "unresolved"


class Answer(msgspec.Struct, frozen=True):
    """An oracle's answer.

    Attributes:
        verdict: of the case.
        signature: identity of the failure: two cases with the same one fail in the same way; empty unless it fails.
        detail: one line for people: what failed, or why it could not be judged.
        seconds: wall time that the answer took.
    """

    verdict: OracleVerdict
    signature: str = ""
    detail: str = ""
    seconds: float = 0.0


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
