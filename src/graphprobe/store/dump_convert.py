"""Turns dumped values and statistics into `.npy` files, or into numpy's text with a header, which keeps each digit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
import numpy as np

from graphprobe.errors import ArtifactNotFoundError, SchemaError, UsageError
from graphprobe.records import STATISTICS
from graphprobe.store.dump_dtypes import Array
from graphprobe.store.dump_format import COLUMNS, OpFile, StatsRow, read_stats
from graphprobe.store.dump_reader import LoadedValue, open_dump
from graphprobe.store.dump_records import STATS
from graphprobe.store.files import check_replaced, replacing
from graphprobe.store.foreign.checked import mapped_npy

Format = Literal["npy", "txt"]

_MAX_SLOT_LENGTH = 64
_ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})
_DIGITS = {2: 5, 4: 9, 8: 17}
"""Decimal digits that tell the numbers of a binary float of so many bytes apart (IEEE 754, 5.12.2)."""


def write_text(file: BinaryIO, array: Array, *, dtype: str, note: str = "") -> None:
    """`# dtype`, `# shape` and `# note` lines, then the values: one row of the last dimension a line.

    `numpy.loadtxt(path, dtype=...).reshape(shape)` gives the values back. Complex numbers are `(1+2j)`, booleans 0 and
    1. A structured array becomes a line of its columns and one tab-separated line a row.
    """
    header = [f"# dtype: {dtype}", f"# shape: {' '.join(map(str, array.shape))}".rstrip()]
    if note:
        header.append(f"# note: {note}")
    file.write(("\n".join(header) + "\n").encode())
    if array.dtype.names:
        for row in (array.dtype.names, *array.tolist()):  # what is not filled is empty
            cells = ("" if item != item else str(item).translate(_ESCAPES) for item in row)
            file.write(("\t".join(cells) + "\n").encode())
    elif array.size:
        rows = array.reshape(-1, array.shape[-1] if array.ndim > 1 else 1)
        np.savetxt(file, rows, fmt=_format(array.dtype), newline="\n")


def _format(dtype: np.dtype[Any]) -> str:
    """A printf format that loses nothing; for a complex dtype, that of its parts."""
    if dtype.kind in "biu":
        return "%d"
    if dtype.kind in "fc":
        size_bytes = dtype.itemsize // (2 if dtype.kind == "c" else 1)
        return f"%.{_DIGITS.get(size_bytes, 21)}g"
    return "%s"


class Target(msgspec.Struct, frozen=True):
    """One file to write. `slot` is empty for a source that holds one thing only: a `.npy` or a `stats.csv`."""

    source: Path
    slot: str
    path: Path


class Gap(msgspec.Struct, frozen=True):
    """Something that is not converted, and why. `expected` when the dump itself says that it is not there."""

    source: str
    slot: str
    reason: str
    expected: bool = False


class Converted(msgspec.Struct, frozen=True):
    """One file that was written; `note` says what was done to a dtype that numpy lacks."""

    source: Path
    slot: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    note: str


def plan_conversion(
    paths: Sequence[Path], *, to: Format, out: Path | None, force: bool
) -> tuple[list[Target], list[Gap]]:
    """What is to be written of files of ops, `stats.csv` and `.npy` files, or folders with them, and what cannot be.

    A target lies next to its source, or below `out` as the source lies below the path that was given. The file of an
    op gives `<file>.<slot>.<ext>` for each slot. A folder that is no dump gives its `.npy` files.

    Raises:
        UsageError: nothing to convert, a target that exists already and no `force`, or two of one name.
        SchemaError: a path is a file of neither kind.
    """
    targets: list[Target] = []
    gaps: list[Gap] = []
    for path in paths:
        for source in _sources(path, to, gaps):
            folder = source.parent
            if out is not None:
                folder = out if path.is_file() else out / source.parent.relative_to(path)
            try:
                _add(targets, gaps, source, folder, to)
            except (SchemaError, ArtifactNotFoundError) as error:
                if path.is_file():
                    raise
                gaps.append(Gap(str(source), "", str(error)))
    if not targets and not gaps:
        raise UsageError(f"nothing to convert to {to} in {', '.join(map(str, paths))}")
    _check_targets(targets, force)
    return targets, gaps


def convert(target: Target, *, to: Format, force: bool) -> Converted:
    """Write one target, whole or not at all.

    Raises:
        SchemaError, ArtifactNotFoundError: the source cannot be read.
        UsageError: the target exists by now and `force` is False, or cannot be written.
    """
    array, dtype, note = _load(target)
    try:
        target.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target.path) as temporary:
            with open(temporary, "xb") as file:
                if to == "npy":
                    np.lib.format.write_array(file, array, allow_pickle=False)
                else:
                    write_text(file, array, dtype=dtype, note=note)
            if not force and target.path.exists():
                raise UsageError(f"{target.path} exists already", hint="--force overwrites")
    except OSError as error:
        raise UsageError(f"{target.path} cannot be written: {error.strerror}") from error
    return Converted(target.source, target.slot, target.path, dtype, array.shape, note)


def array_from_rows(rows: Sequence[StatsRow]) -> Array:
    """The rows of a `stats.csv` as a structured array with its columns; NaN stands for a column that is not filled."""
    cells = []
    for row in rows:
        *front, shape, stats, source, engine, digest = msgspec.structs.astuple(row)
        numbers = [float(stats.get(name, np.nan)) for name in STATISTICS]
        cells.append((*front, str(shape), *numbers, source, engine, digest))
    columns = zip(COLUMNS, zip(*cells, strict=True) if cells else [()] * len(COLUMNS), strict=True)
    arrays = [(name, np.array(values)) for name, values in columns]
    result = np.empty(len(rows), dtype=[(name, array.dtype) for name, array in arrays])
    for name, array in arrays:
        result[name] = array
    return result


def _sources(path: Path, to: Format, gaps: list[Gap]) -> Iterator[Path]:
    """The files that `path` stands for, in order."""
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    if path.is_file():
        yield path
        return
    try:
        dump = open_dump(path)
    except UsageError:
        arrays = sorted(path.rglob("*.npy"))
        if not arrays or to == "npy":
            raise
        yield from arrays
        return
    for op in dump.ops():
        if op.has_values:
            yield op.path
    for folder in dump.folders:
        yield from folder.stats_files()
        gaps.extend(Gap(str(path), "", problem) for problem in folder.problems)


def _add(targets: list[Target], gaps: list[Gap], source: Path, folder: Path, to: Format) -> None:
    if source.suffix == ".npy" and to == "npy":
        raise SchemaError(f"{source} is a .npy file already", hint="--to txt makes text of it")
    if source.suffix == ".npy" or source.name == STATS:
        targets.append(Target(source, "", folder / f"{source.stem}.{to}"))
        return
    for slot in OpFile(source).record.slots:
        if slot.scalar is not None:
            continue
        if not slot.value:
            gaps.append(Gap(str(source), slot.name, slot.missing or "its values were not kept", expected=True))
            continue
        name = re.sub(r"[^A-Za-z0-9._-]", "_", slot.name)[:_MAX_SLOT_LENGTH]
        stem = source.name.removesuffix(".safetensors")  # else behind the last dot is the time
        targets.append(Target(source, slot.name, folder / f"{stem}.{name}.{to}"))


def _check_targets(targets: Sequence[Target], force: bool) -> None:
    seen: dict[Path, Target] = {}
    for target in targets:
        other = seen.setdefault(target.path, target)
        if other is not target:
            raise UsageError(
                f"{other.source} ({other.slot}) and {target.source} ({target.slot}) would both become {target.path}",
                hint="convert them one after the other, into folders of their own",
            )
    there = [target.path for target in targets if target.path.exists()]
    if there and not force:
        more = f", and so do {len(there) - 1} more" if len(there) > 1 else ""
        raise UsageError(f"{there[0]} exists already{more}", hint="--force overwrites; --out names another folder")
    for path in there:
        check_replaced(path, str(path))


def _load(target: Target) -> tuple[Array, str, str]:
    """The array of a target, the dtype that was dumped, and what was done to it."""
    if target.source.name == STATS:
        problems: list[str] = []
        return array_from_rows(list(read_stats(target.source, problems))), "statistics", "; ".join(problems)
    if target.slot:
        file = OpFile(target.source)
        slot = next(slot for slot in file.record.slots if slot.name == target.slot)
        value = LoadedValue(file, slot)
        array, note = value.array_and_conversion()
        return array, value.meta.dtype, note
    array = mapped_npy(target.source)
    return array, str(array.dtype), ""
