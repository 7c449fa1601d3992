"""The last lines of a command: the verdict, where, the proof, what to do next. Never more than five."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from graphprobe.report.terminal import Text, console_for

LINES = 5
"""A terminal that was scrolled by a long story still shows this many."""


def print_closing(
    verdict: str, facts: Sequence[tuple[str, str]] = (), *, style: str = "bold", file: IO[str] | None = None
) -> None:
    """Print the verdict on a line, and each fact with its label on a line below; facts beyond the fourth are left out.

    Args:
        facts: label and text; those without a text are left out.
        style: of the verdict, as rich names it.
        file: standard output by default.
    """
    console = console_for(file)
    console.print(Text(_line(verdict), style))
    shown = [fact for fact in facts if fact[1]][: LINES - 1]
    width = max((len(label) for label, _ in shown), default=0) + 2
    for label, text in shown:
        console.print(Text.assemble((f"  {label + ':':<{width}}", "dim"), _line(text)))


def _line(text: str) -> str:
    return " ".join(text.split())
