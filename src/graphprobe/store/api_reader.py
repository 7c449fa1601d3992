"""Read an API dump as a stream of calls: memory does not grow with the dump, values are mapped."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from graphprobe.errors import ArtifactNotFoundError, GraphprobeError, RunNotFoundError, SchemaError
from graphprobe.records import TensorStats
from graphprobe.store import layout
from graphprobe.store.api_records import (
    API_SCHEMA,
    CALLS,
    RANK_PREFIX,
    STACKS,
    STEP_PREFIX,
    ApiManifest,
    ApiRecord,
    ApiSlot,
    Shard,
    StackLine,
    step_folder,
)
from graphprobe.store.calls import Call, CallDump, CallSlot, shape_problem
from graphprobe.store.files import lines_in, open_file
from graphprobe.store.reader import manifest_of_dump, told_of_dumps
from graphprobe.store.schema import UNREADABLE

DIGEST_KIND = "graphprobe"
STAT_NAMES = TensorStats.__struct_fields__

_OPEN_SHARDS = 64
_BUFFER_BYTES = 1 << 20
_LINES_TOGETHER = 128
_DECODER = msgspec.json.Decoder(ApiRecord)


class ApiRank:
    """What one process wrote: its folder and its manifest."""

    def __init__(self, folder: Path, manifest: ApiManifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._stacks: dict[int, tuple[str, ...]] | None = None

    def steps(self) -> tuple[int, ...]:
        """Steps that have a file of calls, ascending."""
        found = []
        for path in self.folder.glob(f"{STEP_PREFIX}*/{CALLS}"):
            digits = path.parent.name.removeprefix(STEP_PREFIX)
            if digits.isdecimal():
                found.append(int(digits))
        return tuple(sorted(found))

    def stack(self, number: int | None, problems: dict[str, None]) -> tuple[str, ...]:
        """The frames of a stack; empty for none."""
        if number is None:
            return ()
        if self._stacks is None:
            self._stacks = {}
            path = self.folder / STACKS
            for line in _lines(path, problems):
                try:
                    entry = msgspec.json.decode(line, type=StackLine)
                except UNREADABLE:
                    problems[f"{path} has a line that cannot be read"] = None
                else:
                    self._stacks[entry.stack] = entry.frames
        return self._stacks.get(number, ())


class ApiDump:
    """An API dump of one or more ranks, see `store.calls.CallDump`."""

    format = "graphprobe-api"

    def __init__(self, title: str, ranks: dict[int, ApiRank], *, only_step: int | None = None) -> None:
        self.title = title
        self.by_rank = ranks
        self.facts = _facts(ranks)
        self._only_step = only_step
        self._shards: dict[Path, Shard] = {}
        # Threads judge. The hash of a path is computed in Python, in the middle of what a dict does with it.
        self._opening = threading.Lock()
        self._problems: dict[str, None] = {}
        self._named: set[Path] = set()

    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.by_rank))

    def steps(self, rank: int) -> tuple[int, ...]:
        steps = self._rank(rank).steps()
        return steps if self._only_step is None else tuple(step for step in steps if step == self._only_step)

    def calls(self, rank: int, step: int) -> Iterator[Call]:
        one = self._rank(rank)
        path = one.folder / step_folder(step) / CALLS
        lines = enumerate(_lines(path, self._problems), start=1)
        # Some lines at a time: decoding many goes faster than decoding one between other things.
        while block := list(itertools.islice(lines, _LINES_TOGETHER)):
            yield from [self._call(record, rank, step, one) for record in self._records(path, block)]

    def values(self, call: Call, slot: CallSlot) -> npt.NDArray[np.generic]:
        shard, _, name = slot.value.partition(":")
        if not name or slot.meta is None:
            why = slot.missing or "the dump has no values of it"
            raise ArtifactNotFoundError(f"{self.title}: no values of {slot.name} of {call.label}: {why}")
        if os.path.isabs(shard) or ".." in Path(shard).parts:
            raise ArtifactNotFoundError(f"{self.title}: {slot.name} of {call.label} lies outside the dump: {shard}")
        path = self._rank(call.rank).folder / shard
        return self._shard(path).read(name, slot.meta.dtype, None if slot.sampled else slot.meta.shape)

    def _shard(self, path: Path) -> Shard:
        """The shard at a path, of which the last ones asked for stay open."""
        with self._opening:
            try:
                found = self._shards.pop(path, None) or Shard(path)
            except SchemaError as error:
                raise ArtifactNotFoundError(str(error)) from error
            self._shards[path] = found
            if len(self._shards) > _OPEN_SHARDS:
                del self._shards[next(iter(self._shards))]
        return found

    def problems(self) -> tuple[str, ...]:
        ranks = self.by_rank.values()
        said = told_of_dumps([(one.folder, one.manifest, one.manifest.stopped) for one in ranks])
        for path in sorted(self._named):
            try:
                if not Shard(path).is_whole:
                    said[f"{path} is cut off: values in it are missing"] = None
            except (SchemaError, ArtifactNotFoundError, OSError) as error:
                said[str(error)] = None
        return tuple({**said, **self._problems})

    def _rank(self, rank: int) -> ApiRank:
        found = self.by_rank.get(rank)
        if found is None:
            raise ArtifactNotFoundError(f"{self.title} has no rank {rank}; it has {list(self.ranks())}")
        return found

    def _records(self, path: Path, lines: list[tuple[int, bytes]]) -> list[ApiRecord]:
        found = []
        for number, line in lines:
            try:
                found.append(_DECODER.decode(line))
            except UNREADABLE as error:
                why = f"is no record: {error}" if line.endswith(b"\n") else "is cut off, as by a killed process"
                self._problems[f"{path} line {number} {why}"] = None
        return found

    def _call(self, record: ApiRecord, rank: int, step: int, one: ApiRank) -> Call:
        for slot in record.slots:
            if slot.value:
                shard = slot.value.partition(":")[0]
                if not os.path.isabs(shard) and ".." not in shard:
                    self._named.add(one.folder / shard)
        return Call(
            position=record.position,
            kind=record.kind,
            api=record.api,
            label=record.label,
            direction=record.direction,
            index=record.index,
            step=step,
            rank=rank,
            module=record.module,
            source=record.source,
            stack=one.stack(record.stack, self._problems),
            slots=tuple([_slot(slot) for slot in record.slots]),
            notes=record.notes,
            compiled=record.compiled,
        )


def open_api_dump(path: str | Path) -> CallDump:
    """The API dump at `path`: its folder, the folder of one rank, or that of one step of a rank.

    Raises:
        RunNotFoundError: there is no API dump.
        SchemaError: it was written by a newer graphprobe, or the manifest cannot be read.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise RunNotFoundError(f"{folder} is no folder", hint="name the folder that was given to graphprobe.dump")
    own = manifest_in(folder)
    if own is not None:
        return ApiDump(str(path), {own.rank: ApiRank(folder, own)})
    ranks = {}
    for file in sorted(folder.glob(f"{RANK_PREFIX}*/{layout.MANIFEST}")):
        manifest = manifest_in(file.parent)
        if manifest is not None:
            ranks[manifest.rank] = ApiRank(file.parent, manifest)
    if ranks:
        return ApiDump(str(path), ranks)
    above = manifest_in(folder.absolute().parent)
    digits = folder.absolute().name.removeprefix(STEP_PREFIX)
    if above is not None and digits.isdecimal() and (folder / CALLS).exists():
        return ApiDump(str(path), {above.rank: ApiRank(folder.absolute().parent, above)}, only_step=int(digits))
    raise RunNotFoundError(
        f"no API dump at {folder}: no {RANK_PREFIX}<R>/{layout.MANIFEST} of one there",
        hint="name the folder that was given to graphprobe.dump, or one of a rank in it",
    )


