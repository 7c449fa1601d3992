"""Pairs the slots of two calls, by name, then by role and place, and says which plain arguments matter."""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Sequence

from graphprobe.compare.naming import canonical
from graphprobe.compare.result import SlotSide
from graphprobe.numerics.dtypes import DTYPES, limit_named
from graphprobe.store.calls import CallSlot, Scalar

ALIASES = (frozenset(("dim", "axis")), frozenset(("keepdim", "keepdims")), frozenset(("input", "x")))
"""Keywords of which torch takes either, the second as numpy has it."""

SlotPair = tuple[CallSlot | None, CallSlot | None]

WEIGHTS = frozenset("weight bias running_mean running_var in_proj_weight in_proj_bias".split())
"""Keywords that weights and buffers are given by."""

WEIGHTS_BY_PLACE: dict[str, tuple[int, str]] = {
    "linear": (1, "weight bias"),
    "conv": (1, "weight bias"),
    "conv_transpose1d": (1, "weight bias"),
    "conv_transpose2d": (1, "weight bias"),
    "conv_transpose3d": (1, "weight bias"),
    "bilinear": (2, "weight bias"),
    "embedding": (1, "weight"),
    "embedding_bag": (1, "weight"),
    "prelu": (1, "weight"),
    "layer_norm": (2, "weight bias"),
    "group_norm": (2, "weight bias"),
    "rms_norm": (2, "weight"),
    "batch_norm": (1, "running_mean running_var weight bias"),
    "instance_norm": (1, "running_mean running_var weight bias"),
}
"""By `naming.canonical`, the arguments that are weights and buffers: the place of the first, and their names."""

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

NO_NAME = ("(", "[", "<", "torch.Size")
"""How texts of sequences and objects begin."""

LITERAL_DIGITS = 6
"""Significant digits up to which a float counts as written by a person, so that it must agree exactly."""

COMPUTED_UNITS = 8.0
"""Roundings by which a float that was computed by the program may differ."""


def same_names(mine: Sequence[CallSlot], theirs: Sequence[CallSlot]) -> bool:
    """Whether both sides have the same slots in the same order, as most pairs of calls do."""
    for a, b in zip(mine, theirs, strict=False):
        if a.name != b.name:
            return False
    return len(mine) == len(theirs)


def pair_slots(mine: Sequence[CallSlot], theirs: Sequence[CallSlot]) -> list[SlotPair]:
    """All slots of both sides, in the candidate's order; a slot without a partner comes with None."""
    by_name = {slot.name: slot for slot in theirs}
    taken = {slot.name for slot in mine if slot.name in by_name}
    left: dict[str, list[CallSlot]] = {}
    for slot in theirs:
        if slot.name not in taken:
            left.setdefault(slot.role, []).append(slot)
    pairs: list[SlotPair] = []
    for slot in mine:
        if slot.name in by_name:
            pairs.append((slot, by_name[slot.name]))
            continue
        rest = left.get(slot.role, [])
        pairs.append((slot, rest.pop(0) if rest and _alike(slot, rest[0]) else None))
    pairs.extend((None, slot) for rest in left.values() for slot in rest)
    return pairs


@functools.lru_cache(maxsize=4096)
def is_weight_by_name(api: str, slot: str) -> bool:
    """Whether an input is a weight or buffer by its keyword, or by its place in a function that is known."""
    kind, _, rest = slot.partition(".")
    if kind == "kwarg":
        return rest in WEIGHTS
    return bool(_by_place(api, rest))


def weight_name(api: str, slot: str) -> str:
    """What `torch.nn` calls the weight or buffer that an input of its functions is; empty where that is not known."""
    kind, _, rest = slot.partition(".")
    known = WEIGHTS_BY_PLACE.get(canonical(api), (0, ""))[1].split() if api.startswith("torch.nn.functional.") else []
    return _by_place(api, rest) if known and kind == "input" else rest if rest in known else ""


def _by_place(api: str, place: str) -> str:
    first, names = WEIGHTS_BY_PLACE.get(canonical(api), (0, ""))
    at = int(place) - first if place.isdecimal() and len(place) < 10 else -1
    return names.split()[at] if 0 <= at < len(names.split()) else ""


def of_node(name: str) -> bool:
    """Whether a slot is what leaves the last autograd node of its call, which need not be an argument's gradient."""
    return ".node." in name


def _alike(mine: CallSlot, theirs: CallSlot) -> bool:
    """Whether two slots of different names can hold the same thing: both tensors of one shape, or both none.

    What leaves an autograd node is no gradient of an argument, and two keywords are one argument only as `ALIASES`.
    """
    if of_node(mine.name) != of_node(theirs.name):
        return False
    if mine.name.startswith("kwarg.") and theirs.name.startswith("kwarg."):
        keywords = {name.removeprefix("kwarg.") for name in (mine.name, theirs.name)}
        if not any(keywords == alias for alias in ALIASES):
            return False
    if mine.meta is None or theirs.meta is None:
        return mine.meta is theirs.meta
    return mine.meta.shape == theirs.meta.shape


def side_of(slot: CallSlot | None) -> SlotSide | None:
    """What a result shows of one side; statistics that the dump does not have stay None."""
    if slot is None:
        return None
    if slot.meta is None:
        return SlotSide(text=slot.scalar.text if slot.scalar is not None else "")
    stats = slot.stats
    if stats is None:
        return SlotSide(dtype=slot.meta.dtype, shape=slot.meta.shape)
    nan, inf = _counts(slot.known)
    return SlotSide(
        slot.meta.dtype,
        slot.meta.shape,
        stats.min,
        stats.max,
        stats.mean,
        stats.l2,
        stats.nan if nan else None,
        stats.positive_inf + stats.negative_inf if inf else None,
    )


@functools.lru_cache(maxsize=256)
def _counts(known: tuple[str, ...]) -> tuple[bool, bool]:
    """Whether NaN, and whether Inf, are counted where these fields are known."""
    return "nan" in known, not {"positive_inf", "negative_inf"}.isdisjoint(known)


def scalar_difference(mine: Scalar, theirs: Scalar, *, roundoff: float, same_format: bool = True) -> str:
    """What differs, in words; empty where the two mean the same.

    1 and 1.0 are one number. Names of dtypes and devices may differ: the first are judged with the dtypes of the run,
    the second are no fault. A float of more than six digits was computed by the program, and may differ by the noise
    of the run's dtype, of which `roundoff` is u. Between formats only numbers and names are compared, no lists and no
    objects: one tells `ones(2, 3)` as two numbers, another as one list, and msprobe an object as None.
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
    elif not same_format and ((a is None) != (b is None) or any(s.text.startswith(NO_NAME) for s in (mine, theirs))):
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
