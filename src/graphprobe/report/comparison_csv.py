"""A comparison as CSV: the columns of ptdbg_ascend, then ours."""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from graphprobe.compare.result import CallName, CallResult, SlotResult, SlotSide

SOURCE_COLUMNS = (
    "NPU Name",
    "Bench Name",
    "NPU Tensor Dtype",
    "Bench Tensor Dtype",
    "NPU Tensor Shape",
    "Bench Tensor Shape",
    "Cosine",
    "MaxAbsErr",
    "MaxRelativeErr",
    "One Thousandth Err Ratio",
    "Five Thousandths Err Ratio",
    "NPU max",
    "NPU min",
    "NPU mean",
    "NPU l2norm",
    "Bench max",
    "Bench min",
    "Bench mean",
    "Bench l2norm",
    "Accuracy Reached or Not",
    "Err_message",
)
STACK_COLUMN = "NPU_Stack_Info"
OUR_COLUMNS = (
    "Verdict",
    "Blame",
    "Noise Level",
    "Max Z",
    "Max ULP",
    "Worst Element",
    "Basis",
    "Rule",
    "Module",
    "Source",
    "Step",
    "Rank",
)
NOT_THERE = "N/A"


def slot_label(call: CallName, slot: str, direction: str) -> str:
    """`linear.3.forward.input.0`; `21_Torch_norm_forward_input.0` for labels without a dot."""
    return f"{call.label}.{slot}" if "." in call.label else f"{call.label}_{slot}"


def write_csv(
    rows: Iterable[CallResult],
    file: IO[str],
    *,
    stack: bool = False,
    label: Callable[[CallName, str, str], str] = slot_label,
) -> int:
    """Writes one line a slot, and one a call without a partner; returns how many.

    Args:
        rows: of `Comparison.rows()`.
        file: opened with `newline=""`.
        stack: adds the source's column with the program's frames.
        label: the name of a slot, of its call, its own name and the call's direction.
    """
    writer = csv.writer(file)
    writer.writerow([*SOURCE_COLUMNS, *([STACK_COLUMN] if stack else []), *OUR_COLUMNS])
    count = 0
    for row in rows:
        lines = list(_lines(row, stack, label))
        writer.writerows(lines)
        count += len(lines)
    return count


def _lines(row: CallResult, stack: bool, label: Callable[[CallName, str, str], str]) -> Iterator[list[object]]:
    name = row.candidate or row.reference
    assert name is not None
    trace = ["\n".join(name.stack)] if stack else []
    if row.rule is None:
        head = [
            row.candidate.label if row.candidate else NOT_THERE,
            row.reference.label if row.reference else NOT_THERE,
        ]
        blank: list[object] = [NOT_THERE] * (len(SOURCE_COLUMNS) - 3)
        ours = [row.verdict, row.blame, "", "", "", "", "", "none", name.module, name.source, row.step, row.rank]
        yield [*head, *blank, f"no partner: {row.reason}", *trace, *ours]
        return
    for slot in row.slots:
        yield [*_source(row, slot, label), *trace, *_ours(row, slot, name)]


def _source(row: CallResult, slot: SlotResult, label: Callable[[CallName, str, str], str]) -> list[object]:
    a, b = slot.candidate, slot.reference
    mine, other = row.candidate, row.reference
    name = slot.reference_name or slot.name
    measured: list[object] = [
        slot.cosine, slot.max_abs, slot.max_relative, slot.within_1_1000, slot.within_5_1000,
        *_statistics(a), *_statistics(b),
    ]  # fmt: skip
    return [
        label(mine, slot.name, row.direction) if a is not None and mine is not None else NOT_THERE,
        label(other, name, row.direction) if b is not None and other is not None else NOT_THERE,
        _dtype(a),
        _dtype(b),
        _shape(a),
        _shape(b),
        *(measured if None not in measured else [NOT_THERE if value is None else value for value in measured]),
        slot.accuracy or NOT_THERE,
        slot.reason,
    ]


def _ours(row: CallResult, slot: SlotResult, name: CallName) -> list[object]:
    return [
        slot.verdict,
        slot.blame,
        slot.level,
        slot.z,
        NOT_THERE if slot.ulp is None else slot.ulp,
        "" if slot.worst is None else str(list(slot.worst)),
        slot.basis,
        row.rule,
        name.module,
        name.source,
        row.step,
        row.rank,
    ]


def _dtype(side: SlotSide | None) -> str:
    return side.dtype or side.text if side is not None else NOT_THERE


def _shape(side: SlotSide | None) -> str:
    return _shape_text(side.shape) if side is not None and side.shape is not None else NOT_THERE


@functools.lru_cache(maxsize=4096)
def _shape_text(shape: tuple[int, ...]) -> str:
    return str(list(shape))


def _statistics(side: SlotSide | None) -> tuple[object, ...]:
    return (None, None, None, None) if side is None else (side.max, side.min, side.mean, side.l2)
