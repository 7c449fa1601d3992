"""One line about one tensor, for `graphprobe.ops.print`."""

from __future__ import annotations

from collections.abc import Sequence

from graphprobe.records import TensorMeta, TensorStats
from graphprobe.report.visible import visible


def print_tensor(
    name: str, meta: TensorMeta, stats: TensorStats | None, first: Sequence[object], *, lacking: str = ""
) -> None:
    """Write the line to standard output, at once."""
    print(visible(line_from_tensor(name, meta, stats, first, lacking=lacking)), flush=True)


def line_from_tensor(
    name: str, meta: TensorMeta, stats: TensorStats | None, first: Sequence[object], *, lacking: str = ""
) -> str:
    """`h: float32 (2, 3) cpu  min 0  max 5  mean 2.5  nan 0  inf 0  [0, 1, 2, …]`.

    Args:
        name: may be empty.
        meta: dtype, shape and device.
        stats: min, max and mean are those of the finite elements; None where there are none.
        first: the first elements, row-major.
        lacking: why there are no statistics.
    """
    parts = [f"{meta.dtype} {_shape(meta.shape)} {meta.device}"]
    if stats is None:
        parts.append(f"no statistics: {lacking}")
    else:
        parts += [f"{key} {_number(value)}" for key, value in _numbers(stats)]
    if first:
        more = ", …" if stats is not None and len(first) < stats.count else ""
        parts.append(f"[{', '.join(_number(value) for value in first)}{more}]")
    return "  ".join([f"{name}: {parts[0]}" if name else parts[0], *parts[1:]])


def _numbers(stats: TensorStats) -> list[tuple[str, float | int | None]]:
    infinite = stats.positive_inf + stats.negative_inf
    return [("min", stats.min), ("max", stats.max), ("mean", stats.mean), ("nan", stats.nan), ("inf", infinite)]


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:.6g}" if isinstance(value, complex) else str(value)


def _shape(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
