"""A comparison as ptdbg's `compare_result_<timestamp>.csv`: its columns in its order, then those of the verdict."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphprobe.compare.result import CallName, CallResult, SlotResult, SlotSide

COLUMNS = (
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
VERDICT_COLUMNS = ("Verdict", "Blame", "z", "ulp", "Basis", "Rule")


def write_csv(path: Path, rows: Iterable[CallResult], *, stack_mode: bool) -> None:
    """Write one line for each slot, and one for each call without a partner.

    Args:
        path: a new file.
        rows: in the candidate's order of execution.
        stack_mode: whether to add the stack of each call, on its first line.

    Raises:
        OSError: as the operating system gives it.
    """
    head = [*COLUMNS, *([STACK_COLUMN] if stack_mode else []), *VERDICT_COLUMNS]
    with open(path, "x", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, head, restval="", extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            for line in _lines(row):
                writer.writerow(line)


def _lines(row: CallResult) -> Iterator[dict[str, Any]]:
    call = row.candidate or row.reference
    stack = "\n".join(call.stack) if call is not None else ""
    if not row.slots:
        yield {
            "NPU Name": row.candidate.label if row.candidate else "N/A",
            "Bench Name": row.reference.label if row.reference else "N/A",
            "Err_message": row.reason,
            STACK_COLUMN: stack,
            **_verdict(row, None),
        }
    for number, slot in enumerate(row.slots):
        line = {
            "NPU Name": _name(row.candidate, slot.name, row.direction) if slot.candidate or row.candidate else "N/A",
            "Bench Name": _name(row.reference, slot.reference_name or slot.name, row.direction),
            "Cosine": _text(slot.cosine),
            "MaxAbsErr": _text(slot.max_abs),
            "MaxRelativeErr": _text(slot.max_relative),
            "One Thousandth Err Ratio": _text(slot.within_1_1000),
            "Five Thousandths Err Ratio": _text(slot.within_5_1000),
            "Accuracy Reached or Not": slot.accuracy,
            "Err_message": slot.reason or (row.reason if number == 0 else ""),
            **_side("NPU", slot.candidate),
            **_side("Bench", slot.reference),
            **_verdict(row, slot),
        }
        yield line | ({STACK_COLUMN: stack} if number == 0 else {})


def _name(call: CallName | None, slot: str, direction: str) -> str:
    """`21_Torch_norm_forward_input.0`; `linear.3.forward input.0` for a call of another format."""
    if call is None:
        return "N/A"
    from graphprobe.store.foreign.names import ptdbg_name
    from graphprobe.store.foreign.ptdbg_write import slot_name

    if ptdbg_name(call.label) is None:
        return f"{call.label} {slot}"
    return f"{call.label}_{slot_name(slot, 'backward' if direction == 'backward' else 'forward') or slot}"


def _side(who: str, side: SlotSide | None) -> dict[str, Any]:
    if side is None:
        return {}
    return {
        f"{who} Tensor Dtype": side.dtype,
        f"{who} Tensor Shape": "" if side.shape is None else str(list(side.shape)),
        f"{who} max": _text(side.max),
        f"{who} min": _text(side.min),
        f"{who} mean": _text(side.mean),
        f"{who} l2norm": _text(side.l2),
    }


def _verdict(row: CallResult, slot: SlotResult | None) -> dict[str, Any]:
    found = row if slot is None else slot
    return {
        "Verdict": found.verdict,
        "Blame": found.blame,
        "z": "" if slot is None else _text(slot.z),
        "ulp": "" if slot is None else _text(slot.ulp),
        "Basis": "" if slot is None else slot.basis,
        "Rule": row.rule or "",
    }


def _text(value: float | None) -> str:
    return "" if value is None else repr(value)