def manifest_in(folder: Path) -> ApiManifest | None:
    """The manifest of the API dump of one rank right in `folder`; None when there is none, or one of something else.

    Raises:
        SchemaError: it cannot be read, or is of a newer schema.
    """
    return manifest_of_dump(folder, ApiManifest, "api_dump_schema", API_SCHEMA, called="an API dump")


def is_api_dump(path: str | Path) -> bool:
    """Whether `open_api_dump` would find one, of whatever schema."""
    try:
        open_api_dump(path)
    except SchemaError:
        return True
    except GraphprobeError:
        return False
    return True


def _slot(slot: ApiSlot) -> CallSlot:
    if slot.meta is not None and (problem := shape_problem(slot.meta.shape)):
        return CallSlot(name=slot.name, role=slot.role, missing=problem)
    stats = slot.stats
    digest = "" if stats is None else stats.digest
    return CallSlot(
        name=slot.name,
        role=slot.role,
        meta=slot.meta,
        stats=stats,
        known=() if stats is None else STAT_NAMES,
        digest=digest,
        digest_kind=DIGEST_KIND if digest else "",
        scalar=slot.scalar,
        value=slot.value,
        sampled=slot.sampled,
        missing=slot.missing,
        requires_grad=None if slot.meta is None else slot.requires_grad,
        held=slot.held if slot.meta is not None and slot.role == "input" else None,
    )


def _lines(path: Path, problems: dict[str, None]) -> Iterator[bytes]:
    try:
        with open_file(path, buffer_bytes=_BUFFER_BYTES) as file:
            for line in lines_in(file):
                if line.strip():
                    yield line
    except OSError as error:
        problems[f"{path} cannot be read: {error.strerror}"] = None


def _facts(ranks: dict[int, ApiRank]) -> dict[str, str]:
    first = ranks[min(ranks)].manifest
    facts = {
        "torch": first.torch or "",
        "device": ", ".join(first.devices),
        "task": str(first.plan.get("data", "")),
        "level": str(first.plan.get("level", "")),
        "graphprobe": first.graphprobe,
        "host": first.host,
        "ranks": str(len(ranks)),
        "world_size": str(first.world_size or ""),
        "state": first.state,
    }
    return {name: value for name, value in facts.items() if value}
