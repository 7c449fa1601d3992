"""Numbers as text that reads back as the same numbers."""

from __future__ import annotations

from collections.abc import Iterable


def numbers_text(numbers: Iterable[float | int | None]) -> str:
    """`repr` of each, with commas between them; None is empty."""
    return ",".join(["" if value is None else repr(value) for value in numbers])
