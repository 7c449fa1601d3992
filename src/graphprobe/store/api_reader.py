"""Reads a dump as a stream of calls: memory does not grow with the dump, values are mapped. API dumps in full."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from graphprobe.errors import ArtifactNotFoundError, RunNotFoundError, SchemaError
from graphprobe.records import Manifest, TensorStats
from graphprobe.store import layout
from graphprobe.store.calls import (
    CALLS,
    RANK_PREFIX,
    STACKS,
    STEP_PREFIX,
    ApiManifest,
    ApiRecord,
    Call,
    CallDump,
    CallSlot,
    Holder,
    StackLine,
    WrittenSlot,
    shape_problem,
    step_folder,
)
from graphprobe.store.dump_format import Shard
from graphprobe.store.reader import manifest_of_dump, told_of_dumps
from graphprobe.store.schema import lines_of

DIGEST_KIND = "graphprobe"
STAT_NAMES = TensorStats.__struct_fields__

_OPEN_SHARDS = 64
_CALL, _STACK = msgspec.json.Decoder(ApiRecord), msgspec.json.Decoder(StackLine)

RankT = TypeVar("RankT")


class OwnDump(Generic[RankT]):
    """What is the same in graphprobe's dumps of calls and of compiled graphs: values are in safetensors files."""

    def __init__(self, title: str, by_rank: dict[int, RankT]) -> None:
        self.title = title
        self.by_rank = by_rank
        self._shards: dict[Path, Shard] = {}
        # Threads judge. The hash of a path is computed in Python, in the middle of what a dict does with it.
        self._opening = threading.Lock()
        self._problems: dict[str, None] = {}

    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.by_rank))

    def values(self, call: Call, slot: CallSlot) -> npt.NDArray[np.generic]:
        if not slot.value or slot.meta is None:
            why = slot.missing or "the dump has no values of it"
            raise ArtifactNotFoundError(f"{self.title}: no values of {slot.name} of {call.label}: {why}")
        path, name = self._place(call, slot)
        with self._opening:  # the last ones asked for stay open
            try:
                found = self._shards.pop(path, None) or Shard(path)
            except SchemaError as error:
                raise ArtifactNotFoundError(str(error)) from error
            self._shards[path] = found
            if len(self._shards) > _OPEN_SHARDS:
                del self._shards[next(iter(self._shards))]
        return found.read(name, slot.meta.dtype, None if slot.sampled else slot.meta.shape)

    def _place(self, call: Call, slot: CallSlot) -> tuple[Path, str]:
        """The file of a slot's values, and their name in it."""
        raise NotImplementedError

    def _one(self, rank: int) -> RankT:
        if rank not in self.by_rank:
            raise ArtifactNotFoundError(f"{self.title} has no rank {rank}; it has {sorted(self.by_rank)}")
        return self.by_rank[rank]


def facts_of(manifest: Manifest, ranks: int, own: dict[str, Any], **more: Any) -> dict[str, str]:
    """What a dump says about its run; `own` and `more` are of one kind of dump alone."""
    facts = {"torch": manifest.torch, "device": ", ".join(manifest.devices), **own, "graphprobe": manifest.graphprobe}
    facts |= {"host": manifest.host, "ranks": ranks, **more, "state": manifest.state}
    return {name: str(value) for name, value in facts.items() if value}


class ApiRank(NamedTuple):
    """What one process wrote."""

    folder: Path
    manifest: ApiManifest


