"""From tensors to what the rules of an overflow look at; on a device, without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphprobe.engine.tensor_stats import readable, stats_of
from graphprobe.errors import UsageError
from graphprobe.internals.quiet import quiet
from graphprobe.internals.tensors.weak_storage import span_of
from graphprobe.probe.dump.infinities import largest
from graphprobe.probe.dump.overflow_rules import BadOutput, FloatSummary
from graphprobe.probe.dump.session import Values

MOST_ELEMENTS = 8
"""Elements of an output that are named."""


def judged(values: Values) -> list[tuple[str, torch.Tensor]]:
    """The slots that can overflow: plain tensors of floats or complex numbers."""
    return [(name, value) for name, value in values if isinstance(value, torch.Tensor) and _is_float(value)]


def memory_of(tensor: torch.Tensor) -> int:
    """Address of the tensor's storage, 0 when it has none."""
    try:
        return span_of(tensor)[0]
    except RuntimeError:
        return 0


def limit_of(dtype: torch.dtype) -> float:
    """Largest finite number of fp16, bf16 and the 8-bit floats; 0 for dtypes that nothing is judged by."""
    return largest(dtype) if dtype in _JUDGED else 0.0


def summary_of(slot: str, tensor: torch.Tensor) -> FloatSummary:
    """Of a tensor on the CPU; one that cannot be read counts as finite."""
    memory = memory_of(tensor)
    try:
        stats = stats_of(tensor)
    except UsageError:
        return FloatSummary(slot, memory, 0, 0, 0)
    low, high = stats.min or 0.0, stats.max or 0.0
    return FloatSummary(
        slot, memory, stats.nan, stats.positive_inf, stats.negative_inf, low, high, limit_of(tensor.dtype)
    )


def row_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The numbers of a summary on the tensor's device: float64, shape (5,). None for what cannot be read."""
    try:
        plain = readable(tensor)
    except UsageError:
        return None
    with quiet():
        values = torch.view_as_real(plain) if plain.is_complex() else plain
        if values.element_size() == 1:
            values = values.to(torch.float32)
        if not values.numel():
            return torch.zeros(5, dtype=torch.float64, device=values.device)
        finite = torch.isfinite(values)
        known = torch.where(finite, values, 0.0)
        counts = (torch.isnan(values).sum(), (values == torch.inf).sum(), (values == -torch.inf).sum())
        return torch.stack([found.to(torch.float64) for found in (*counts, known.amin(), known.amax())])


def summary_from_row(slot: str, memory: int, dtype: torch.dtype, row: Sequence[float]) -> FloatSummary:
    """The summary of a row that was copied to the host."""
    nan, positive, negative, low, high = row
    return FloatSummary(slot, memory, int(nan), int(positive), int(negative), low, high, limit_of(dtype))


def elements(tensor: torch.Tensor, problem: BadOutput) -> dict[str, Any]:
    """How many elements of an output show a problem, and the first of them by index. Waits for the device."""
    with quiet():
        plain = readable(tensor).to("cpu")
        values = plain.to(torch.float32) if plain.element_size() == 1 else plain
        if problem.kind == "nan":
            hit = torch.isnan(values)
        elif values.is_complex():
            hit = torch.isinf(values)
        else:
            end = torch.inf if problem.kind == "inf" else limit_of(tensor.dtype)
            hit = values == (end if problem.sign == "+" else -end)
        where = hit.nonzero()
        return {
            "output": problem.slot,
            "kind": problem.kind,
            "sign": problem.sign,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "elements": int(hit.sum()),
            "of": tensor.numel(),
            "first": where[:MOST_ELEMENTS].tolist(),
        }


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


_JUDGED = {
    getattr(torch, name)
    for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
    if hasattr(torch, name)
}
