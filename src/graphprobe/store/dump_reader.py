"""Reads a dump of compiled graphs, from any level of its tree, as calls: one op that ran is one call; and findings."""

from __future__ import annotations

import functools
import math
import os
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from graphprobe.errors import ArtifactNotFoundError, GraphprobeError, RunNotFoundError, SchemaError
from graphprobe.records import STATISTICS, TensorStats
from graphprobe.store import layout
from graphprobe.store.api_reader import OwnDump, facts_of, slot_of_call
from graphprobe.store.calls import Call, CallKind, CallSlot, WrittenSlot
from graphprobe.store.dump_dtypes import Array, bits_from_bytes, widened
from graphprobe.store.dump_format import RECORD_KEY, OpFile, StatsRow, read_stats
from graphprobe.store.dump_records import INDEX, STATS, DumpManifest, DumpRecord
from graphprobe.store.files import MOST_LINE_BYTES, open_file, read_file
from graphprobe.store.reader import State, manifest_of_dump, state_of, told_of_dumps
from graphprobe.store.schema import UNREADABLE, lines_of

_LEVELS_ABOVE = 4
"""How far a data folder lies below its time folder."""

FINDINGS, OVERFLOW = "findings.jsonl", "overflow.json"
"""Files of a dump, see docs/overflow_and_watch.md."""

_RECORD = msgspec.json.Decoder(DumpRecord)

T = TypeVar("T")


class LoadedValue:
    """The values of one slot, read when they are asked for; `slot` is what the record says of it."""

    def __init__(self, file: OpFile, slot: WrittenSlot) -> None:
        assert slot.meta is not None
        self.slot, self.meta = slot, slot.meta
        self._file = file

    @property
    def is_there(self) -> bool:
        """Whether the file holds the values."""
        return self.slot.name in self._file.spans

    def raw(self) -> Array:
        """The bytes: uint8, 1-d, row-major, little-endian. Raises ArtifactNotFoundError when there are none."""
        if not self.is_there:
            why = self.slot.missing or "only its statistics were kept"
            raise ArtifactNotFoundError(f"{self._file.path} has no values of {self.slot.name}: {why}")
        return np.array(self._file.raw(self.slot.name))

    def array(self) -> Array:
        """The values, of the tensor's shape; in the next wider dtype where numpy lacks theirs, see `conversion`."""
        return self.array_and_conversion()[0]

    def array_and_conversion(self) -> tuple[Array, str]:
        """`array()`, and in words what it does to the dtype: empty where it keeps it."""
        return widened(bits_from_bytes(self.raw(), self.meta.dtype, self.meta.shape), self.meta.dtype)


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
        file = OpFile(self.path)
        return {slot.name: LoadedValue(file, slot) for slot in file.record.slots if slot.meta is not None}


def step_of(record: DumpRecord) -> int:
    """The step an op belongs to."""
    return record.place.data_index if record.place.step is None else record.place.step


