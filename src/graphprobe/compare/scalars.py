"""Arguments that are no tensors: which differences change what is computed."""

from __future__ import annotations

import ast
import math
import re

from graphprobe.numerics.dtypes import DTYPES, limit_named
from graphprobe.store.calls import Scalar

DEVICE = re.compile(r"(device\(type=)?['\"]?(cpu|cuda|npu|xpu|mps|hpu|mlu|musa|meta)(:\d+)?\b")
EMPTY = frozenset(("None", "False", "'none'", "", "()", "[]"))
"""Values that most arguments have when nobody gives them."""

DEFAULTS = {
    "kwarg.reduction": "'mean'",
    "kwarg.ignore_index": "-100",
    "kwarg.label_smoothing": "0.0",
    "kwarg.groups": "1",
    "kwarg.dilation": "1",
}
"""Keywords that have one default in all of torch's functions that take them."""

LITERAL_DIGITS = 6
"""Significant digits up to which a float counts as written by a person, so that it must agree exactly."""

COMPUTED_UNITS = 8.0
"""Roundings by which a float that was computed by the program may differ."""


def scalar_difference(mine: Scalar, theirs: Scalar, *, roundoff: float, same_format: bool = True) -> str:
    """What differs, in words; empty where the two mean the same.

    1 and 1.0 are one number. Names of dtypes and devices may differ: the first are judged with the dtypes of the run,
    the second are no fault. A float of more than six digits was computed by the program, and may differ by the noise
    of the run's dtype, of which `roundoff` is u. Between formats only numbers and names are compared, and no lists:
    one tells `ones(2, 3)` as two numbers, another as one list.
    """
    if mine.text == theirs.text:
        return ""
    if _is_dtype(mine.text) and _is_dtype(theirs.text):
        return ""
    if DEVICE.match(mine.text) and DEVICE.match(theirs.text):
        return ""
    a, b = _number(mine.text), _number(theirs.text)
    if a is not None and b is not None:
        if a == b or (math.isnan(a) and math.isnan(b)) or (limit_named(a) and limit_named(a) == limit_named(b)):
            return ""
        if not (_is_literal(mine.text) and _is_literal(theirs.text)) and abs(a - b) <= COMPUTED_UNITS * roundoff * max(
            abs(a), abs(b)
        ):
            return ""
    elif _sequence(mine.text) is not None and _sequence(mine.text) == _sequence(theirs.text):
        return ""
    elif not same_format and ((a is None) != (b is None) or _sequence(mine.text) != _sequence(theirs.text)):
        return ""
    elif _alone(mine.text) is not None and _alone(mine.text) == _alone(theirs.text):
        return ""
    elif " at 0x" in mine.text and " at 0x" in theirs.text:
        return ""  # an object without a `repr` of its own: the address says nothing
    return f"{mine.text} for {theirs.text}"


def is_default(scalar: Scalar, name: str = "") -> bool:
    """Whether a value may as well not have been given to the argument `name`, such as `kwarg.reduction`."""
    if scalar.text in EMPTY:
        return True
    usual = DEFAULTS.get(name)
    return usual is not None and not scalar_difference(scalar, Scalar(scalar.type, usual), roundoff=0.0)


def _is_dtype(text: str) -> bool:
    return text.removeprefix("torch.") in DTYPES


def _number(text: str) -> float | None:
    if text in ("True", "False"):
        return float(text == "True")
    try:
        return float(text)
    except ValueError:
        return None


def _is_literal(text: str) -> bool:
    mantissa = text.lower().lstrip("+-").partition("e")[0].replace(".", "").strip("0")
    return len(mantissa) <= LITERAL_DIGITS


def _alone(text: str) -> float | None:
    """The number that a text or a sequence of one number is: `arange(16)` is told as 16 or as [16]."""
    items = _sequence(text)
    if items is not None:
        return _number(repr(items[0])) if len(items) == 1 and isinstance(items[0], (int, float)) else None
    return _number(text)


def _sequence(text: str) -> list[object] | None:
    """A list or tuple as a list, so that `(1, 2)` and `[1, 2]` are one; None for anything else."""
    try:
        value = ast.literal_eval(text.removeprefix("torch.Size(").removesuffix(")") if "Size" in text else text)
    except (ValueError, SyntaxError):
        return None
    return list(value) if isinstance(value, (list, tuple)) else None
