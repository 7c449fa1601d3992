"""Of the guards that failed at one recompilation, the one that is the cause, and what it says in words."""

from __future__ import annotations

import re

import msgspec

from graphprobe.analysis.recompile_facts import FailedGuard, Recompile
from graphprobe.analysis.recompile_guards import Check, check_from_text, root_name

Aspect = tuple[str, str, int | None]


class Seen(msgspec.Struct):
    """Values that one function has been compiled for, by what was looked at."""

    values: dict[Aspect, set[str]] = {}
    instances: set[str] = set()
    """Attributes in which instances that share the function are known to differ."""


class Cause(msgspec.Struct, frozen=True):
    """Why one recompilation took place.

    Attributes:
        kind: slug; more precise than the check's, with what is known of the function.
        check: the guard, read.
        guard: as it was noted; None when torch gave none.
        values: what was expected and what came.
        new: False when every single value had been compiled for before, only not together.
    """

    kind: str
    check: Check
    guard: FailedGuard | None
    values: tuple[str, ...]
    new: bool = True

    def sentence(self, name: str, values: list[str]) -> str:
        """The cause in words, with all the values seen of the group."""
        return _sentence(self.kind, self.check, name, values)


def cause_of(fact: Recompile, seen: Seen) -> Cause:
    """The cause of one recompilation; `seen` is that of its function, and is brought up to date.

    Every version that there is failed at a guard of its own. What was compiled for before is no cause: if one version
    fails at the dtype and another at the size, and the dtype is that of the second, then the size is what is new.
    """
    read = [(guard, _completed(check_from_text(guard.text), guard)) for guard in fact.guards]
    if not read:
        return Cause("unexplained", Check("unexplained"), None, ())
    for _, check in read:
        if check.expected is not None:
            seen.values.setdefault(_aspect(check), set()).add(check.expected)
    fresh = [(guard, check) for guard, check in read if _is_new(check, seen)]
    guard, check = (fresh or read)[0]
    for _, check_seen in read:
        if check_seen.actual is not None:
            seen.values.setdefault(_aspect(check_seen), set()).add(check_seen.actual)
    if check.kind == "size-bounds":
        check = _settled_bounds(check, read)
    if check.kind == "alias-changed" and guard.actual not in (None, "Tensor"):
        # Two objects that are no tensors: the first is compared with the second by identity.
        check = Check("object-changed", check.source.partition(" and ")[0], actual=guard.actual)
    values = tuple(value for value in (check.expected, check.actual) if value is not None)
    return Cause(_kind(check, fact, seen), check, guard, values, new=bool(fresh))


def _aspect(check: Check) -> Aspect:
    return check.kind, check.source, check.dim


def _is_new(check: Check, seen: Seen) -> bool:
    return check.actual is None or check.actual not in seen.values.get(_aspect(check), ())


def _completed(check: Check, guard: FailedGuard) -> Check:
    """With the value that came, where torch does not say it."""
    if check.actual is not None or guard.actual is None:
        return check
    if check.kind == "keys-changed":
        return msgspec.structs.replace(check, actual=f"with {guard.actual}")
    return msgspec.structs.replace(check, actual=guard.actual)


def _settled_bounds(check: Check, read: list[tuple[FailedGuard, Check]]) -> Check:
    """`2 <= size <= 10` is failed below by 0 and 1, which torch wants, and above by the program's own condition."""
    sizes = [check.actual, *(c.actual for _, c in read if (c.source, c.dim) == (check.source, check.dim))]
    size = next((int(size) for size in sizes if size is not None and size.isdecimal()), None)
    kind = "size-zero-one" if size is not None and size < 2 else "size-condition"
    return msgspec.structs.replace(check, kind=kind, actual=None if size is None else str(size))


_OF_A_VARIABLE = frozenset(
    "int-changed float-changed bool-changed string-changed constant-changed none-changed type-changed function-changed "
    "object-changed value-condition".split()
)


def _kind(check: Check, fact: Recompile, seen: Seen) -> str:
    root = root_name(check.source)
    if check.kind in _OF_A_VARIABLE and check.source.startswith("G["):
        return "global-changed"
    if check.kind in _OF_A_VARIABLE and root in fact.free_variables:
        return "closure-changed"
    if check.kind == "attribute-changed" and root == fact.first_argument:
        if fact.other_instance:
            seen.instances.add(check.source)
        return "instance-changed" if check.source in seen.instances else check.kind
    return check.kind


def _sentence(kind: str, check: Check, name: str, values: list[str]) -> str:
    seen = ", ".join(values)
    dim = f"dim {check.dim} of {name}"
    condition = re.sub(r"\s+", " ", check.condition or "")
    texts = {
        "size-changed": f"the size of {dim} changed: {seen}",
        "size-zero-one": f"the size of {dim} is {check.actual or '0 or 1'}, which torch compiles by itself",
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
