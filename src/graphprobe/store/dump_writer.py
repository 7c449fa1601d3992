"""Dump the ops of a running program into a time folder: a file with values for each, an index, and statistics."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from graphprobe.records import STATISTICS, TensorStats
from graphprobe.store import dump_records
from graphprobe.store.calls import WrittenSlot
from graphprobe.store.dump_dtypes import stored_from_meta
from graphprobe.store.dump_format import HEADER, OpForm, columns_of, encode_op, encode_place
from graphprobe.store.dump_queue import BATCH, QueuedWriter, check_bounds
from graphprobe.store.dump_records import (
    Data,
    DumpManifest,
    DumpRecord,
    DumpValue,
    OpInfo,
    Place,
    claim_time_folder,
    view_from_buffer,
)
from graphprobe.store.files import folder_below, replace_file
from graphprobe.store.manifest import SAVE_SECONDS, AppendFile, making
from graphprobe.store.schema import json_from_value

QUEUE_BYTES = 128 * 1024 * 1024
QUEUE_OPS = 1024

_OPEN_STATS = 16
"""How many `stats.csv` are kept open; each call of a graph has its own."""

_AT_HAND = {TensorStats}

Stats: TypeAlias = TensorStats | Callable[[], TensorStats] | None


class DumpJob(NamedTuple):
    """One execution on its way to the disk.

    Attributes:
        data, stats: for each tensor of the form, as in `DumpValue`; `data` is empty where none has any.
        size_bytes: what it takes while it waits.
        at_hand: there are statistics of every tensor and no values, so that nothing has to be waited for.
    """

    seq: int
    time_us: int
    form: OpForm
    place: Place
    data: tuple[Data | None, ...]
    stats: tuple[Stats, ...]
    stream_id: int
    size_bytes: int
    at_hand: bool

    @property
    def name(self) -> str:
        return f"{self.form.op.op_name} (op {self.seq})"


class DumpWriter(QueuedWriter[DumpManifest, DumpJob]):
    """Writes the ops of one process. Get one from `create`, hand ops to `submit`, and `close` it.

    Nothing raises after `create`: what could not be written is counted in the manifest's `missing`. With `queue_bytes`
    0 there is no queue, and a killed process loses the op in flight only.
    """

    noun = "op"
    wake_items, wake_bytes = BATCH, 64 * 1024

    def __init__(
        self, folder: Path, manifest: DumpManifest, max_bytes: int | None, *, queue_bytes: int, queue_items: int
    ) -> None:
        self.time_dir = folder
        self._numbers = itertools.count()
        # Re-entrant: a destructor may come back in while this thread holds it.
        self._write_lock = threading.RLock()
        self._index = AppendFile(folder / dump_records.INDEX)
        self._stats: dict[str, AppendFile] = {}
        self._folders: dict[Place, str] = {}
        self._last: tuple[Place, tuple[AppendFile, bytes]] | None = None
        self._columns = columns_of(manifest.statistics)
        super().__init__(folder, manifest, max_bytes, queue_bytes=queue_bytes, queue_items=queue_items)

    @classmethod
    def create(
        cls, dump_path: Path, *, manifest: DumpManifest, max_bytes: int | None = None, queue_bytes: int = QUEUE_BYTES
    ) -> DumpWriter:
        """Start a dump in a new time folder below `dump_path`, which must exist.

        Args:
            dump_path: the tree of the rank that `manifest` names is made in it.
            manifest: made by `DumpManifest.of`; `statistics` says which columns of `stats.csv` to fill, all of
                them when it is empty.
            max_bytes: bounds everything in the time folder; None is no bound. Once it is reached, dumping ends.
            queue_bytes: values that wait to be written; 0 writes each op before `submit` returns.

        Raises:
            UsageError: an argument is wrong, or the folder cannot be made; nothing of it is left behind.
        """
        check_bounds(0, max_bytes=max_bytes, queue_bytes=queue_bytes)
        manifest = msgspec.convert(msgspec.to_builtins(manifest), DumpManifest)
        manifest.statistics = manifest.statistics or list(STATISTICS)
        manifest.queue_bytes, manifest.queue_ops = queue_bytes, QUEUE_OPS
        with making("dump", dump_path, hint="dump_path must be a folder that exists and can be written to") as made:
            started = datetime.fromtimestamp(manifest.started_ns // 10**9)
            world_size, rank = manifest.world_size, manifest.rank
            made.append(claim_time_folder(dump_path, world_size=world_size, rank=rank, started=started))
            return cls(made[0], manifest, max_bytes, queue_bytes=queue_bytes, queue_items=QUEUE_OPS)

    def submit(
        self,
        op: OpInfo,
        place: Place,
        values: Sequence[DumpValue],
        *,
        scalars: Sequence[WrittenSlot] = (),
        notes: Sequence[str] = (),
        stream_id: int = 0,
        time_ns: int | None = None,
    ) -> int | None:
        """`submit_form` for an op that runs once: `values` are what it read and wrote, `scalars` are no tensors."""
        try:
            tensors = [WrittenSlot(value.name, value.side, value.meta) for value in values]
            form = OpForm(op, [*tensors, *scalars], notes)
            data = tuple(value.data for value in values)
            stats = tuple(value.stats for value in values)
        except Exception as error:
            self.missing(f"{type(error).__name__}: {error}", name=str(getattr(op, "op_name", op)))
            return None
        data = data if any(one is not None for one in data) else ()
        return self.submit_form(form, place, data=data, stats=stats, stream_id=stream_id, time_ns=time_ns)

    def submit_form(
        self,
        form: OpForm,
        place: Place,
        *,
        data: tuple[Data | None, ...] = (),
        stats: tuple[Stats, ...] = (),
        stream_id: int = 0,
        time_ns: int | None = None,
    ) -> int | None:
        """Hand in one execution of an op; of one that runs again and again one form, and one place a call, each time.

        Args:
            form, place: what ran, and which folder it belongs to.
            data, stats: for each tensor of the form, as in `DumpValue`; empty where none has any.
            stream_id: of the device.
            time_ns: wall clock of the execution; now, if not given.

        Returns:
            The number of the execution, or None when it will not be written, and why is then counted.
        """
        try:
            if (self.closed or not self._queue_bytes) and self.silent:
                return None
            if self.stopped is not None:
                self.missing(self.stopped, name=form.op.op_name)
                return None
            time_us = (time.time_ns() if time_ns is None else time_ns) // 1000
            stats = stats or (None,) * len(form.tensors)
            size_bytes = form.queued_bytes(data) if data else form.size_bytes
            at_hand = not data and {*map(type, stats)} == _AT_HAND
            seq = next(self._numbers)
            job = DumpJob(seq, time_us, form, place, data, stats, stream_id, size_bytes, at_hand)
            if self._queue_bytes:
                return seq if self.hand_in(job) else None
            with self._write_lock:
                written = self._own.ops
                self._write_items([job])
                return seq if self._own.ops > written else None
        except Exception as error:
            self.missing(f"{type(error).__name__}: {error}", name=form.op.op_name)
            return None

    def drain(self) -> None:
        """Write statistics that wait, on this thread, which is cheaper than to have the writing thread in between.

        Only those before anything that has to be waited for. An interrupt reaches the program, and what it costs is
        counted.
        """
        if not self._items or self.silent or not self._writing.acquire(blocking=False):
            return
        jobs: list[DumpJob] = []
        written = self._own.ops
        try:
            self._drainer = threading.get_ident()
            self._is_full()
            while self._items and self._items[0].at_hand:
                jobs.append(self._items.popleft())
            self._write_items(jobs)
        except BaseException as error:
            for job in jobs[self._own.ops - written :]:
                self.count(f"{type(error).__name__} while it was written", job.name)
            if not isinstance(error, Exception):
                raise
        finally:
            self._dealt_with(jobs)
            if self._drainer == threading.get_ident():
                self._give_up_writing()

    def hand_in(self, item: DumpJob) -> bool:
        """As ever; values are written at once: of a program that dies, the last ones tell most."""
        taken = super().hand_in(item)
        if taken and not item.at_hand and not self._wake.is_set():
            self._wake.set()
        return taken

    def _relieve(self, item: DumpJob) -> None:
        if item.at_hand:
            self.drain()
        if self._items:
            super()._relieve(item)

    def _write_items(self, items: list[DumpJob]) -> None:
        """Put jobs on disk in their order; rows and lines of those that follow each other go out together."""
        together: list[tuple[DumpJob, bytes, bytes]] = []
        for job in items:
            if together and together[0][0].place is not job.place:
                self._append_all(together)
            if job.at_hand and self.stopped is None and self._retry_at is None:
                with contextlib.suppress(Exception):  # `_write` meets it again, and counts it
                    together.append((job, *self._encode(job)))
                    continue
            self._append_all(together)
            try:
                self._write(job)
            except KeyboardInterrupt:  # on the thread of the program
                raise
            except BaseException as error:
                self.count(f"{type(error).__name__}: {error}", job.name)
        self._append_all(together)

    def _close_files(self) -> None:
        for file in (self._index, *self._stats.values()):
            file.close()

    def _encode(self, job: DumpJob) -> tuple[bytes, bytes]:
        """The line and the rows of a job whose statistics are at hand."""
        target = self._target(job.place)[1]
        stats: Any = job.stats
        return job.form.encode(job.seq, job.time_us, job.stream_id, target, stats, self._columns)

    def _target(self, place: Place) -> tuple[AppendFile, bytes]:
        """Where the statistics of a place go: the file, and what the index says of the two."""
        if self._last is None or self._last[0] is not place:
            folder = self._folder(place)
            target = self._stats_file(folder), encode_place(place, f"{folder}/{dump_records.STATS}")
            self._last = (place, target)
        return self._last[1]

    def _append_all(self, together: list[tuple[DumpJob, bytes, bytes]]) -> None:
        """Append rows and lines of jobs of one place, all or none; if that fails, one job after the other."""
        jobs = [job for job, _, _ in together]
        line, rows = b"".join([line for _, line, _ in together]), b"".join([rows for _, _, rows in together])
        together.clear()
        if not jobs:
            return
        try:
            self._put(jobs[0].place, line, rows, jobs=len(jobs))
        except Exception:
            for job in jobs:  # some may still be possible, and each that is not is counted
                self._write(job)

    def _write(self, job: DumpJob) -> None:
        """Put one job on disk; what could not be written is counted."""
        if self.refuses(job.name):
            return
        try:
            record, text, rows, content = self._encoded(job)
            self._put(job.place, text + b"\n", rows, content, record.file)
        except Exception as error:
            self._count_error(error, job.name)

    def _put(
        self, place: Place, line: bytes, rows: bytes, content: Sequence[memoryview] = (), file: str = "", jobs: int = 1
    ) -> None:
        """The file, then the rows, then the line: what the index names is there. An error takes the others back."""
        stats = self._target(place)[0] if rows else None
        rows_bytes = stats.growth_bytes(rows) if stats is not None else 0
        grown_bytes = sum([piece.nbytes for piece in content]) + self._index.growth_bytes(line) + rows_bytes
        self._take(grown_bytes, ends=jobs == 1)
        path = f"{self.time_dir}/{file}"
        with self._paid(grown_bytes):
            try:
                if content:
                    replace_file(path, *content)
                if stats is not None:
                    stats.append(rows)
                try:
                    self._index.append(line)
                except BaseException:
                    if stats is not None:
                        stats.take_back(rows_bytes)
                    raise
            except BaseException:
                if content:
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                raise
        with self.lock:
            self._own.collected_files += bool(content)
            self._own.collected_bytes += grown_bytes
            self._own.ops += jobs
            self.save(unless_newer_than_s=SAVE_SECONDS)

    def _encoded(self, job: DumpJob) -> tuple[DumpRecord, bytes, bytes, list[memoryview]]:
        """The record, also as JSON, its rows, and its file, if any; a value that fails is a gap in its slot."""
        form, folder = job.form, self._folder(job.place)
        slots, buffers, rows_of = [], [], []
        for slot, data, known in zip(form.tensors, job.data or (None,) * len(form.tensors), job.stats, strict=True):
            slot, buffer = _stored(slot, data)
            try:
                stats = known() if callable(known) else known
            except Exception as error:
                stats, why = None, f"statistics: {type(error).__name__}: {error}"
                slot = msgspec.structs.replace(slot, missing=why)
            slots.append(slot)
            buffers.append(buffer)
            if stats is not None:
                rows_of.append((slot, stats))
            if slot.missing:
                self.count(slot.missing, f"{slot.name} of {job.name}", noun="value")
        only_stats = bool(rows_of) and all(data is None for data in job.data)
        name = dump_records.op_file(form.op.op_type, form.op.op_name, job.seq, job.time_us)
        record = DumpRecord(
            seq=job.seq,
            time_us=job.time_us,
            op=form.op,
            place=job.place,
            file=f"{folder}/{dump_records.STATS if only_stats else name}",
            stream_id=job.stream_id,
            slots=(*slots, *form.slots[len(slots) :]),
            notes=form.notes,
        )
        rows = b""
        if rows_of:
            stated = OpForm(form.op, [slot for slot, _ in rows_of])
            found = tuple(found for _, found in rows_of)
            rows = stated.encode(job.seq, job.time_us, job.stream_id, b"", found, self._columns)[1]
        text = json_from_value(record)
        return record, text, rows, [] if only_stats else encode_op(record, text, buffers)

    def _folder(self, place: Place) -> str:
        """The folder of `place`, relative to the time folder, made if need be; the time folder itself never is."""
        known = self._folders.get(place)
        if known is not None:
            return known
        relative = dump_records.data_folder(place)
        folder_below(self.folder, relative)
        self._folders[place] = relative
        return relative

    def _stats_file(self, folder: str) -> AppendFile:
        file = self._stats.pop(folder, None)
        if file is None:
            if len(self._stats) >= _OPEN_STATS:
                self._last = None
                self._stats.pop(next(iter(self._stats))).close()
            file = AppendFile(self.time_dir / folder / dump_records.STATS, header=HEADER)
        self._stats[folder] = file
        return file

    def _count_error(self, error: Exception, name: str, **counted: Any) -> None:
        with self.lock:
            self._folders.clear()
            self._last = None
            super()._count_error(error, name, **counted)


def _stored(slot: WrittenSlot, data: Data | None) -> tuple[WrittenSlot, memoryview | None]:
    """The slot with what is stored of it, and the bytes; why there are none, if they cannot be had, stands in it."""
    if data is None or slot.meta is None:
        return slot, None
    try:
        buffer = view_from_buffer(data() if callable(data) else data)
        stored_from_meta(slot.meta.dtype, slot.meta.shape, buffer.nbytes)
    except Exception as error:
        return msgspec.structs.replace(slot, missing=f"{type(error).__name__}: {error}"), None
    return msgspec.structs.replace(slot, value=slot.name), buffer
