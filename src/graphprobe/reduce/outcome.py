"""What an oracle says of a case."""

from __future__ import annotations

import enum

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
