"""Reads a dump back from any level of its tree: records in order, values as numpy arrays, statistics, findings."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from graphprobe.errors import ArtifactNotFoundError, GraphprobeError, RunNotFoundError, SchemaError
from graphprobe.records import TensorMeta
from graphprobe.store import layout
from graphprobe.store.dump_dtypes import STORED_DTYPES, bits_from_bytes, widened
from graphprobe.store.dump_format import RECORD_KEY, OpFile, StatsRow, read_bytes, read_op_file, read_stats
from graphprobe.store.dump_records import DUMP_SCHEMA, INDEX, STATS, DumpManifest, DumpRecord, Side, Slot
from graphprobe.store.files import MOST_LINE_BYTES, lines_in, open_file, read_file
from graphprobe.store.reader import State, manifest_of_dump, state_of
from graphprobe.store.schema import UNREADABLE, lines_from

Array = np.ndarray[Any, Any]

_LEVELS_ABOVE = 4
"""How far a data folder lies below its time folder."""

FINDINGS, OVERFLOW = "findings.jsonl", "overflow.json"
"""Files of a dump, see docs/overflow_and_watch.md."""

T = TypeVar("T")


class LoadedValue:
    """The values of one slot, read when they are asked for.

    Attributes:
        slot: what the record says of it.
        name, side, meta: short for those of the slot.
    """

    def __init__(self, file: OpFile, slot: Slot) -> None:
        self.slot = slot
        self.name: str = slot.name
        self.side: Side = slot.side
        self.meta: TensorMeta = slot.meta
        self._file = file

    @property
    def is_there(self) -> bool:
        """Whether the file holds the values."""
        return self.name in self._file.spans

    def raw(self) -> Array:
        """The bytes: uint8, 1-d, row-major, little-endian. Raises ArtifactNotFoundError when there are none."""
        return read_bytes(self._file, self.slot)

    def bits(self) -> Array:
        """In numpy's own dtype; as unsigned integers of the item size for a dtype that numpy lacks."""
        return bits_from_bytes(self.raw(), self.meta.dtype, self.meta.shape)

    def array(self) -> Array:
        """The values, of the tensor's shape; in the next wider dtype where numpy lacks theirs, see `conversion`."""
        return self.array_and_conversion()[0]

    def array_and_conversion(self) -> tuple[Array, str]:
        """`array()`, and in words what it does to the dtype: empty where it keeps it."""
        bits = self.bits()
        known = STORED_DTYPES.get(self.meta.dtype)
        if known is not None and known.numpy is not None:
            return bits, ""
        return widened(bits, self.meta.dtype)


class DumpedOp:
    """One execution of one op. `path` is its file, or the `stats.csv` with its rows."""

    def __init__(self, record: DumpRecord, path: Path) -> None:
        self.record = record
        self.path = path

    @property
    def has_values(self) -> bool:
        """Whether a file of values was written, and not only statistics."""
        return self.path.name != STATS

    def values(self) -> dict[str, LoadedValue]:
        """The tensors by slot, in order, those without values included.

        Raises:
            ArtifactNotFoundError: the file is gone, or only statistics were kept.
            SchemaError: the file is cut off or foreign.
        """
        if not self.has_values:
            raise ArtifactNotFoundError(f"only statistics of {self.record.op.op_name} were kept: {self.path}")
        file = read_op_file(self.path)
        return {slot.name: LoadedValue(file, slot) for slot in file.record.slots}


def step_of(record: DumpRecord) -> int:
    """The step an op belongs to."""
    return record.place.data_index if record.place.step is None else record.place.step