class ApiDump(OwnDump[ApiRank]):
    """An API dump of one or more ranks, see `store.calls.CallDump`."""

    format = "graphprobe-api"

    def __init__(self, title: str, ranks: dict[int, ApiRank], *, only_step: int | None = None) -> None:
        super().__init__(title, ranks)
        first = ranks[min(ranks)].manifest
        own = {"task": first.plan.get("data"), "level": first.plan.get("level")}
        self.facts = facts_of(first, len(ranks), own, world_size=first.world_size)
        self._only_step = only_step
        self._named: set[Path] = set()
        self._stacks = functools.cache(self._read_stacks)

    def steps(self, rank: int) -> tuple[int, ...]:
        """Steps that have a file of calls, ascending."""
        paths = self._one(rank).folder.glob(f"{STEP_PREFIX}*/{CALLS}")
        found = (path.parent.name.removeprefix(STEP_PREFIX) for path in paths)
        steps = sorted(int(digits) for digits in found if digits.isdecimal())
        return tuple(step for step in steps if self._only_step in (None, step))

    def calls(self, rank: int, step: int) -> Iterator[Call]:
        one = self._one(rank)
        path = one.folder / step_folder(step) / CALLS
        return (self._call(r, rank, step, one) for _, _, r in lines_of(path, _CALL, tell=self._problems.setdefault))

    def _place(self, call: Call, slot: CallSlot) -> tuple[Path, str]:
        shard, _, name = slot.value.partition(":")
        if os.path.isabs(shard) or ".." in Path(shard).parts:
            raise ArtifactNotFoundError(f"{self.title}: {slot.name} of {call.label} lies outside the dump: {shard}")
        return self._one(call.rank).folder / shard, name

    def problems(self) -> tuple[str, ...]:
        said = told_of_dumps((one.folder, one.manifest) for one in self.by_rank.values())
        for path in sorted(self._named):
            try:
                if not Shard(path).is_whole:
                    said[f"{path} is cut off: values in it are missing"] = None
            except (SchemaError, ArtifactNotFoundError, OSError) as error:
                said[str(error)] = None
        return tuple({**said, **self._problems})

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
            stack=self._stacks(rank).get(record.stack, ()) if record.stack is not None else (),
            slots=tuple([_slot(slot) for slot in record.slots]),
            notes=record.notes,
            compiled=record.compiled,
        )

    def _read_stacks(self, rank: int) -> dict[int, tuple[str, ...]]:
        lines = lines_of(self._one(rank).folder / STACKS, _STACK, tell=self._problems.setdefault)
        return {line.stack: line.frames for _, _, line in lines}


def open_api_dump(path: str | Path) -> CallDump:
    """The API dump at `path`: its folder, the folder of one rank, or that of one step of a rank.

    Raises:
        RunNotFoundError: there is no API dump.
        SchemaError: it was written by a newer graphprobe, or the manifest cannot be read.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise RunNotFoundError(f"{folder} is no folder", hint="name the folder that was given to graphprobe.dump")
    own = manifest_of_dump(folder, ApiManifest)
    if own is not None:
        return ApiDump(str(path), {own.rank: ApiRank(folder, own)})
    folders = [file.parent for file in sorted(folder.glob(f"{RANK_PREFIX}*/{layout.MANIFEST}"))]
    there = ((one, manifest_of_dump(one, ApiManifest)) for one in folders)
    ranks = {manifest.rank: ApiRank(one, manifest) for one, manifest in there if manifest is not None}
    if ranks:
        return ApiDump(str(path), ranks)
    above = manifest_of_dump(folder.absolute().parent, ApiManifest)
    digits = folder.absolute().name.removeprefix(STEP_PREFIX)
    if above is not None and digits.isdecimal() and (folder / CALLS).exists():
        return ApiDump(str(path), {above.rank: ApiRank(folder.absolute().parent, above)}, only_step=int(digits))
    raise RunNotFoundError(
        f"no API dump at {folder}: no {RANK_PREFIX}<R>/{layout.MANIFEST} of one there",
        hint="name the folder that was given to graphprobe.dump, or one of a rank in it",
    )


def _slot(slot: WrittenSlot) -> CallSlot:
    known = () if slot.stats is None else STAT_NAMES
    requires_grad = None if slot.meta is None else slot.requires_grad
    held = slot.held if slot.meta is not None and slot.role == "input" else None
    return slot_of_call(slot, slot.stats, known, slot.value, requires_grad, held)


def slot_of_call(
    slot: WrittenSlot,
    stats: TensorStats | None,
    known: tuple[str, ...],
    value: str,
    requires_grad: bool | None = None,
    held: Holder | None = None,
) -> CallSlot:
    """A slot as readers have it: what the line says, and what the dump keeps elsewhere."""
    if slot.meta is not None and (problem := shape_problem(slot.meta.shape)):
        return CallSlot(name=slot.name, role=slot.role, missing=problem)
    digest = "" if stats is None else stats.digest
    return CallSlot(
        name=slot.name,
        role=slot.role,
        meta=slot.meta,
        stats=stats,
        known=known,
        digest=digest,
        digest_kind=DIGEST_KIND if digest else "",
        scalar=slot.scalar,
        value=value,
        sampled=slot.sampled,
        missing=slot.missing,
        requires_grad=requires_grad,
        held=held,
    )
