"""Side effects of a call: what its function can reach besides tensors of arguments and modules, before and after it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graphprobe.engine.values import capture, from_bytes, to_bytes, why_not
from graphprobe.internals.quiet import quiet
from graphprobe.internals.tensors import tree_leaves
from graphprobe.judge.effect_walk import MOST_BYTES, NUMPY, TORCH, Walk, form_of, global_generators, is_generator

_NOTHING = object()


@dataclass(frozen=True)
class Effect:
    """One thing that a call left otherwise than the uncompiled call did.

    Attributes:
        where: its label in the snapshots.
        expected: what the uncompiled call left there, as text.
        got: what is there instead.
    """

    where: str
    expected: str
    got: str


def snapshot(fn: Any, arguments: tuple[Sequence[Any], Mapping[str, Any]]) -> dict[str, Any]:
    """What the user's code that `fn` leads to can read and write at this moment.

    No code of the user runs, and nothing is raised: what cannot be read is left out.

    Args:
        fn: the uncompiled function or module.
        arguments: `(args, kwargs)` of the call.

    Returns:
        Label → number, text, None, dtype, device, or a tensor in memory of its own. Anything else is described as
        `<…>`: an object by its type, a container by its length and keys, a random generator by a digest of its state.
        So are tensors that are arguments, parameters or buffers: their values are observed elsewhere.
    """
    with quiet():
        walk = Walk()
        with contextlib.suppress(Exception):
            walk.elsewhere.update(id(leaf) for leaf in tree_leaves(arguments) if issubclass(type(leaf), torch.Tensor))
        walk.variable("", fn, 0)
        for name, value in (*enumerate(arguments[0]), *arguments[1].items()):
            walk.show(f"argument {name}", value, 0)
        walk.go_on()
        return {**dict(global_generators()), **_copied(walk.values, walk.elsewhere)}


def plain_values(fn: Any) -> dict[str, Any]:
    """The numbers and texts around `fn` that the user's code it leads to can read at this moment, by their labels."""
    with quiet():
        walk = Walk()
        walk.variable("", fn, 0)
        walk.go_on()
        return {label: value for label, value in walk.values.items() if isinstance(value, (bool, int, float, str))}


def to_record(values: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """A snapshot as bytes."""
    return to_bytes(capture([list(values), list(values.values())], rng=False))


def from_record(record: tuple[bytes, bytes]) -> dict[str, Any]:
    """The inverse of `to_record`; tensors are on the CPU."""
    labels, values = from_bytes(*record).restore("cpu")
    return dict(zip(labels, values, strict=True))


def nearly_equal(a: Any, b: Any) -> bool:
    """Whether two values of snapshots are the same, numbers but for rounding, described tensors by dtype and shape."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and _nearly(a.cpu(), b.cpu())
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        tensor, other = (a, b) if isinstance(a, torch.Tensor) else (b, a)
        return isinstance(other, str) and other == form_of(tensor)
    if type(a) is not type(b):
        return False
    if isinstance(a, (float, complex)):
        wide = torch.float64 if isinstance(a, float) else torch.complex128
        return a == b or _nearly(torch.tensor(a, dtype=wide), torch.tensor(b, dtype=wide))
    return bool(a == b)


def differing(
    before: Mapping[str, Any],
    eager_after: Mapping[str, Any],
    compiled_after: Mapping[str, Any],
    other_eager_afters: Sequence[Mapping[str, Any]],
    *,
    compiled_before: Mapping[str, Any] | None = None,
) -> list[Effect]:
    """What the compiled call left otherwise than the uncompiled one, where uncompiled calls agree with each other.

    Generators of torch differ only where one call moved them and the other did not: compiled code draws other numbers
    by design. By design, too, Dynamo draws numpy's from torch: where the uncompiled call moved numpy's generator and
    the compiled one torch's, neither tells anything.

    Args:
        before: the snapshot before the uncompiled call.
        compiled_before: the one before the compiled call, where that is another.
    """
    start = before if compiled_before is None else compiled_before
    with quiet():
        unsteady = {
            label
            for run in other_eager_afters
            for label in {*eager_after, *run}
            if not nearly_equal(eager_after.get(label, _NOTHING), run.get(label, _NOTHING))
        }
        skipped = [part for label in unsteady for part in _below(label)]
        if eager_after.get(NUMPY) != before.get(NUMPY) and compiled_after.get(TORCH) != start.get(TORCH):
            unsteady |= {NUMPY, TORCH}
        found: list[Effect] = []
        for label in dict.fromkeys([*eager_after, *compiled_after]):
            e, c = eager_after.get(label, _NOTHING), compiled_after.get(label, _NOTHING)
            if label in unsteady or nearly_equal(e, c) or label.startswith(tuple(skipped)):
                continue
            if nearly_equal(e, before.get(label, _NOTHING)) and nearly_equal(c, start.get(label, _NOTHING)):
                continue  # no call changed it: in a fresh process, functions have other names
            if not (is_generator(e) and is_generator(c)):
                found.append(Effect(label, _said(e), _said(c)))
            elif effect := _moved(label, e, c, e != before.get(label), c != start.get(label)):
                found.append(effect)
            if e is _NOTHING or c is _NOTHING:  # then so is all that is inside
                skipped += _below(label)
        return found


def _copied(values: dict[str, Any], elsewhere: set[int]) -> dict[str, Any]:
    """The values, tensors in memory of their own; those that are observed elsewhere, or too large, in words."""
    found, size = dict[str, Any](), 0
    for label, value in values.items():
        if not isinstance(value, torch.Tensor):
            found[label] = value
            continue
        with contextlib.suppress(Exception):
            found[label] = form_of(value)
            if id(value) in elsewhere or why_not(value) is not None:
                continue
            size += value.numel() * value.element_size()
            if size <= MOST_BYTES:
                found[label] = value.detach().clone(memory_format=torch.contiguous_format)
    return found


def _below(label: str) -> tuple[str, str]:
    """How the labels of what is inside begin."""
    return f"{label}[", f"{label}."


def _nearly(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether tensors of one dtype and shape hold the same, numbers with a point but for rounding."""
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    eps = torch.finfo(a.dtype).eps
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    finite = a.isfinite() & b.isfinite()
    x, y = a[~finite], b[~finite]
    if not bool(((x == y) | (x.isnan() & y.isnan())).all()):
        return False
    x, y = a[finite], b[finite]
    if not x.numel():
        return True
    relative = 1e-5 if eps < 1e-4 else max(1e-3, 2 * eps)
    return bool((x - y).abs().max() <= relative * torch.maximum(x.abs().max(), y.abs().max()) + 1e-7)


def _moved(label: str, e: str, c: str, by_eager: bool, by_compiled: bool) -> Effect | None:
    """How the states of a generator differ after the calls; None where compiled code may leave it so."""
    if by_eager and by_compiled:
        return (
            None if e.startswith("<torch.") and c.startswith("<torch.") else Effect(label, "moved", "moved otherwise")
        )
    words = {True: "moved", False: "not moved"}
    return Effect(label, words[by_eager], words[by_compiled]) if by_eager != by_compiled else None


def _said(value: Any) -> str:
    if value is _NOTHING:
        return "nothing"
    if isinstance(value, torch.Tensor):
        numbers = f" {value.tolist()}" if value.numel() <= 8 else ""
        return f"{form_of(value)[1:-1]}{numbers}"
    described = isinstance(value, str) and value.startswith("<") and value.endswith(">")
    return value[1:-1] if described else repr(value)