class DumpFolder:
    """One time folder: the dump of one process. `problems` says in words what could not be read.

    Attributes:
        time_dir: the folder.
        manifest: None in a folder that was copied without it.
        below: only what lies below this path, relative to the folder, is told; empty for all.
    """

    def __init__(self, time_dir: Path, manifest: DumpManifest | None, *, below: str = "") -> None:
        self.time_dir = time_dir
        self.manifest = manifest
        self.below = below
        self.problems: list[str] = []
        self._steps: dict[int, array[int]] | None = None
        self._headers: list[DumpedOp] = []

    @property
    def path(self) -> Path:
        """The folder that was asked for."""
        return self.time_dir / self.below

    @property
    def state(self) -> State | None:
        """That of the manifest, see `state_of`; None without one."""
        return None if self.manifest is None else state_of(self.manifest)

    def ops(self) -> Iterator[DumpedOp]:
        """Every execution, in the order in which they were written."""
        index = self.time_dir / INDEX
        found = self._read_index(index) if index.exists() else ((*one, 0) for one in self._read_headers())
        for record, path, _ in found:
            if not self.below or record.file.startswith(self.below + "/"):
                yield DumpedOp(record, path)

    def steps(self) -> tuple[int, ...]:
        """The steps that have executions, ascending: those of the program, or, where nobody counted, the numbers of the
        data folders."""
        return tuple(sorted(self._places()))

    def ops_of(self, step: int) -> Iterator[DumpedOp]:
        """The executions of a step. The index is read as a whole once; after that, only the lines of the step."""
        places = self._places().get(step)
        if places is None:
            return
        if self._headers:
            yield from [self._headers[place] for place in places]
            return
        with open_file(self.time_dir / INDEX) as file:
            at = -1
            for offset in places:
                if offset != at:
                    file.seek(offset)
                line = file.readline(MOST_LINE_BYTES)
                at = offset + len(line)
                try:
                    record = msgspec.json.decode(line, type=DumpRecord)
                except UNREADABLE:
                    continue  # written again since the first reading, which told of it
                yield DumpedOp(record, self.time_dir / record.file)

    def _places(self) -> dict[int, array[int]]:
        """Of each step, where its lines begin in the index; without an index, places in `_headers`."""
        if self._steps is None:
            self._steps = {}
            index = self.time_dir / INDEX
            if index.exists():
                found = ((record, offset) for record, _, offset in self._read_index(index))
            else:
                self._headers = list(self.ops())
                found = ((op.record, number) for number, op in enumerate(self._headers))
            for record, place in found:
                if not self.below or record.file.startswith(self.below + "/"):
                    self._steps.setdefault(step_of(record), array("Q")).append(place)
        return self._steps

    def stats(self) -> Iterator[StatsRow]:
        """The rows of every `stats.csv`, folder by folder in the order of their numbers."""
        for path in self.stats_files():
            yield from read_stats(path, self.problems)

    def stats_files(self) -> list[Path]:
        """Every `stats.csv`, in the order of the numbers in their paths."""
        return sorted(self.path.rglob(STATS), key=_natural)

    def _read_index(self, path: Path) -> Iterator[tuple[DumpRecord, Path, int]]:
        """Records, the files of their values, and where their lines begin."""
        offset = length = 0
        try:
            with open_file(path) as file:
                for number, line in enumerate(lines_in(file), start=1):
                    offset, length = offset + length, len(line)
                    try:
                        record = msgspec.json.decode(line, type=DumpRecord)
                    except UNREADABLE as error:
                        if line.strip():
                            torn = not line.endswith(b"\n")
                            why = "is cut off, as by a killed process" if torn else f"is no record: {error}"
                            self.problems.append(f"{path} line {number} {why}")
                        continue
                    target = self.time_dir / record.file
                    if ".." in Path(record.file).parts or os.path.isabs(record.file):
                        self.problems.append(f"{path} line {number} names {record.file}, which lies outside the dump")
                    elif not target.is_file():
                        self.problems.append(f"{path} line {number} names {record.file}, which is gone")
                    else:
                        yield record, target, offset
        except OSError as error:
            self.problems.append(f"{path} cannot be read: {error.strerror}")

    def _read_headers(self) -> Iterator[tuple[DumpRecord, Path]]:
        """The records in the headers of the files themselves, for a folder that was taken out of its tree."""
        found = []
        for path in self.path.rglob("*"):
            if path.name.startswith(layout.TEMPORARY_PREFIX) or not path.is_file() or not is_op_file(path):
                continue
            try:
                record = read_op_file(path).record
            except (SchemaError, ArtifactNotFoundError) as error:
                self.problems.append(str(error))
                continue
            found.append((record, path))
        yield from sorted(found, key=lambda pair: (pair[0].seq, str(pair[1])))


