"""What a compiled call gave, held against what the same call gave uncompiled: one line for every difference.

The part between the marks is copied, as text, into each repro, after the code of `engine.replay`, on which it stands;
the imports of graphprobe are left out there.
"""

from __future__ import annotations

# <comparison>
from collections.abc import Sequence
from typing import Any

import torch

from graphprobe.engine.replay import Undecided, brief

Leaves = list[tuple[str, Any]]


def flatten(value: Any, label: str) -> Leaves:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in flatten(item, f"{label}[{key!r}]")]
    if isinstance(value, (list, tuple)):
        return [leaf for i, item in enumerate(value) for leaf in flatten(item, f"{label}[{i}]")]
    return [(label, value)]


def numbered(values: Sequence[Any], label: str) -> Leaves:
    return [leaf for i, value in enumerate(values) for leaf in flatten(value, f"{label} {i}")]


def sharing(leaves: Leaves) -> list[str]:
    """For each tensor that lies in the same memory as an earlier one: the two labels."""
    first: dict[int, str] = {}
    shared = []
    for label, value in leaves:
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel():
            other = first.setdefault(value.untyped_storage().data_ptr(), label)
            shared += [f"{label} shares the memory of {other}"] if other != label else []
    return shared


class CallOutcome:
    """One call: what it raised, or its leaves: outputs, inputs after the call, gradients, attributes of the graph."""

    def __init__(self) -> None:
        self.raised: Exception | None = None
        self.leaves: Leaves = []
        self.strides: dict[str, tuple[int, ...]] = {}
        self.sharing: list[str] = []


def is_noisy(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def wide(value: torch.Tensor) -> torch.Tensor:
    value = (value.to_dense() if value.layout is not torch.strided else value).cpu().resolve_conj()
    return torch.view_as_real(value.to(torch.complex128)) if value.is_complex() else value.to(torch.float64)


def default_allowed(want: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    finite = want[want.isfinite()]
    rms = finite.square().mean().sqrt() if finite.numel() else 0.0
    return 16 * torch.finfo(dtype).eps * (want.nan_to_num(0.0, 0.0, 0.0).abs() + rms)


def compare(want: Any, have: Any, allowed: torch.Tensor | None) -> str | None:
    """How one compiled value differs from the uncompiled one; None when it does not."""
    if isinstance(want, float) and isinstance(have, float):
        want, have, allowed = torch.tensor(want), torch.tensor(have), None
    if not (isinstance(want, torch.Tensor) and isinstance(have, torch.Tensor)):
        given = have if want is None else want if have is None else None
        if isinstance(given, torch.Tensor):  # no gradient and a gradient of zeros are the same
            return None if not given.any() else f"{brief(have)}, expected {brief(want)}"
        return None if type(want) is type(have) and want == have else f"{brief(have)}, expected {brief(want)}"
    for what in ("dtype", "shape"):
        if (left := getattr(want, what)) != (right := getattr(have, what)):
            return f"{what} {right}, expected {left}"
    if not is_noisy(want):
        unequal = (want != have).cpu()
        if not unequal.any():
            return None
        at = tuple(unequal.nonzero()[0].tolist())
        gap = f"first at {at}: compiled {have[at].item()}, expected {want[at].item()}, allowed is equality"
        return f"{int(unequal.sum())} of {want.numel()} elements differ, {gap}"
    a, b = wide(want), wide(have)
    limit = (
        default_allowed(a, want.dtype)
        if allowed is None
        else allowed.to(torch.float64).nan_to_num(torch.inf, torch.inf)
    )
    if allowed is not None and want.is_complex():
        limit = limit.unsqueeze(-1)
    try:
        limit = limit.expand(a.shape)
    except RuntimeError as error:
        raise Undecided(f"allowed has shape {list(limit.shape)}, the value {list(a.shape)}") from error
    equal = (a == b) | (a.isnan() & b.isnan()) | (limit == torch.inf)
    finite = a.isfinite() & b.isfinite()
    gaps = torch.where(finite, (a - b).abs(), torch.inf)
    bad = ~equal & ~(gaps <= limit)
    if not bad.any():
        return None
    excess = torch.where(bad, gaps / limit.clamp_min(torch.finfo(torch.float64).tiny), -1.0)
    at = tuple(int(n) for n in torch.unravel_index(excess.reshape(-1).argmax(), a.shape)) if a.ndim else ()
    return (
        f"{int(bad.sum())} of {a.numel()} elements are further off than allowed, worst at {at}: "
        f"compiled {b[at].item():.9g}, expected {a[at].item():.9g}, "
        + (
            f"off by {gaps[at].item():.3g}, allowed {limit[at].item():.3g}"
            if finite[at]
            else "NaN and infinity must agree"
        )
    )


def shown(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__module__}.{type(error).__qualname__}: {first[:300]}".removeprefix("builtins.")


def moved(value: torch.Tensor, left: Sequence[int], right: Sequence[int]) -> bool:
    """Whether strides differ where they matter: in dimensions of more than one element."""
    return value.numel() > 1 and any(x != y for n, x, y in zip(value.shape, left, right, strict=True) if n > 1)


def compare_call(want: CallOutcome, have: CallOutcome, allowed: Sequence[torch.Tensor] | None, kind: str) -> list[str]:
    """One line for every difference of a compiled call from the uncompiled one."""
    if want.raised or have.raised:
        if want.raised and have.raised:
            return []
        error = want.raised or have.raised
        assert error is not None
        who = (
            ("compiled does not raise", "uncompiled raises")
            if want.raised
            else ("uncompiled does not", "compiled raises")
        )
        return [f"{who[1]} {shown(error)}; {who[0]}"]
    labels = [[label for label, _ in outcome.leaves] for outcome in (want, have)]
    if labels[0] != labels[1]:
        names = [f"{len(names)} values ({', '.join(names)})" for names in labels]
        return [f"compiled gives {names[1]}, expected {names[0]}"]
    lines, position = [], 0
    for (label, a), (_, b) in zip(want.leaves, have.leaves, strict=True):
        limit = None
        if is_noisy(a) and not label.startswith("attribute "):
            limit = allowed[position] if allowed is not None and position < len(allowed) else None
            position += 1
        if (text := compare(a, b, limit)) is not None:
            lines.append(f"{label}: {text}")
        elif kind == "wrong_stride" and label in want.strides and moved(a, want.strides[label], have.strides[label]):
            lines.append(f"{label}: stride {have.strides[label]}, expected {want.strides[label]}")
    if kind == "aliasing":
        lines += [f"{text}, only when compiled" for text in have.sharing if text not in want.sharing]
        lines += [f"{text}, not when compiled" for text in want.sharing if text not in have.sharing]
    return lines


# </comparison>
