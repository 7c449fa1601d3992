"""Records as Parquet: one row for each value of a dump, or for each pair of values of a comparison.

Needs the extra `parquet`. Rows are written in groups as they are read, so that memory does not grow with the dump.
docs/formats/exports.md describes the columns.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from graphprobe.compare.open import extra_module
from graphprobe.compare.result import CallResult, SlotSide
from graphprobe.store import layout
from graphprobe.store.calls import CallDump

ROWS_IN_GROUP = 1 << 14
MARK = b"graphprobe.written"
"""Key of the metadata of every file."""
PURPOSE = "graphprobe export --to parquet"

Column = tuple[str, str]
"""Name and type, as pyarrow's factory functions call it."""

CALL: tuple[Column, ...] = (
    ("rank", "int32"), ("step", "int64"), ("position", "int64"), ("kind", "string"), ("api", "string"),
    ("label", "string"), ("direction", "string"), ("index", "int64"), ("module", "string"), ("source", "string"),
)  # fmt: skip
STATISTICS = ("count", "min", "max", "mean", "std", "l2", "nan", "positive_inf", "negative_inf", "zeros")
COUNTS = frozenset({"count", "nan", "positive_inf", "negative_inf", "zeros"})

RECORD_COLUMNS: tuple[Column, ...] = (
    *CALL, ("slot", "string"), ("role", "string"), ("dtype", "string"), ("shape", "sizes"), ("strides", "sizes"),
    ("device", "string"), *((name, "int64" if name in COUNTS else "float64") for name in STATISTICS),
    ("digest", "string"), ("scalar_type", "string"), ("scalar", "string"), ("missing", "string"),
)  # fmt: skip
"""Of a dump."""

SIDE: tuple[Column, ...] = (
    ("dtype", "string"), ("shape", "sizes"), ("min", "float64"), ("max", "float64"), ("mean", "float64"),
    ("l2", "float64"), ("nan", "int64"), ("inf", "int64"), ("text", "string"),
)  # fmt: skip
MEASURES: tuple[Column, ...] = (
    ("basis", "string"), ("level", "float64"), ("z", "float64"), ("ulp", "float64"), ("cosine", "float64"),
    ("max_abs", "float64"), ("max_relative", "float64"), ("within_1_1000", "float64"), ("within_5_1000", "float64"),
    ("accuracy", "string"), ("worst", "sizes"), ("origin", "string"), ("fault", "string"),
)  # fmt: skip
PAIR_COLUMNS: tuple[Column, ...] = (
    ("row", "int64"), ("rank", "int32"), ("step", "int64"), ("direction", "string"), ("rule", "string"),
    ("candidate", "string"), ("reference", "string"), ("api", "string"), ("module", "string"), ("source", "string"),
    ("call_verdict", "string"), ("call_blame", "string"), ("slot", "string"), ("reference_slot", "string"),
    ("role", "string"), *MEASURES, ("verdict", "string"), ("blame", "string"), ("reason", "string"),
    *((f"candidate_{name}", kind) for name, kind in SIDE), *((f"reference_{name}", kind) for name, kind in SIDE),
)  # fmt: skip
"""Of a comparison."""


def export_dump(dump: CallDump, file: Path) -> int:
    """Write one row for each slot of each call, and one without a slot for a call that has none; returns how many.

    Raises:
        UsageError: the package `pyarrow` is not installed.
    """
    return _write(file, RECORD_COLUMNS, _record_rows(dump))


def export_comparison(rows: Iterable[CallResult], file: Path) -> int:
    """Write one row for each pair of slots, and one for each call without a partner; returns how many.

    Raises:
        UsageError: the package `pyarrow` is not installed.
    """
    return _write(file, PAIR_COLUMNS, _pair_rows(rows))


def _record_rows(dump: CallDump) -> Iterator[dict[str, Any]]:
    for rank in dump.ranks():
        for step in dump.steps(rank):
            for call in dump.calls(rank, step):
                head = {name: getattr(call, name) for name, _ in CALL}
                for slot in call.slots:
                    row = head | {"slot": slot.name, "role": slot.role, "digest": slot.digest, "missing": slot.missing}
                    if slot.meta is not None:
                        row |= {name: getattr(slot.meta, name) for name in ("dtype", "shape", "strides", "device")}
                    if slot.stats is not None:
                        row |= {name: getattr(slot.stats, name) for name in STATISTICS if name in slot.known}
                    if slot.scalar is not None:
                        row |= {"scalar_type": slot.scalar.type, "scalar": slot.scalar.text}
                    yield row
                if not call.slots:
                    yield head


def _pair_rows(results: Iterable[CallResult]) -> Iterator[dict[str, Any]]:
    for result in results:
        call = result.candidate or result.reference
        assert call is not None
        head = {
            "row": result.number,
            "rank": result.rank,
            "step": result.step,
            "direction": result.direction,
            "rule": result.rule,
            "candidate": result.candidate.label if result.candidate is not None else None,
            "reference": result.reference.label if result.reference is not None else None,
            "api": call.api,
            "module": call.module,
            "source": call.source,
            "call_verdict": result.verdict,
            "call_blame": result.blame,
        }
        if not result.slots:
            yield head | {"reason": result.reason}
        for slot in result.slots:
            row = head | {name: getattr(slot, name) for name, _ in MEASURES}
            row |= {"slot": slot.name, "reference_slot": slot.reference_name or slot.name, "role": slot.role}
            row |= {"verdict": slot.verdict, "blame": slot.blame, "reason": slot.reason}
            yield row | _side("candidate", slot.candidate) | _side("reference", slot.reference)


def _side(prefix: str, side: SlotSide | None) -> dict[str, Any]:
    return {} if side is None else {f"{prefix}_{name}": getattr(side, name) for name, _ in SIDE}


def _write(file: Path, columns: tuple[Column, ...], rows: Iterable[dict[str, Any]]) -> int:
    """Written under a temporary name, so that the file is there whole or not at all. Empty texts become null."""
    arrow = extra_module("pyarrow", extra="parquet", purpose=PURPOSE)
    parquet = extra_module("pyarrow.parquet", extra="parquet", purpose=PURPOSE)
    schema = arrow.schema([(name, _type(arrow, kind)) for name, kind in columns], metadata={MARK: b"export"})
    temporary = file.with_name(f"{layout.TEMPORARY_PREFIX}{os.getpid()}-{file.name}")
    count = 0
    try:
        with parquet.ParquetWriter(temporary, schema) as writer:
            for group in _groups(rows):
                arrays = [
                    arrow.array([_plain(row.get(field.name)) for row in group], type=field.type) for field in schema
                ]
                writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
                count += len(group)
        os.replace(temporary, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return count


def _type(arrow: Any, kind: str) -> Any:
    return arrow.list_(arrow.int64()) if kind == "sizes" else getattr(arrow, kind)()


def _plain(value: Any) -> Any:
    if value == "":
        return None
    return list(value) if isinstance(value, tuple) else value


def _groups(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    group: list[dict[str, Any]] = []
    for row in rows:
        group.append(row)
        if len(group) == ROWS_IN_GROUP:
            yield group
            group = []
    if group:
        yield group