class Dump:
    """Everything under the path that was opened: one folder a process, oldest first, then by rank."""

    def __init__(self, folders: list[DumpFolder]) -> None:
        self.folders = folders

    @property
    def problems(self) -> list[str]:
        """What could not be read so far, in words."""
        return list(dict.fromkeys(problem for folder in self.folders for problem in folder.problems))

    def ops(self) -> Iterator[DumpedOp]:
        """Every execution, folder by folder."""
        for folder in self.folders:
            yield from folder.ops()

    def stats(self) -> Iterator[StatsRow]:
        """Every row of statistics, folder by folder."""
        for folder in self.folders:
            yield from folder.stats()


def open_dump(path: str | Path) -> Dump:
    """The dump at `path`: a dump path, a rank folder, a time folder, anything below one, the file of one op, or a run.

    A folder that was taken out of its tree is read by the headers of its files.

    Raises:
        RunNotFoundError: there is no dump.
        SchemaError: a manifest is of a newer or an unknown schema, or the file is no file of a dump.
    """
    path = Path(path)
    if path.is_file():
        return Dump([_OneFile(path)])
    if not path.is_dir():
        raise RunNotFoundError(f"{path} does not exist")
    if (path / layout.GRAPHS).is_dir():
        path = path / layout.GRAPHS
    for depth, above in enumerate([path.absolute(), *path.absolute().parents][: _LEVELS_ABOVE + 1]):
        manifest = _manifest_in(above)
        if manifest is not None:
            below = path.absolute().relative_to(above).as_posix() if depth else ""
            return Dump([DumpFolder(above if depth else path, manifest, below=below)])
    folders = []
    for file in [*path.glob(f"*/{layout.MANIFEST}"), *path.glob(f"*/*/{layout.MANIFEST}")]:
        manifest = _manifest_in(file.parent)
        if manifest is not None:
            folders.append(DumpFolder(file.parent, manifest))
    if folders:
        return Dump(sorted(folders, key=lambda folder: _age(folder)))
    stray = DumpFolder(path, None)
    if next(stray.ops(), None) is not None or stray.stats_files():
        stray.problems.clear()
        return Dump([stray])
    raise RunNotFoundError(
        f"no dump at {path}: neither {layout.MANIFEST} of a dump there, above or two levels below, "
        f"nor files of ops, nor {STATS}",
        hint="name the dump path, or a folder worldsize<W>_global_rank<R> or anything in it",
    )


def is_op_file(path: Path) -> bool:
    """Whether a file begins as the file of an op does, whatever its name; a file that is cut off may, too."""
    try:
        with open_file(path) as file:
            start = file.read(256)
    except OSError:
        return False
    return start[8:9] == b"{" and RECORD_KEY.encode() in start


