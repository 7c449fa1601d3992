"""Reductions, scans and sorts over the last dimension, as Inductor's IR means them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from graphprobe.internals.ir.index import NotEvaluated


def reduce_plain(reduction: str, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """A reduction of one value to one value; sums and products add up in `dtype`."""
    if reduction in ("sum", "dot"):
        return rows.sum(-1, dtype=dtype)
    if reduction == "prod":
        return rows.prod(-1, dtype=dtype)
    if reduction in ("max", "min"):
        return (rows.amax(-1) if reduction == "max" else rows.amin(-1)).to(dtype)
    if reduction == "any":
        return rows.to(torch.bool).any(-1).to(dtype)
    if reduction == "xor_sum":
        while rows.shape[-1] > 1:
            if rows.shape[-1] % 2:
                rows = torch.cat([rows, torch.zeros_like(rows[..., :1])], -1)
            half = rows.shape[-1] // 2
            rows = rows[..., :half] ^ rows[..., half:]
        return rows[..., 0].to(dtype)
    raise NotEvaluated(f"the reduction {reduction}")


def arg_reduce(rows: Tensor, positions: Tensor | None, which: str) -> tuple[Tensor, Tensor]:
    """The extreme value and the least position of it; NaN is more extreme than any number.

    Args:
        positions: what each element's position counts as; None for its place in the row.
        which: `argmax` or `argmin`.
    """
    extreme = rows.amax(-1) if which == "argmax" else rows.amin(-1)
    there = rows == extreme.unsqueeze(-1)
    if rows.is_floating_point():
        there = there | (rows.isnan() & extreme.isnan().unsqueeze(-1))
    if positions is None:
        positions = torch.arange(rows.shape[-1], device=rows.device)
    return extreme, torch.where(there, positions, torch.iinfo(torch.int64).max).amin(-1)


def welford(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, sum of squared deviations and weight; from values, or from three such combined."""
    if len(rows) == 1:
        mean, deviations, weight = rows[0], torch.zeros_like(rows[0]), torch.ones_like(rows[0])
    else:
        mean, deviations, weight = rows
    total = weight.sum(-1)
    center = (mean * weight).sum(-1) / total
    center = torch.where(total == 0, torch.zeros_like(center), center)
    return center, (deviations + weight * (mean - center.unsqueeze(-1)) ** 2).sum(-1), total


def online_softmax(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Maximum, and sum of the exponentials relative to it; from values, or from such pairs combined."""
    values = rows[0]
    weights = rows[1] if len(rows) > 1 else torch.ones_like(values)
    most = values.amax(-1)
    shift = torch.where(most == -torch.inf, torch.zeros_like(most), most)
    return most, (weights * torch.exp(values - shift.unsqueeze(-1))).sum(-1)


Parts = tuple[Tensor, ...]


def scan(combine: Callable[[Parts, Parts], Parts], rows: Sequence[Tensor]) -> Parts:
    """Inclusive scan with an associative `combine`, in about log2 steps."""
    done: Parts = tuple(rows)
    length, step = done[0].shape[-1], 1
    while step < length:
        later = combine(tuple(x[..., :-step] for x in done), tuple(x[..., step:] for x in done))
        done = tuple(torch.cat([x[..., :step], y], -1) for x, y in zip(done, later, strict=True))
        step *= 2
    return done


def sort(rows: Sequence[Tensor], descending: bool) -> Parts:
    """Rows ordered by the first of them, always stable."""
    keys, order = torch.sort(rows[0], dim=-1, descending=descending, stable=True)
    return (keys, *(torch.gather(x, -1, order) for x in rows[1:]))