class DumpFolder:
    """One time folder: the dump of one process. `problems` says in words what could not be read.

    Attributes:
        manifest: None in a folder that was copied without it.
        below: only what is below this path, relative to the folder, is read; empty for all.
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
        return (op for op, _ in self._found())

    def steps(self) -> tuple[int, ...]:
        """The steps that have executions, ascending: those of the program, or, where nobody counted, the numbers of the
        data folders."""
        return tuple(sorted(self._places()))

    def ops_of(self, step: int) -> Iterator[DumpedOp]:
        """The executions of a step. The index is read as a whole once; after that, only the lines of the step."""
        places = self._places().get(step, ())
        if self._headers:
            yield from [self._headers[place] for place in places]
        elif places:
            with open_file(self.time_dir / INDEX) as file:
                at = -1
                for offset in places:
                    if offset != at:
                        file.seek(offset)
                    line = file.readline(MOST_LINE_BYTES)
                    at = offset + len(line)
                    try:
                        record = _RECORD.decode(line)
                    except UNREADABLE:
                        continue  # written again since the first reading, which told of it
                    yield DumpedOp(record, self.time_dir / record.file)

    def _places(self) -> dict[int, array[int]]:
        """Of each step, where its lines begin in the index; without an index, places in `_headers`."""
        if self._steps is None:
            self._steps = {}
            indexed = (self.time_dir / INDEX).exists()
            for op, place in self._found():
                if not indexed:
                    self._headers.append(op)
                self._steps.setdefault(step_of(op.record), array("Q")).append(place)
        return self._steps

    def _found(self) -> Iterator[tuple[DumpedOp, int]]:
        """Executions, with the place of the line in the index; without an index, their number."""
        found = self._read_index() if (self.time_dir / INDEX).exists() else self._read_headers()
        for op, place in found:
            if not self.below or op.record.file.startswith(self.below + "/"):
                yield op, place

    def stats(self) -> Iterator[StatsRow]:
        """The rows of every `stats.csv`, folder by folder in the order of their numbers."""
        for path in self.stats_files():
            problems: list[str] = []
            yield from read_stats(path, problems)
            for text in problems:
                self._tell(text)

    def stats_files(self) -> list[Path]:
        """Every `stats.csv`, in the order of the numbers in their paths."""
        return sorted(self.path.rglob(STATS), key=_natural)

    def _tell(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def _read_index(self) -> Iterator[tuple[DumpedOp, int]]:
        path = self.time_dir / INDEX
        for number, offset, record in lines_of(path, _RECORD, tell=self._tell):
            target = self.time_dir / record.file
            if ".." in Path(record.file).parts or os.path.isabs(record.file):
                self._tell(f"{path} line {number} names {record.file}, which is outside the dump")
            elif not os.path.isfile(target):
                self._tell(f"{path} line {number} names {record.file}, which is gone")
            else:
                yield DumpedOp(record, target), offset

    def _read_headers(self) -> Iterator[tuple[DumpedOp, int]]:
        """By the headers of the files themselves, for a folder that was taken out of its tree."""
        found = []
        for path in self.path.rglob("*"):
            if path.name.startswith(layout.TEMPORARY_PREFIX) or not path.is_file() or not is_op_file(path):
                continue
            try:
                found.append(DumpedOp(OpFile(path).record, path))
            except (SchemaError, ArtifactNotFoundError) as error:
                self._tell(str(error))
        found.sort(key=lambda op: (op.record.seq, str(op.path)))
        return ((op, number) for number, op in enumerate(found))


class GraphCalls(OwnDump[list[DumpFolder]]):
    """A dump of compiled graphs, see `CallDump`; `ops()` and `stats()` have what it knows beyond calls.

    A step is that of the dump; where nobody counted, the number of the data folder. `folders` has one a process.
    """

    format = "graphprobe-graph"

    def __init__(self, title: str, folders: list[DumpFolder]) -> None:
        super().__init__(title, {})
        self.folders = sorted(
            folders, key=lambda one: (0, 0) if one.manifest is None else (one.manifest.started_ns, one.manifest.rank)
        )
        for folder in self.folders:
            self.by_rank.setdefault(0 if folder.manifest is None else folder.manifest.rank, []).append(folder)
        self._stats = functools.lru_cache(maxsize=1)(self._read_stats)
        manifest = next((folder.manifest for folder in self.folders if folder.manifest is not None), None)
        self.facts = {} if manifest is None else facts_of(manifest, len(self.by_rank), {"engine": manifest.engine})

    def steps(self, rank: int) -> tuple[int, ...]:
        return tuple(sorted({step for folder in self._one(rank) for step in folder.steps()}))

    def calls(self, rank: int, step: int) -> Iterator[Call]:
        position = 0
        counts: Counter[tuple[str, str]] = Counter()
        for folder in self._one(rank):
            for op in folder.ops_of(step):
                kind: CallKind = "kernel" if op.record.op.engine == "kernel" else "node"
                api = op.record.op.target or op.record.op.op_type
                yield self._call(op, kind, api, index=counts[kind, api], position=position, rank=rank)
                counts[kind, api] += 1
                position += 1

    def problems(self) -> tuple[str, ...]:
        own = {text: None for folder in self.folders for text in folder.problems}
        told = told_of_dumps((folder.time_dir, folder.manifest) for folder in self.folders)
        return tuple({**told, **own, **self._problems})

    def ops(self) -> Iterator[DumpedOp]:
        """Every execution of an op, process by process: its record, with model, engine and FX nodes, and its values."""
        return (op for folder in self.folders for op in folder.ops())

    def stats(self) -> Iterator[StatsRow]:
        """Every row of statistics, as `stats.csv` has it, process by process."""
        return (row for folder in self.folders for row in folder.stats())

    def _place(self, call: Call, slot: CallSlot) -> tuple[Path, str]:
        return Path(slot.value.removesuffix(f":{slot.name}")), slot.name

    def _call(self, op: DumpedOp, kind: CallKind, api: str, *, index: int, position: int, rank: int) -> Call:
        record = op.record
        rows = {} if op.has_values else self._stats(op.path)
        notes = list(record.notes)
        if record.op.fx_nodes:
            notes.append(f"nodes {', '.join(record.op.fx_nodes)}")
        if record.op.perturbs:
            notes.append(f"the engine {record.op.engine} changes what the program computes, be it by rounding")
        return Call(
            position=position,
            kind=kind,
            api=api,
            label=f"{record.place.model_name}.{record.place.model_id}.{record.op.op_name}.{record.seq}",
            direction="backward" if record.op.direction == "backward" else "forward",
            index=index,
            step=step_of(record),
            rank=rank,
            module=record.op.module,
            source=record.op.source,
            slots=tuple(_slot(slot, rows.get((record.seq, slot.name)), op) for slot in record.slots),
            notes=tuple(notes),
        )

    def _read_stats(self, path: Path) -> dict[tuple[int, str], StatsRow]:
        """The rows of one `stats.csv`, which has one call of a graph."""
        problems: list[str] = []
        rows = {(row.task_id, row.slot): row for row in read_stats(path, problems)}
        self._problems.update(dict.fromkeys(problems))
        return rows


def open_dump(path: str | Path) -> GraphCalls:
    """The dump at `path`: a dump path, a rank folder, a time folder, anything below one, the file of one op, or a run.

    A folder that was taken out of its tree is read by the headers of its files.

    Raises:
        RunNotFoundError: there is no dump.
        SchemaError: a manifest is of a newer or an unknown schema, or the file is no file of a dump.
    """
    title, path = str(path), Path(path)
    if path.is_file():
        return GraphCalls(title, [_OneFile(path)])
    if not path.is_dir():
        raise RunNotFoundError(f"{path} does not exist")
    if (path / layout.GRAPHS).is_dir():
        path = path / layout.GRAPHS
    for depth, above in enumerate([path.absolute(), *path.absolute().parents][: _LEVELS_ABOVE + 1]):
        manifest = manifest_of_dump(above, DumpManifest)
        if manifest is not None:
            below = path.absolute().relative_to(above).as_posix() if depth else ""
            return GraphCalls(title, [DumpFolder(above if depth else path, manifest, below=below)])
    files = [*path.glob(f"*/{layout.MANIFEST}"), *path.glob(f"*/*/{layout.MANIFEST}")]
    there = ((file.parent, manifest_of_dump(file.parent, DumpManifest)) for file in files)
    known = [DumpFolder(*one) for one in there if one[1] is not None]
    if known:
        return GraphCalls(title, known)
    stray = DumpFolder(path, None)
    if next(stray.ops(), None) is not None or stray.stats_files():
        stray.problems.clear()
        return GraphCalls(title, [stray])
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


def _slot(slot: WrittenSlot, row: StatsRow | None, op: DumpedOp) -> CallSlot:
    stats: TensorStats | None = None
    known: tuple[str, ...] = ()
    if row is not None and slot.meta is not None:
        fields = {field: row.stats[name] for name, field in STATISTICS.items() if name in row.stats}
        stats = TensorStats(count=math.prod(slot.meta.shape), digest=row.digest, **fields)  # type: ignore[arg-type]
        known = ("count", *fields)
    return slot_of_call(slot, stats, known, f"{op.path}:{slot.name}" if slot.value and op.has_values else "")


class _OneFile(DumpFolder):
    """The file of one op, or one `stats.csv`, on its own."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.parent, None)
        self._only = path
        self._record = None if path.name == STATS else OpFile(path).record

    def ops(self) -> Iterator[DumpedOp]:
        if self._record is not None:
            yield DumpedOp(self._record, self._only)

    def stats_files(self) -> list[Path]:
        return [self._only] if self._record is None else []


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
    decoder = msgspec.json.Decoder(FindingLine)
    if (file := folder / FINDINGS).exists():
        for _, _, line in lines_of(file, decoder, tell=problems.append, noun="finding"):
            yield Found(folder, line)
