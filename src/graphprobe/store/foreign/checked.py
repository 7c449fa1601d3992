"""Values of files that somebody else wrote, checked before anything is made of them."""

from __future__ import annotations

import tokenize
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphprobe.store.calls import shape_problem
from graphprobe.store.files import check_regular

MOST_DIMENSIONS = 64
"""torch has no more."""

_NOT_NPY = (OSError, ValueError, TypeError, EOFError, SyntaxError, SystemError, OverflowError, tokenize.TokenError)
"""What numpy raises of a file that is no `.npy` file, or a damaged one: its header is parsed as Python."""


def mapped_npy(path: Path) -> npt.NDArray[Any]:
    """The array of a `.npy` file, mapped; raises ValueError for anything else. Nothing is unpickled or unpacked."""
    try:
        check_regular(path)
        array: npt.NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except _NOT_NPY as error:
        raise ValueError(str(error)) from error
    return array


def float_of(value: float) -> float | None:
    """A number as a float; None for one that is beyond them."""
    try:
        return float(value)
    except OverflowError:
        return None


def shape_of(value: Any) -> tuple[int, ...] | None:
    """A list of sizes as a shape; None for anything else, and for a shape that no tensor has."""
    if not isinstance(value, list) or len(value) > MOST_DIMENSIONS:
        return None
    if not all(type(size) is int and size >= 0 for size in value) or shape_problem(tuple(value)):
        return None
    return tuple(value)