class _OneFile(DumpFolder):
    """The file of one op, or one `stats.csv`, on its own."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.parent, None)
        self._only = path
        self._record = None if path.name == STATS else read_op_file(path).record

    def ops(self) -> Iterator[DumpedOp]:
        if self._record is not None:
            yield DumpedOp(self._record, self._only)

    def stats_files(self) -> list[Path]:
        return [self._only] if self._record is None else []


def _manifest_in(folder: Path) -> DumpManifest | None:
    return manifest_of_dump(folder, DumpManifest, "dump_schema", DUMP_SCHEMA, called="a dump")


def _age(folder: DumpFolder) -> tuple[int, int]:
    manifest = folder.manifest
    return (0, 0) if manifest is None else (manifest.started_ns, manifest.rank)


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part) if part.isdecimal() else -1, part) for part in path.parts]


class Op(msgspec.Struct, kw_only=True):
    """An op as these files have it; of a victim also which value of it, and under which name."""

    op: str | None = None
    op_type: str = ""
    target: str = ""
    fx_nodes: list[str] = []
    direction: str | None = None
    source: str = ""
    sources: list[str] = []
    module: str = ""
    modules: list[str] = []
    slot: str = ""
    value: str = ""


class OutputProblem(msgspec.Struct):
    """What is wrong with one output: `nan`, `inf` or `saturated`, in how many elements, the first ones by index."""

    output: str = ""
    kind: str = ""
    sign: str = ""
    dtype: str = ""
    shape: list[int] = []
    elements: int = 0
    of: int = 0
    first: list[list[int]] = []


class Elements(msgspec.Struct):
    """Which elements were overwritten, in row-major order; None where only a digest was kept."""

    first: int | None = None
    last: int | None = None
    changed: int | None = None
    of: int = 0


class FindingLine(Op, kw_only=True):
    """A line of `findings.jsonl`; of an overflow and an exception the op itself."""

    kind: str
    text: str = ""
    model: str = ""
    step: int | None = None
    problems: list[OutputProblem] = []
    file: str = ""
    repro: str | None = None
    culprit: Op | None = None
    declared: bool = False
    intact_after: str = ""
    victim: Op | None = None
    elements: Elements | None = None
    document: str = ""


class ExceptionDocument(msgspec.Struct):
    """`exception.json`."""

    traceback: str = ""
    callers: str = ""


class Overflows(msgspec.Struct):
    """`overflow.json`: the ops of a step that overflow and that pass it on, and what the uncompiled program does."""

    origins: list[Op] = []
    carriers: list[Op] = []
    uncompiled: str = ""


class Found(msgspec.Struct):
    """A finding, and the time folder that it is in; of equal ones in several steps the first.

    Attributes:
        steps: further steps in which it happened again.
        texts: what was said of it in each step; the notes of the calls repeat it.
    """

    folder: Path
    line: FindingLine
    steps: list[int | None] = []
    texts: list[str] = []

    @property
    def culprit(self) -> Op | None:
        """The op that did it; None where none is known."""
        found = self.line if self.line.kind != "overwritten" else self.line.culprit
        return found if found is not None and found.op else None

    def overflows(self) -> Overflows:
        """What else is known of the step, for the first finding of the step."""
        inside = Path(self.line.file or self.line.repro or "").parent / OVERFLOW
        document = self._read(str(inside), Overflows)
        if document is None or not document.origins or document.origins[0].op != self.line.op:
            return Overflows()
        return document

    def raised(self) -> ExceptionDocument | None:
        """What is known of the exception."""
        return self._read(self.line.document, ExceptionDocument) if self.line.document else None

    def _read(self, name: str, form: type[T]) -> T | None:
        """A document of the dump; None where it is gone or lies elsewhere."""
        if os.path.isabs(name) or ".." in Path(name).parts:
            return None
        try:
            return msgspec.json.decode(read_file(self.folder / name, below=self.folder), type=form)
        except (OSError, *UNREADABLE):
            return None


def findings_at(path: Path) -> tuple[list[Found], list[str]]:
    """The findings of the dump of graphs at `path`, process by process, and in words what could not be read.

    The same operation in a later step is no finding of its own. Where there is no such dump there are none.
    """
    try:
        folders = [folder.time_dir for folder in open_dump(path).folders]
    except GraphprobeError:
        return [], []
    problems: list[str] = []
    found: dict[tuple[object, ...], Found] = {}
    for one in (one for folder in folders for one in _lines(folder, problems)):
        line, culprit = one.line, one.culprit
        victim = line.victim.value if line.victim is not None else ""
        op = culprit.op if culprit is not None else line.text
        first = found.setdefault((one.folder, line.kind, line.model, op, victim), one)
        first.texts.append(line.text)
        if first is not one:
            first.steps.append(line.step)
    return list(found.values()), problems


def _lines(folder: Path, problems: list[str]) -> Iterator[Found]:
    file = folder / FINDINGS
    try:
        data = read_file(file)
    except FileNotFoundError:
        return
    except OSError as error:
        problems.append(f"{file} cannot be read: {error.strerror}")
        return
    for _, line in lines_from(data, FindingLine, name=str(file), noun="finding", problems=problems):
        yield Found(folder, line)
