"""Write the calls of a running program: a thread writes them beside it, and nothing that fails is raised into it.

Where calls end up: lines of each step, stacks, shards of values and the manifest; failures are counted, none raised.

For one thread at a time, but for `count` and `save`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from graphprobe.errors import UsageError
from graphprobe.records import Manifest
from graphprobe.settings import text_from_size
from graphprobe.store.api_records import (
    API_SCHEMA,
    CALLS,
    STACKS,
    VALUES,
    ApiManifest,
    ApiRecord,
    ApiSlot,
    RawCall,
    RawSlot,
    RawValue,
    StackLine,
    Value,
    encode_shard,
    rank_folder,
    shard_file,
    step_folder,
    value_name,
    write_shard,
)
from graphprobe.store.dump_queue import Array, CopyPool
from graphprobe.store.manifest import RESERVE_BYTES, SAVE_SECONDS, AppendFile, CountsShortage, ManifestFile
from graphprobe.store.schema import json_from_value

SHARD_BYTES = 32 * 1024 * 1024
"""A shard is written when it has become so large; a single larger value makes one alone."""
_OPEN_STEPS = 4
_MOST_RECORDS = 4096


class ApiSink(CountsShortage):
    """Writes calls below `folder`. `stopped` is set once nothing more will be written."""

    noun = "call"

    def __init__(
        self, folder: Path, file: ManifestFile, manifest: ApiManifest, max_bytes: int | None, pool: CopyPool
    ) -> None:
        super().__init__(file, max_bytes)
        self.folder = folder
        self.manifest = manifest
        self.known: set[str] = set()
        """Names of values that are written or about to be; whoever hands in calls looks here, and adds."""
        self._pool = pool
        self._files: dict[int, AppendFile] = {}
        self._stack_file: AppendFile | None = None
        self._stacks: dict[tuple[str, ...], int] = {}
        self._new_stacks: list[bytes] = []
        self._positions: dict[int, int] = {}
        self._records: list[tuple[int, ApiRecord]] = []
        self._shards = 0
        self._shard: list[Value] = []
        self._shard_bytes = 0
        self._where: dict[str, int] = {}
        self._used: list[Array] = []
        self._references = 0

    @property
    def waiting(self) -> bool:
        """Whether something was added that `flush` would write."""
        return bool(self._records)

    def add(self, call: RawCall) -> None:
        """Take one call; it is on disk after the next `flush`."""
        if self.refuses(call.label):
            return
        try:
            self._records.append((call.step, self._record(call)))
        except Exception as error:
            self.count(f"{type(error).__name__}: {error}", call.label)
        if self._shard_bytes >= SHARD_BYTES or len(self._records) >= _MOST_RECORDS:
            self.flush()

    def add_value(self, value: RawValue) -> None:
        """Take values, which the calls that follow refer to; they are on disk after the next `flush`."""
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
        self._shard.append(Value(name, value.dtype, value.items, memoryview(flat.data)))
        self._shard_bytes += flat.nbytes
        self._where[name] = self._shards

    def flush(self) -> None:
        """Write what was added: values first, then stacks, then the lines that name them."""
        records, self._records = self._records, []
        if not records and self._shard_bytes < SHARD_BYTES:
            return
        try:
            records = self._flush_values(records)
            self._flush_lines(records)
        except Exception as error:
            self._count_error(error, records[0][1].label if records else "", times=len(records))
        self.save(unless_newer_than_s=SAVE_SECONDS)

    def close(self) -> None:
        """Write the rest and the manifest, and close every file."""
        self.flush()
        with self.lock:
            self._file.drop_reserve()
            self.save()
            self.stopped = self.stopped or "the dump was closed"
        for file in self._files.values():
            file.close()
        if self._stack_file is not None:
            self._stack_file.close()

    def _record(self, call: RawCall) -> ApiRecord:
        slots = tuple([slot if isinstance(slot, ApiSlot) else self._slot(slot, call) for slot in call.slots])
        position = self._positions.get(call.step, 0)
        self._positions[call.step] = position + 1
        return ApiRecord(
            position=position,
            kind=call.kind,
            api=call.api,
            label=call.label,
            direction=call.direction,
            index=call.number,
            module=call.module,
            source=call.source,
            stack=self._stack(call.stack) if call.stack else None,
            thread=call.thread,
            slots=slots,
            notes=call.notes,
            compiled=call.compiled,
        )

    def _slot(self, raw: RawSlot, call: RawCall) -> ApiSlot:
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
        return ApiSlot(
            name=raw.name,
            role=raw.role,
            meta=raw.meta,
            stats=stats,
            scalar=raw.scalar,
            value=value,
            sampled=raw.sampled and bool(value),
            missing=missing,
            requires_grad=raw.requires_grad,
            held=raw.held,
        )

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
            pieces = encode_shard(values)
            size_bytes = sum(piece.nbytes for piece in pieces)
            self._take(size_bytes)
            try:
                self._folder(VALUES)
                write_shard(self.folder / shard_file(number), pieces)
            except BaseException:
                self._budget.give_back(size_bytes)
                raise
            del pieces
            self.manifest.values += len(values)
            self.manifest.value_references = self._references
            self.manifest.collected_files += 1
            self.manifest.collected_bytes += size_bytes
        except Exception as error:
            reason = self._reason(error)
            self._count_error(error, values[0].name, times=len(values), noun="value")
            for value in values:
                self._where.pop(value.name, None)
                self.known.discard(value.name)
            prefix = f"{shard_file(number)}:"
            return [(step, _without(record, prefix, reason)) for step, record in records]
        finally:
            del values
            self._pool.give_back(used)
        return records

    def _flush_lines(self, records: list[tuple[int, ApiRecord]]) -> None:
        if self._new_stacks:
            stacks, self._new_stacks = b"".join(self._new_stacks), []
            self._stack_file = self._stack_file or AppendFile(self.folder / STACKS)
            self._take(len(stacks))
            self._stack_file.append(stacks)
            self.manifest.collected_bytes += len(stacks)
        by_step: dict[int, list[bytes]] = {}
        for step, record in records:
            try:
                line = json_from_value(record)
            except Exception as error:  # of one record, that none but it is lost
                self.count(f"{type(error).__name__}: {error}", record.label)
            else:
                by_step.setdefault(step, []).append(line + b"\n")
        for step, lines in by_step.items():
            for data, count in self._affordable(lines):
                self._append(step, data, count)

    def _affordable(self, lines: list[bytes]) -> list[tuple[bytes, int]]:
        """The lines as one piece; one by one where the budget does not hold them all."""
        whole = b"".join(lines)
        limit = self._budget.max_bytes
        if limit is None or self._budget.used_bytes + self._budget.overhead_bytes + len(whole) <= limit:
            return [(whole, len(lines))]
        return [(line, 1) for line in lines]

    def _append(self, step: int, data: bytes, count: int) -> None:
        file = self._files.pop(step, None)
        if file is None:
            if len(self._files) >= _OPEN_STEPS:
                self._files.pop(next(iter(self._files))).close()
            self._folder(step_folder(step))
            file = AppendFile(self.folder / step_folder(step) / CALLS)
            if step not in self.manifest.steps:
                self.manifest.steps = sorted([*self.manifest.steps, step])
        self._files[step] = file
        self._take(len(data))
        try:
            file.append(data)
        except BaseException:
            self._budget.give_back(len(data))
            raise
        self.manifest.calls += count
        self.manifest.collected_bytes += len(data)

    def _take(self, size_bytes: int) -> None:
        if self.stopped is None and self._budget.take(size_bytes):
            return
        if self.stopped is None:
            reason = f"budget_bytes ({text_from_size(self._budget.max_bytes or 0)}) was reached"
            self.stopped = self.manifest.stopped = reason
        raise _Stopped(self.stopped)

    def _folder(self, name: str) -> None:
        """A folder below that of the rank, which itself is never made again once it is gone."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.folder / name)

    def _reason(self, error: Exception) -> str:
        return str(error) if isinstance(error, _Stopped) else super()._reason(error)


