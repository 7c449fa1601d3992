"""Write the calls of a running program: lines of each step, stacks, shards of values and the manifest."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from graphprobe.errors import UsageError
from graphprobe.records import TensorMeta, TensorStats
from graphprobe.store.calls import (
    CALLS,
    RANK_PREFIX,
    STACKS,
    VALUES,
    ApiManifest,
    ApiRecord,
    CallDirection,
    CallKind,
    CompiledRegion,
    Holder,
    Scalar,
    SlotRole,
    StackLine,
    WrittenSlot,
    shard_file,
    step_folder,
)
from graphprobe.store.dump_dtypes import Array
from graphprobe.store.dump_format import encode_tensors
from graphprobe.store.dump_queue import INTERVAL_S, BudgetReachedError, QueuedWriter, check_bounds
from graphprobe.store.files import folder_below, replace_file
from graphprobe.store.manifest import SAVE_SECONDS, AppendFile, making
from graphprobe.store.schema import json_from_value

SHARD_BYTES = 32 * 1024 * 1024
"""A shard is written when it has become so large; a single larger value makes one alone."""
_OPEN_STEPS = 4
_MOST_RECORDS = 4096
QUEUE_BYTES = 256 * 1024 * 1024


class Handed:
    """Values that were handed in, as the slots that have them know them.

    `name` is equal for equal bits, dtype and count. Where the digest comes from a device, the writing thread sets it.
    """

    __slots__ = ("name",)

    def __init__(self, name: str | None) -> None:
        self.name = name


class RawValue(msgspec.Struct, gc=False):
    """Values of one tensor, 1-d and row-major; handed in before every call that has them.

    Attributes:
        handed: what the slots hold.
        stats: needed where the name is not known yet.
        dtype, items: of the values, and how many.
        data: their bytes, which nobody changes any more, or a function that waits for them.
        sample: step of the sample; None: all values.
        size_bytes: what they take while they wait.
    """

    handed: Handed
    stats: Callable[[], TensorStats] | None
    dtype: str
    items: int
    data: Array | Callable[[], Array]
    sample: int | None
    size_bytes: int


class RawSlot(msgspec.Struct, gc=False):
    """One argument or result of which the writing thread has yet to find something out: as `WrittenSlot`.

    Never changed once it is made, so that one object may stand in several calls.
    """

    name: str
    role: SlotRole
    meta: TensorMeta | None = None
    stats: TensorStats | Callable[[], TensorStats] | None = None
    scalar: Scalar | None = None
    payload: Handed | None = None
    sampled: bool = False
    missing: str = ""
    requires_grad: bool = False
    held: Holder = ""


Slot = WrittenSlot | RawSlot


class Head(msgspec.Struct, gc=False):
    """What a backward has in common with its forward: as in `ApiRecord`, but `number` is its `index`.

    `label` lacks the direction, and `thread` is the forward's.
    """

    step: int
    kind: CallKind
    api: str
    label: str
    number: int
    module: str
    source: str
    stack: tuple[str, ...]
    thread: str


class RawCall(msgspec.Struct, gc=False):
    """One call. Its position is given where it is written, so that it is the order of the file.

    `size_bytes` is what it takes while it waits. A struct is made in a third of the time of a named tuple, and the
    garbage collector need not look at it.
    """

    head: Head
    direction: CallDirection
    thread: str
    slots: Sequence[Slot]
    notes: tuple[str, ...]
    size_bytes: int
    compiled: CompiledRegion | None = None

    @property
    def label(self) -> str:
        return f"{self.head.label}.{self.direction}"


def value_name(digest: str, dtype: str, count: int, *, sample: int | None = None) -> str:
    """Equal for values of equal bits; `sample` is the step of a sample, None for all values."""
    return f"{digest}.{dtype}.{count}" if sample is None else f"{digest}.{dtype}.{count}.every{sample}"


class ApiWriter(QueuedWriter[ApiManifest, RawCall | RawValue]):
    """Writes the calls of one process: lines of each step, stacks, and shards of values. Get one from `create`.

    After `create` nothing raises: what could not be written is counted in the manifest's `missing`.
    """

    noun, bound = "call", "budget_bytes"
    wake_items, wake_bytes = 256, 8 * 1024 * 1024

    def __init__(self, folder: Path, manifest: ApiManifest, max_bytes: int | None, *, queue_bytes: int) -> None:
        self.known: set[str] = set()
        """Names of values that are written or about to be; whoever hands in calls looks here, and adds."""
        self._files: dict[int, AppendFile] = {}
        self._stack_file: AppendFile | None = None
        self._stacks: dict[tuple[str, ...], int] = {}
        self._new_stacks: list[bytes] = []
        self._positions: dict[int, int] = {}
        self._records: list[tuple[int, ApiRecord]] = []
        self._shards = 0
        self._shard: list[tuple[str, str, tuple[int, ...], memoryview]] = []
        """Name, dtype, shape and bytes, as `encode_tensors` takes them."""
        self._shard_bytes = 0
        self._where: dict[str, int] = {}
        self._used: list[Array] = []
        self._references = 0
        self._flush_at_s = 0.0
        super().__init__(folder, manifest, max_bytes, queue_bytes=queue_bytes, queue_items=sys.maxsize)

    @classmethod
    def create(
        cls, path: Path, *, manifest: ApiManifest, max_bytes: int | None = None, queue_bytes: int = QUEUE_BYTES
    ) -> ApiWriter:
        """Start the dump of a rank in `path`, which is made if need be.

        Args:
            path: the folder of the dump; that of the rank must not be there yet.
            manifest: made by `ApiManifest.of`.
            max_bytes: bounds everything the rank writes; None is no bound. Once it is reached, dumping ends.
            queue_bytes: of calls that wait to be written; when they are more, the program waits.

        Raises:
            UsageError: an argument is wrong, or the folder cannot be made; nothing of it is left behind.
        """
        check_bounds(1, max_bytes=max_bytes, queue_bytes=queue_bytes)
        with making("dump", path, hint="name a folder that can be made and written to") as made:
            path = path.absolute()  # the program may go elsewhere
            folder = path / f"{RANK_PREFIX}{manifest.rank}"
            try:
                path.mkdir(parents=True, exist_ok=True)
                folder.mkdir()
            except FileExistsError as error:
                raise UsageError(
                    f"{error.filename or folder} exists already: a dump never writes into another",
                    hint="name a folder that does not exist yet, or remove that one",
                ) from error
            made.append(folder)
            return cls(folder, manifest, max_bytes, queue_bytes=queue_bytes)

    def stop(self, reason: str) -> None:
        """Dumping ends before the program does: the manifest tells readers that nothing is known of what comes."""
        if not self.silent:
            with self.lock:
                self._own.stopped = reason
                self.save()

    def _write_items(self, items: list[RawCall | RawValue]) -> None:
        for item in items:
            try:
                if isinstance(item, RawCall):
                    self._add(item)
                else:
                    self._add_value(item)
            except BaseException as error:
                self.count(f"{type(error).__name__}: {error}", "")

    def _add(self, call: RawCall) -> None:
        """Take one call; it is on disk after the next `_flush_items`."""
        if self.refuses(call.label):
            return
        now_s = time.monotonic()
        if not self._records:
            self._flush_at_s = now_s + INTERVAL_S  # the queue may never be empty
        try:
            self._records.append((call.head.step, self._record(call)))
        except Exception as error:
            self.count(f"{type(error).__name__}: {error}", call.label)
        if now_s >= self._flush_at_s or self._shard_bytes >= SHARD_BYTES or len(self._records) >= _MOST_RECORDS:
            self._flush_items()

    def _add_value(self, value: RawValue) -> None:
        """Take values, which the calls that follow refer to; they are on disk after the next `_flush_items`."""
        name = value.handed.name
        try:
            if name is None:
                digest = "" if value.stats is None else value.stats().digest
                name = value.handed.name = value_name(digest, value.dtype, value.items, sample=value.sample)
            if name in self._where:
                return
            if self.stopped is not None or self._retry_at is not None:
                self.known.discard(name)
                return
            data = value.data() if callable(value.data) else value.data
        except Exception as error:
            self.count(f"{type(error).__name__}: {error}", name or "", noun="value")
            return
        self._used.append(data)
        flat = data.reshape(-1).view(np.uint8)
        self._shard.append((name, value.dtype, (value.items,), memoryview(flat.data)))
        self._shard_bytes += flat.nbytes
        self._where[name] = self._shards

    def _flush_items(self) -> None:
        """Write what was added: values first, then stacks, then the lines that name them."""
        records, self._records = self._records, []
        if not records and self._shard_bytes < SHARD_BYTES:
            return
        try:
            records = self._flush_values(records)
            self._flush_lines(records)
        except Exception as error:
            self._count_error(error, records[0][1].label if records else "", times=len(records))
        self._own.value_references = self._references
        self.save(unless_newer_than_s=SAVE_SECONDS)

    def _close_files(self) -> None:
        for file in filter(None, (*self._files.values(), self._stack_file)):
            file.close()

    def _record(self, call: RawCall) -> ApiRecord:
        head = call.head
        slots = tuple([slot if isinstance(slot, WrittenSlot) else self._slot(slot, call) for slot in call.slots])
        position = self._positions.get(head.step, 0)
        self._positions[head.step] = position + 1
        return ApiRecord(
            position=position,
            kind=head.kind,
            api=head.api,
            label=call.label,
            direction=call.direction,
            index=head.number,
            module=head.module,
            source=head.source,
            stack=self._stack(head.stack) if head.stack else None,
            thread=call.thread,
            slots=slots,
            notes=call.notes,
            compiled=call.compiled,
        )

    def _slot(self, raw: RawSlot, call: RawCall) -> WrittenSlot:
        stats, missing, value = raw.stats, raw.missing, ""
        if callable(stats):
            try:
                stats = stats()
            except Exception as error:
                stats, missing = None, f"{type(error).__name__}: {error}"
        if raw.payload is not None:
            name = raw.payload.name
            shard = None if name is None else self._where.get(name)
            if shard is not None:
                value = f"{shard_file(shard)}:{name}"
                self._references += 1
            else:
                missing = missing or "the values could not be written"
        if missing and not raw.missing:
            self.count(missing, f"{raw.name} of {call.label}", noun="value")
        kept, sampled = (raw.name, raw.role, raw.meta, stats, raw.scalar), raw.sampled and bool(value)
        return WrittenSlot(*kept, value, sampled, missing, raw.requires_grad, raw.held)

    def _stack(self, frames: tuple[str, ...]) -> int:
        number = self._stacks.get(frames)
        if number is None:
            number = self._stacks[frames] = len(self._stacks)
            self._new_stacks.append(json_from_value(StackLine(number, frames)) + b"\n")
        return number

    def _flush_values(self, records: list[tuple[int, ApiRecord]]) -> list[tuple[int, ApiRecord]]:
        """The records, with a gap for each value that could not be written."""
        values, self._shard, self._shard_bytes = self._shard, [], 0
        used, self._used = self._used, []
        if not values:
            return records
        number, self._shards = self._shards, self._shards + 1
        try:
            pieces = encode_tensors(values)
            size_bytes = sum(piece.nbytes for piece in pieces)
            self._take(size_bytes)
            with self._paid(size_bytes):
                folder_below(self.folder, VALUES)
                replace_file(f"{self.folder}/{shard_file(number)}", *pieces)
            del pieces
            self._own.values += len(values)
            self._own.collected_files += 1
            self._own.collected_bytes += size_bytes
        except Exception as error:
            reason = self._reason(error)
            self._count_error(error, values[0][0], times=len(values), noun="value")
            for name, *_ in values:
                self._where.pop(name, None)
                self.known.discard(name)
            prefix = f"{shard_file(number)}:"
            return [(step, _without(record, prefix, reason)) for step, record in records]
        finally:
            del values
            self.pool.give_back(used)
        return records

    def _flush_lines(self, records: list[tuple[int, ApiRecord]]) -> None:
        if self._new_stacks:
            stacks, self._new_stacks = b"".join(self._new_stacks), []
            self._stack_file = self._stack_file or AppendFile(self.folder / STACKS)
            self._take(len(stacks))
            self._stack_file.append(stacks)
            self._own.collected_bytes += len(stacks)
        by_step: dict[int, list[bytes]] = {}
        for step, record in records:
            try:
                line = json_from_value(record)
            except Exception as error:  # of one record, that none but it is lost
                self.count(f"{type(error).__name__}: {error}", record.label)
            else:
                by_step.setdefault(step, []).append(line + b"\n")
        for step, lines in by_step.items():
            try:
                self._append(step, b"".join(lines), len(lines))
            except BudgetReachedError:  # it may hold some of them
                for line in lines:
                    self._append(step, line, 1)

    def _append(self, step: int, data: bytes, count: int) -> None:
        file = self._files.pop(step, None)
        if file is None:
            if len(self._files) >= _OPEN_STEPS:
                self._files.pop(next(iter(self._files))).close()
            file = AppendFile(folder_below(self.folder, step_folder(step)) / CALLS)
            if step not in self._own.steps:
                self._own.steps = sorted([*self._own.steps, step])
        self._files[step] = file
        self._take(len(data), ends=count == 1)
        with self._paid(len(data)):
            file.append(data)
        self._own.calls += count
        self._own.collected_bytes += len(data)


def _without(record: ApiRecord, prefix: str, reason: str) -> ApiRecord:
    def gap(slot: WrittenSlot) -> WrittenSlot:
        changed: dict[str, Any] = {"value": "", "sampled": False, "missing": reason}
        return msgspec.structs.replace(slot, **changed) if slot.value.startswith(prefix) else slot

    return msgspec.structs.replace(record, slots=tuple(gap(slot) for slot in record.slots))
