"""Of the guards that failed at one recompilation, those that are the cause, and what they say in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from graphprobe.analysis.recompile_facts import (
    FailedGuard,
    ReadGuard,
    Recompile,
    check_from_text,
    counted_keys,
    root_name,
)

Aspect = tuple[str, str, int | None]
Read = tuple[FailedGuard, ReadGuard]

SHARED = "shared-code"
MODES = frozenset(
    {"grad-mode-changed", "autocast-changed", "global-state-changed", "function-mode-changed", "backend-changed"}
)
"""Kinds that are about the process, or the backend, and not about the call."""


class Versions(msgspec.Struct):
    """What the compiled versions of one function were made for, by compile id and by what was looked at."""

    values: dict[str, dict[Aspect, str]] = {}
    dynamic: set[Aspect] = set()
    """What has changed once, so that torch makes later versions for any value of it."""

    def add(self, fact: Recompile, checks: Sequence[ReadGuard]) -> None:
        """The version that is compiled for this call."""
        if fact.compile_id is None or fact.limit_hit is not None:
            return
        if fact.dynamic is not False and fact.automatic_dynamic:
            self.dynamic |= {_aspect(check) for check in checks if check.kind in _MADE_DYNAMIC and not check.parameter}
        made_for = {_aspect(check): check.actual for check in checks if check.actual is not None}
        self.values[fact.compile_id] = made_for | dict.fromkeys(self.dynamic, ANY)


ANY = "any"
_MADE_DYNAMIC = frozenset({"size-changed", "int-changed", "float-changed"})


class Cause(msgspec.Struct, frozen=True):
    """Why one recompilation took place.

    Attributes:
        kind: slug; more precise than the check's, with what is known of the function.
        check: the guard, read.
        guard: as it was noted; None when torch gave none.
        values: what was expected and what came.
    """

    kind: str
    check: ReadGuard
    guard: FailedGuard | None
    values: tuple[str, ...]

    def sentence(self, name: str, values: list[str], limit: int | None) -> str:
        """The cause in words, with all the values seen of the group; `limit` is that of the function."""
        return _sentence(self.kind, self.check, name, values, limit)


def causes_of(fact: Recompile, versions: Versions) -> list[Cause]:
    """The causes of one recompilation; `versions` is that of its function, and is brought up to date.

    Every version that there is failed at a guard of its own. Those count that are nearest to the call: made in the same
    mode, for the same class, for the same object. Of them, what one was made for is no cause: if one fails at the dtype
    and another at the size, and the dtype is that of the second, then the size is what is new. Where nothing is new but
    the values together, the version that was used last decides.
    """
    read = [(guard, _learnt(_completed(check_from_text(guard.text), guard), guard, versions)) for guard in fact.guards]
    if not read:
        return [Cause("unexplained", ReadGuard("unexplained"), None, ())]
    nearest = _nearest(read, fact)
    fresh = [(guard, check) for guard, check in nearest if _is_new(check, nearest, versions)]
    versions.add(fact, [check for _, check in read])
    causes: dict[tuple[str, int | None], Cause] = {}
    for guard, check in _settled(fresh or nearest[:1], fact):
        cause = _cause(guard, check, fact)
        causes.setdefault((cause.check.source or cause.kind, cause.check.dim), cause)
    return list(causes.values())


def _nearest(read: Sequence[Read], fact: Recompile) -> list[Read]:
    """The guards of the versions that differ the least from what is called now."""
    ranks = [
        (check.kind == "backend-changed", check.kind in MODES, _is_other(guard, fact), guard.same_owner is False)
        for guard, check in read
    ]
    least = [pair for pair, rank in zip(read, ranks, strict=True) if rank == min(ranks)]
    states = [_states(check) for _, check in least]
    return [pair for pair, state in zip(least, states, strict=True) if not any(other < state for other in states)]


def _is_other(guard: FailedGuard, fact: Recompile) -> bool:
    """Whether the version was made for another class, or for another function behind the same decorator."""
    return None not in (guard.owner, fact.owner) and guard.owner != fact.owner


def _states(check: ReadGuard) -> frozenset[str]:
    return frozenset((check.condition or check.kind).split()) if check.kind in MODES else frozenset()


def _aspect(check: ReadGuard) -> Aspect:
    return check.kind, check.source, check.dim


def _is_new(check: ReadGuard, nearest: Sequence[Read], versions: Versions) -> bool:
    made_for = [versions.values.get(guard.entry, {}).get(_aspect(check)) for guard, _ in nearest]
    if check.actual is None:
        return True
    same = {check.actual} if check.actual in ("0", "1") else {check.actual, ANY}
    if check.kind == "keys-changed":
        same.add(counted_keys(len(check.actual.split(", "))))
    return same.isdisjoint(made_for)


def _learnt(check: ReadGuard, guard: FailedGuard, versions: Versions) -> ReadGuard:
    """Keep what the guard tells of its version; of keys, what is known already says more than their number."""
    if check.expected is None:
        return check
    values = versions.values.setdefault(guard.entry, {})
    known = values.setdefault(_aspect(check), check.expected)
    if check.kind == "keys-changed" and re.fullmatch(r"\d+ keys?", check.expected):
        return msgspec.structs.replace(check, expected=known)
    values[_aspect(check)] = check.expected
    return check


def _completed(check: ReadGuard, guard: FailedGuard) -> ReadGuard:
    """With the value that came, where torch does not say it; of keys, all those that the guard tells about."""
    if check.kind == "keys-changed" and check.dim is not None and check.expected is not None:
        # A guard on the keys comes behind the one on their number, and those before it were the same.
        came = guard.actual.split(", ") if guard.actual is not None else []
        more = ["…"] * (len(came) > check.dim + 1)
        expected = ", ".join([*came[: check.dim], check.expected, *more])
        return msgspec.structs.replace(check, dim=None, expected=expected, actual=guard.actual)
    if check.actual is not None or guard.actual is None:
        return check
    return msgspec.structs.replace(check, actual=guard.actual)


_SIZES = frozenset({"size-changed", "size-condition", "size-bounds"})


def _settled(read: Sequence[Read], fact: Recompile) -> list[Read]:
    """One guard for each size: what the code asks of it counts more than that another version has it as a number."""
    sized: dict[tuple[str, int | None], list[Read]] = {}
    for guard, check in read:
        if check.kind in _SIZES:
            sized.setdefault((check.source, check.dim), []).append((guard, check))
    settled = {key: _settled_size(checks, fact) for key, checks in sized.items()}
    return [settled[check.source, check.dim] if check.kind in _SIZES else (guard, check) for guard, check in read]


def _settled_size(read: Sequence[Read], fact: Recompile) -> Read:
    """torch makes versions for 0 and 1 alone, of a size that is dynamic else."""
    sizes = [check.actual for _, check in read if check.actual is not None and check.actual.isdecimal()]
    size = sizes[0] if sizes else None
    special = fact.dynamic or (fact.dynamic is None and fact.automatic_dynamic)
    asked = next((pair for pair in read if pair[1].kind != "size-changed"), None)
    guard, check = asked or read[0]
    if check.kind == "size-bounds":
        check = msgspec.structs.replace(check, kind="size-condition", actual=size)
    if not special or check.parameter:
        return guard, check
    made_for = [value for _, check in read if (value := check.expected) is not None]
    small = [value for value in (*made_for, size) if value in ("0", "1")]
    if size in ("0", "1") or (asked is None and small and len(small) == len(made_for)):
        first, last = (small[0], small[-1]) if len(set(small)) > 1 else (None, small[-1])
        check = msgspec.structs.replace(check, kind="size-zero-one", expected=first, actual=last)
    return guard, check


def _cause(guard: FailedGuard, check: ReadGuard, fact: Recompile) -> Cause:
    if _is_other(guard, fact):
        check = ReadGuard(SHARED, expected=guard.owner, actual=fact.owner)
    if check.kind == "alias-changed" and guard.actual not in (None, "Tensor"):
        # Two objects that are no tensors: the first is compared with the second by identity.
        check = ReadGuard("object-changed", check.source.partition(" and ")[0], actual=guard.actual)
    values = tuple(value for value in (check.expected, check.actual) if value is not None)
    return Cause(_kind(check, guard, fact), check, guard, values)


_OF_A_VARIABLE = frozenset(
    "int-changed float-changed bool-changed string-changed constant-changed none-changed type-changed function-changed "
    "object-changed value-condition".split()
)


_OF_AN_INSTANCE = frozenset({*_OF_A_VARIABLE, "attribute-changed", "length-changed", "keys-changed"})


def _kind(check: ReadGuard, guard: FailedGuard, fact: Recompile) -> str:
    root = root_name(check.source)
    if check.kind in _OF_A_VARIABLE and check.source.startswith("G["):
        return "global-changed"
    other = fact.other_instance if guard.same_owner is None else not guard.same_owner
    around = root in fact.free_variables
    part = check.source.startswith((f"{fact.first_argument}.", f"{root}." if around else f"{fact.first_argument}."))
    if other and part and check.kind in _OF_AN_INSTANCE:
        return "instance-changed"
    return "closure-changed" if around and check.kind in _OF_A_VARIABLE else check.kind


def _sentence(kind: str, check: ReadGuard, name: str, values: list[str], limit: int | None) -> str:
    seen = ("; " if kind == "keys-changed" else ", ").join(values)
    dim = f"dim {check.dim} of {name}"
    condition = re.sub(r"\s+", " ", check.condition or "")
    texts = {
        "size-changed": f"the size of {dim} changed: {seen}",
        "size-zero-one": f"the size of {dim} is {' or '.join(values) or '0 or 1'}, which torch compiles by itself",
        "size-condition": f"the size of {dim} does not meet what the code asked of it: {condition}",
        "sizes-equal": f"two sizes are equal no more: {condition}",
        "stride-changed": f"the stride of {dim} changed: {seen}",
        "dtype-changed": f"the dtype of {name} changed: {seen}",
        "rank-changed": f"the number of dimensions of {name} changed: {seen}",
        "requires-grad-changed": f"requires_grad of {name} changed: {seen}",
        "device-changed": f"the device of {name} changed: {seen}",
        "tensor-state-changed": f"{name} is another sort of tensor: {seen}",
        "tensor-class-changed": f"the class of {name} changed: {seen}",
        "dynamic-mark-changed": "a tensor was marked (mark_dynamic or its like) after the function had been compiled",
        "alias-changed": f"whether {name} are one and the same tensor changed",
        "none-changed": f"{name} is None in some calls and not in others: {seen}",
        "type-changed": f"the type of {name} changed: {seen}",
        "function-changed": f"{name} is another function object" + (f": {seen}" if seen else ""),
        "object-changed": f"{name} is another object" + (f": {seen}" if seen else ""),
        "object-freed": f"{name}, for which the function was compiled, no longer exists",
        "instance-changed": f"another instance, whose {name} differs: {seen}",
        "training-mode-changed": f"{name} changed: {seen}",
        "global-changed": f"the global {name} changed: {seen}",
        SHARED: f"one piece of code is compiled for several: {', '.join(map(short_name, values))}; each has versions "
        "of its own, and they share the limit" + ("" if limit is None else f" of {limit}"),
        "closure-changed": f"{name}, which the function takes from around it, changed: {seen}",
        "length-changed": f"the length of {name} changed: {seen}",
        "keys-changed": f"the keys of {name} changed: {seen}",
        "value-condition": f"{name} does not meet what the code asked of it: {condition}",
        "grad-mode-changed": "whether gradients are recorded changed (torch.no_grad, inference_mode, enable_grad)",
        "autocast-changed": f"autocast changed: {condition}",
        "global-state-changed": f"a setting of torch changed: {condition}",
        "function-mode-changed": "the torch function modes, such as `with torch.device(...)`, changed",
        "backend-changed": "the function was given to torch.compile with another backend object",
        "unexplained": "torch found no guard that fails",
        "other": f"a guard failed: {condition}",
    }
    return texts.get(kind, f"{name} changed: {seen}")


def short_name(owner: str) -> str:
    """Classes and functions without their modules: `T5Model` of `transformers.models.t5.T5Model`."""
    return re.sub(r"(?:\w+\.)+(?:<locals>\.)?(?=[\w<])", "", owner)
