"""A comparison as CSV: the columns of ptdbg_ascend, then ours."""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Iterable
from typing import IO

from graphprobe.compare.result import CallName, CallResult, SlotResult, SlotSide
from graphprobe.numerics.number_text import numbers_text

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
LINE_END = "\r\n"


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
    csv.writer(file).writerow([*SOURCE_COLUMNS, *([STACK_COLUMN] if stack else []), *OUR_COLUMNS])
    count = 0
    for row in rows:
        lines = _lines(row, stack, label)
        if lines:
            file.write(LINE_END.join([*lines, ""]))
            count += len(lines)
    return count


def _lines(row: CallResult, stack: bool, label: Callable[[CallName, str, str], str]) -> list[str]:
    """The lines as `csv.writer` would write them, which takes most of its time for numbers."""
    name = row.candidate or row.reference
    assert name is not None
    trace = f"{_cell(chr(10).join(name.stack))}," if stack else ""
    place = f"{_short_cell(name.module)},{_short_cell(name.source)},{row.step},{row.rank}"
    if row.rule is None:
        labels = [NOT_THERE if side is None else _cell(side.label) for side in (row.candidate, row.reference)]
        blank = f"{NOT_THERE}," * (len(SOURCE_COLUMNS) - 3)
        why = _cell(f"no partner: {row.reason}")
        return [f"{labels[0]},{labels[1]},{blank}{why},{trace}{row.verdict},{row.blame},,,,,,none,{place}"]
    return [f"{_source(row, slot, label)},{trace}{_ours(row, slot)},{place}" for slot in row.slots]


def _source(row: CallResult, slot: SlotResult, label: Callable[[CallName, str, str], str]) -> str:
    a, b = slot.candidate, slot.reference
    mine, other = row.candidate, row.reference
    name = slot.reference_name or slot.name
    labels = (
        _cell(label(mine, slot.name, row.direction)) if a is not None and mine is not None else NOT_THERE,
        _cell(label(other, name, row.direction)) if b is not None and other is not None else NOT_THERE,
    )
    if slot.basis == "digest":
        measured = _errors_text(slot.cosine, slot.max_abs, slot.max_relative, slot.within_1_1000, slot.within_5_1000)
    elif slot.cosine is None is slot.max_abs is slot.max_relative is slot.within_1_1000 is slot.within_5_1000:
        measured = _NO_ERRORS
    else:
        errors = slot.cosine, slot.max_abs, slot.max_relative, slot.within_1_1000, slot.within_5_1000
        measured = _numbers(errors)
    return (
        f"{labels[0]},{labels[1]},{_dtype(a)},{_dtype(b)},{_shape(a)},{_shape(b)},{measured},"
        f"{_statistics(a)},{_statistics(b)},{slot.accuracy or NOT_THERE},{_cell(slot.reason)}"
    )


def _ours(row: CallResult, slot: SlotResult) -> str:
    size = numbers_text((slot.level, slot.z)) if slot.level or slot.z else "0.0,0.0"
    ulp = NOT_THERE if slot.ulp is None else numbers_text((slot.ulp,))
    worst = "" if slot.worst is None else _cell(str(list(slot.worst)))
    return f"{slot.verdict},{slot.blame},{size},{ulp},{worst},{slot.basis},{row.rule}"


def _cell(text: str) -> str:
    """As `csv.writer` puts it: in quotation marks where a comma, a mark or the end of a line is in it."""
    if "," in text or '"' in text or "\n" in text or "\r" in text:
        marked = text.replace('"', '""')
        return f'"{marked}"'
    return text


_short_cell = functools.lru_cache(maxsize=4096)(_cell)


def _numbers(values: tuple[float | int | None, ...]) -> str:
    if None in values:
        return ",".join([NOT_THERE if value is None else numbers_text((value,)) for value in values])
    return numbers_text(values)


_errors_text = functools.lru_cache(maxsize=16)(lambda *errors: _numbers(errors))
_NO_ERRORS = _numbers((None,) * 5)


def _dtype(side: SlotSide | None) -> str:
    if side is None:
        return NOT_THERE
    return side.dtype or _cell(side.text)


def _shape(side: SlotSide | None) -> str:
    return _shape_text(side.shape) if side is not None and side.shape is not None else NOT_THERE


@functools.lru_cache(maxsize=4096)
def _shape_text(shape: tuple[int, ...]) -> str:
    return _cell(str(list(shape)))


def _statistics(side: SlotSide | None) -> str:
    return _NO_STATISTICS if side is None or side.text else _numbers((side.max, side.min, side.mean, side.l2))


_NO_STATISTICS = _numbers((None,) * 4)
