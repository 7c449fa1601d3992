"""A dump of compiled graphs, read as calls: one op that ran is one call, of kind `kernel` or `node`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from graphprobe.errors import ArtifactNotFoundError, RunNotFoundError, SchemaError
from graphprobe.records import TensorStats
from graphprobe.store.calls import Call, CallKind, CallSlot, Scalar, shape_problem
from graphprobe.store.dump_dtypes import count_from_shape
from graphprobe.store.dump_format import OpFile, StatsRow, read_op_file, read_stats
from graphprobe.store.dump_reader import Dump, DumpedOp, DumpFolder, LoadedValue, open_dump, step_of
from graphprobe.store.dump_records import STAT_FIELDS, Argument, Slot
from graphprobe.store.reader import told_of_dumps

_DIGEST_KIND = "graphprobe"
_Rows = dict[tuple[int, str], StatsRow]


class GraphCalls:
    """A dump of compiled graphs, see `CallDump`; `ops()` and `stats()` have what it knows beyond calls.

    A step is that of the dump; where nobody counted, the number of the data folder.
    """

    format = "graphprobe-graph"

    def __init__(self, title: str, dump: Dump) -> None:
        self.title = title
        self._folders: dict[int, list[DumpFolder]] = {}
        for folder in dump.folders:
            rank = 0 if folder.manifest is None else folder.manifest.rank
            self._folders.setdefault(rank, []).append(folder)
        self._dump = dump
        self._problems: dict[str, None] = {}
        self._rows: tuple[Path, _Rows] | None = None
        self._file: OpFile | None = None
        self.facts = self._facts()

    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self._folders))

    def steps(self, rank: int) -> tuple[int, ...]:
        return tuple(sorted({step for folder in self._of(rank) for step in folder.steps()}))

    def calls(self, rank: int, step: int) -> Iterator[Call]:
        position = 0
        counts: dict[tuple[str, str], int] = {}
        for folder in self._of(rank):
            for op in folder.ops_of(step):
                kind: CallKind = "kernel" if op.record.op.engine == "kernel" else "node"
                api = op.record.op.target or op.record.op.op_type
                index = counts.get((kind, api), 0)
                counts[kind, api] = index + 1
                yield self._call(op, kind, api, index=index, position=position, rank=rank)
                position += 1

    def values(self, call: Call, slot: CallSlot) -> npt.NDArray[np.generic]:
        path, _, name = slot.value.rpartition(":")
        if not path:
            why = slot.missing or "the dump has no values of it"
            raise ArtifactNotFoundError(f"{self.title}: no values of {slot.name} of {call.label}: {why}")
        try:
            if self._file is None or str(self._file.path) != path:
                self._file = read_op_file(Path(path))
            found = next(one for one in self._file.record.slots if one.name == name)
        except (SchemaError, StopIteration) as error:
            raise ArtifactNotFoundError(f"{path}: the values of {name} cannot be read: {error}") from error
        return LoadedValue(self._file, found).bits()

    def problems(self) -> tuple[str, ...]:
        found = [(one.time_dir, own, own.stopped) for one in self._dump.folders if (own := one.manifest) is not None]
        return tuple({**told_of_dumps(found), **dict.fromkeys(self._dump.problems), **self._problems})

    def ops(self) -> Iterator[DumpedOp]:
        """Every execution of an op, process by process: its record, with model, engine and FX nodes, and its values."""
        return self._dump.ops()

    def stats(self) -> Iterator[StatsRow]:
        """Every row of statistics, as `stats.csv` has it, process by process."""
        return self._dump.stats()

    def _of(self, rank: int) -> list[DumpFolder]:
        found = self._folders.get(rank)
        if found is None:
            raise ArtifactNotFoundError(f"{self.title} has no rank {rank}; it has {list(self.ranks())}")
        return found

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
            slots=(
                *(_slot(slot, rows.get((record.seq, slot.name)), op) for slot in record.slots),
                *map(_argument, record.arguments),
            ),
            notes=tuple(notes),
        )

    def _stats(self, path: Path) -> _Rows:
        """The rows of one `stats.csv`, which has one call of a graph; the last one asked for is kept."""
        if self._rows is None or self._rows[0] != path:
            problems: list[str] = []
            rows = {(row.task_id, row.slot): row for row in read_stats(path, problems)}
            self._problems.update(dict.fromkeys(problems))
            self._rows = (path, rows)
        return self._rows[1]

    def _facts(self) -> dict[str, str]:
        manifest = next((folder.manifest for folder in self._dump.folders if folder.manifest is not None), None)
        if manifest is None:
            return {}
        facts = {
            "torch": manifest.torch or "",
            "device": ", ".join(manifest.devices),
            "engine": manifest.engine,
            "graphprobe": manifest.graphprobe,
            "host": manifest.host,
            "ranks": str(len(self._folders)),
            "state": manifest.state,
        }
        return {name: value for name, value in facts.items() if value}


def open_graph_dump(path: str | Path) -> GraphCalls:
    """The dump of compiled graphs at `path`, or anywhere in one: as `store.dump_reader.open_dump` finds it.

    Raises:
        RunNotFoundError: there is none.
        SchemaError: it was written by a newer graphprobe.
    """
    return GraphCalls(str(path), open_dump(path))


def is_graph_dump(path: str | Path) -> bool:
    """Whether `open_graph_dump` would find one, of whatever schema."""
    try:
        open_dump(path)
    except RunNotFoundError:
        return False
    except SchemaError:
        return True
    return True


def _slot(slot: Slot, row: StatsRow | None, op: DumpedOp) -> CallSlot:
    if problem := shape_problem(slot.meta.shape):
        return CallSlot(name=slot.name, role=slot.side, missing=problem)
    stats = None
    known: tuple[str, ...] = ()
    if row is not None:
        fields = {field: row.stats[name] for name, field in STAT_FIELDS.items() if name in row.stats}
        stats = TensorStats(count=count_from_shape(slot.meta.shape), digest=row.digest, **fields)  # type: ignore[arg-type]
        known = ("count", *fields)
    has_values = op.has_values and slot.stored is not None
    return CallSlot(
        name=slot.name,
        role=slot.side,
        meta=slot.meta,
        stats=stats,
        known=known,
        digest="" if row is None else row.digest,
        digest_kind=_DIGEST_KIND if row is not None and row.digest else "",
        value=f"{op.path}:{slot.name}" if has_values else "",
        missing=slot.missing,
    )


def _argument(argument: Argument) -> CallSlot:
    return CallSlot(name=argument.name, role="input", scalar=Scalar(argument.type, argument.text))