class _Stopped(Exception):
    """The budget was reached."""


def _without(record: ApiRecord, prefix: str, reason: str) -> ApiRecord:
    def gap(slot: ApiSlot) -> ApiSlot:
        changed: dict[str, Any] = {"value": "", "sampled": False, "missing": reason}
        return msgspec.structs.replace(slot, **changed) if slot.value.startswith(prefix) else slot

    return msgspec.structs.replace(record, slots=tuple(gap(slot) for slot in record.slots))


QUEUE_BYTES = 256 * 1024 * 1024
BATCH_CALLS = 256
BATCH_BYTES = 8 * 1024 * 1024
"""The writing thread is woken when so much waits; a wake-up for each call would cost more than writing it."""
INTERVAL_S = 0.2
"""What waits is written after this long at the latest, however little it is."""

_forks = 0
"""How often this process has become another one by a fork: cheaper to look at than its number."""


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class ApiWriter:
    """Writes the dump of one process. Get one from `create`, hand calls to `submit`, and `close` it.

    `submit` may be called from any thread, and takes no lock unless there is no room. In a forked child it goes silent.
    After `create` nothing raises: what could not be written is counted in the manifest's `missing`. A killed process
    loses what waits: the calls of the last `INTERVAL_S`, and the values not yet written.
    """

    def __init__(self, sink: ApiSink, pool: CopyPool, *, queue_bytes: int) -> None:
        self.pool = pool
        self.known = sink.known
        self._sink = sink
        self._pid = os.getpid()
        self._forks = _forks
        self._closed = False
        self._queue_bytes = queue_bytes
        self._batch_bytes = min(BATCH_BYTES, queue_bytes)
        self._calls: deque[RawCall | RawValue] = deque()
        self._handed_bytes = 0
        self._done_bytes = 0
        self._busy = False
        self._blocked = 0
        self._wake = threading.Event()
        self._room = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="graphprobe-api-dump", daemon=True)
        self._thread.start()

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        manifest: ApiManifest,
        max_bytes: int | None = None,
        queue_bytes: int = QUEUE_BYTES,
    ) -> ApiWriter:
        """Start the dump of a rank in `path`, which is made if need be.

        Args:
            path: the folder of the dump; that of the rank must not be there yet.
            manifest: from `api_manifest_from_run`.
            max_bytes: bounds everything the rank writes; None is no bound. Once it is reached, dumping ends.
            queue_bytes: of calls that wait to be written; when they are more, the program waits.

        Raises:
            UsageError: an argument is wrong, or the folder cannot be made; nothing of it is left behind.
        """
        for name, value in {"max_bytes": max_bytes, "queue_bytes": queue_bytes}.items():
            if value is not None and value < 1:
                raise UsageError(f"{name}={value}: expected a positive number of bytes")
        made = False
        try:
            path = path.absolute()  # the program may go elsewhere
            folder = path / rank_folder(manifest.rank)
            path.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            made = True
            reserve_bytes = RESERVE_BYTES if max_bytes is None else min(RESERVE_BYTES, max_bytes // 8)
            file = ManifestFile(folder, manifest, reserve_bytes=reserve_bytes)
            file.create()
        except FileExistsError as error:
            raise UsageError(
                f"{error.filename or folder} exists already: a dump never writes into another",
                hint="name a folder that does not exist yet, or remove that one",
            ) from error
        except OSError as error:
            if made:
                shutil.rmtree(folder, ignore_errors=True)
            raise UsageError(
                f"no dump can be written under {path}: {error.strerror} ({error.filename or path})",
                hint="name a folder that can be made and written to",
            ) from error
        pool = CopyPool(queue_bytes)
        return cls(ApiSink(folder, file, manifest, max_bytes, pool), pool, queue_bytes=queue_bytes)

    @property
    def folder(self) -> Path:
        """The folder of this rank."""
        return self._sink.folder

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of the process that made the writer."""
        return os.getpid() != self._pid

    @property
    def accepts(self) -> bool:
        """Whether `submit` can still lead to anything."""
        return not self._closed and self._sink.stopped is None and os.getpid() == self._pid

    @property
    def manifest(self) -> ApiManifest:
        """A copy of the manifest as it stands, fresher than the file."""
        with self._sink.lock:
            return msgspec.convert(msgspec.to_builtins(self._sink.manifest), ApiManifest)

    def submit(self, call: RawCall | RawValue) -> None:
        """Hand in one call, or values that calls handed in later have; nothing in it may change any more."""
        if self._closed or _forks != self._forks:
            return
        self._calls.append(call)
        self._handed_bytes += call.size_bytes
        waiting_bytes = self._handed_bytes - self._done_bytes
        if len(self._calls) >= BATCH_CALLS or waiting_bytes >= self._batch_bytes:
            self._wake.set()
            if waiting_bytes >= self._queue_bytes and threading.current_thread() is not self._thread:
                self._wait_for_room()

    def note(self, text: str) -> None:
        """Add a line to the manifest's notes, once."""
        if not self._closed and not self.forked:
            with self._sink.lock:
                if text not in self._sink.manifest.notes:
                    self._sink.manifest.notes.append(text)
                    self._sink.save()

    def stop(self, reason: str) -> None:
        """Dumping ends before the program does: the manifest tells readers that nothing is known of what comes."""
        if not self._closed and not self.forked:
            with self._sink.lock:
                self._sink.manifest.stopped = reason
                self._sink.save()

    def missing(self, reason: str, *, name: str = "", noun: str = "call") -> None:
        """Count something that should be in the dump and is not."""
        if not self._closed and not self.forked:
            self._sink.count(reason, name, noun=noun)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was handed in is written; False when it took longer."""
        if self._closed or self.forked or threading.current_thread() is self._thread:
            return True
        with self._room:
            self._wake.set()
            return self._room.wait_for(lambda: not self._calls and not self._busy, timeout_s)

    def close(self, state: Literal["finished", "failed"] = "finished", exception: str | None = None) -> None:
        """End the dump once all that was handed in is written. Only the first call counts."""
        if self._closed or self.forked:
            return
        self._closed = True
        self._wake.set()
        self._thread.join()
        with self._sink.lock:
            manifest = self._sink.manifest
            manifest.state, manifest.exception, manifest.ended_ns = state, exception, time.time_ns()
            if not manifest.calls and not manifest.missing:
                manifest.notes.append("nothing was dumped: no call was handed in")
        self._sink.close()
        self.pool.clear()

    def _wait_for_room(self) -> None:
        began_ns = time.perf_counter_ns()
        with self._room:
            self._blocked += 1
            self._wake.set()
            self._room.wait_for(
                lambda: self._closed or self._handed_bytes - self._done_bytes <= self._queue_bytes or not self._calls
            )
            self._blocked -= 1
            self._sink.manifest.blocked_ns += time.perf_counter_ns() - began_ns

    def _work(self) -> None:
        """The writing thread."""
        while True:
            self._wake.wait(INTERVAL_S)
            self._wake.clear()
            last = self._closed
            self._busy = True
            try:
                self._drain()
            except BaseException as error:  # MemoryError and its like: the thread must live on
                self._sink.count(f"{type(error).__name__}: {error}", "")
            with self._room:
                self._busy = False
                self._room.notify_all()
            if last and not self._calls:
                return

    def _drain(self) -> None:
        manifest = self._sink.manifest
        manifest.queue_peak_bytes = max(manifest.queue_peak_bytes, self._handed_bytes - self._done_bytes)
        flushed_s = time.monotonic()
        while self._calls:
            if time.monotonic() - flushed_s > INTERVAL_S:  # the queue may never be empty
                self._sink.flush()
                flushed_s = time.monotonic()
            call = self._calls.popleft()
            if isinstance(call, RawCall):
                self._sink.add(call)
            else:
                self._sink.add_value(call)
            self._done_bytes += call.size_bytes
            del call
            if self._blocked and self._handed_bytes - self._done_bytes <= self._queue_bytes // 2:
                with self._room:
                    self._room.notify_all()
        self._sink.flush()


def api_manifest_from_run(manifest: Manifest, *, plan: dict[str, Any]) -> ApiManifest:
    """The manifest of a dump by the process that `manifest` describes; `plan` must be JSON as it stands."""
    document = msgspec.to_builtins(manifest) | {"api_dump_schema": API_SCHEMA, "plan": plan, "holders": True}
    return msgspec.convert(document, ApiManifest)
