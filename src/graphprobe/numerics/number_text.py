"""Numbers as text that reads back as the same numbers."""

from __future__ import annotations

from collections.abc import Callable

from graphprobe.numerics import native

Numbers = tuple[float | int | None, ...]


def numbers_text_in_python(numbers: Numbers) -> str:
    """`repr` of each, with commas between them; None is empty."""
    return ",".join(["" if value is None else repr(value) for value in numbers])


numbers_text: Callable[[Numbers], str] = numbers_text_in_python if native.core is None else native.core.numbers_text
"""The same, by the C++ core where it is installed; integers of 64 bits at most."""
