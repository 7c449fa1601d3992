"""Which slot of a call is which slot of its partner: by name, then by role and place."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from graphprobe.compare.naming import canonical
from graphprobe.compare.result import SlotSide
from graphprobe.store.calls import CallSlot

ALIASES = (frozenset(("dim", "axis")), frozenset(("keepdim", "keepdims")), frozenset(("input", "x")))
"""Keywords of which torch takes either, the second as numpy has it."""

SlotPair = tuple[CallSlot | None, CallSlot | None]


def same_names(mine: Sequence[CallSlot], theirs: Sequence[CallSlot]) -> bool:
    """Whether both sides have the same slots in the same order, as most pairs of calls do."""
    return [slot.name for slot in mine] == [slot.name for slot in theirs]


def pair_slots(mine: Sequence[CallSlot], theirs: Sequence[CallSlot]) -> list[SlotPair]:
    """All slots of both sides, in the candidate's order; a slot without a partner comes with None."""
    if same_names(mine, theirs):
        return list(zip(mine, theirs, strict=True))
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


WEIGHTS = frozenset("weight bias running_mean running_var in_proj_weight in_proj_bias".split())
"""Keywords that weights and buffers are given by."""

WEIGHTS_BY_PLACE: dict[str, tuple[int, ...]] = {
    "linear": (1, 2),
    "conv": (1, 2),
    "conv_transpose1d": (1, 2),
    "conv_transpose2d": (1, 2),
    "conv_transpose3d": (1, 2),
    "bilinear": (2, 3),
    "embedding": (1,),
    "embedding_bag": (1,),
    "prelu": (1,),
    "layer_norm": (2, 3),
    "group_norm": (2, 3),
    "rms_norm": (2,),
    "batch_norm": (1, 2, 3, 4),
    "instance_norm": (1, 2, 3, 4),
}
"""By `naming.canonical`, the places of arguments that are weights and buffers."""


def is_weight_by_name(api: str, slot: str) -> bool:
    """Whether an input is a weight or buffer by its keyword, or by its place in a function that is known."""
    kind, _, rest = slot.partition(".")
    if kind == "kwarg":
        return rest in WEIGHTS
    return rest.isdecimal() and len(rest) < 10 and int(rest) in WEIGHTS_BY_PLACE.get(canonical(api), ())


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
