"""Values of files that somebody else wrote, checked before anything is made of them."""

from __future__ import annotations

import json
import tokenize
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from graphprobe.store.calls import shape_problem
from graphprobe.store.files import check_regular
from graphprobe.store.schema import UNREADABLE

MOST_DIMENSIONS = 64
"""torch has no more."""

MOST_LEVELS, MOST_BITS = 64, 1024
"""Of JSON: levels of lists and objects, and bits of an integer."""

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


def decoded(data: bytes) -> Any:
    """JSON, as Python writes it, NaN and Infinity included; None for what is none, or is nested beyond any sense."""
    try:
        value = msgspec.json.decode(data)
    except UNREADABLE:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return None
    level: list[Any] = [value]
    for _ in range(MOST_LEVELS):
        if any(type(item) is int and item.bit_length() > MOST_BITS for item in level):
            return None
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return value
    return None


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


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
