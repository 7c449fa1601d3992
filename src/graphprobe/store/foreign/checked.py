"""Values of files that somebody else wrote, checked before anything is made of them."""

from __future__ import annotations

import tokenize
from typing import Any

from graphprobe.store.calls import shape_problem

MOST_DIMENSIONS = 64
"""torch has no more."""

NOT_NPY = (OSError, ValueError, TypeError, EOFError, SyntaxError, SystemError, OverflowError, tokenize.TokenError)
"""What numpy raises of a file that is no `.npy` file, or a damaged one: its header is parsed as Python."""


def shape_of(value: Any) -> tuple[int, ...] | None:
    """A list of sizes as a shape; None for anything else, and for a shape that no tensor has."""
    if not isinstance(value, list) or len(value) > MOST_DIMENSIONS:
        return None
    if not all(type(size) is int and size >= 0 for size in value) or shape_problem(tuple(value)):
        return None
    return tuple(value)
