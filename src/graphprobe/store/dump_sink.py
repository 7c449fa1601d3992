"""Where the ops of a dump end up: files, index, statistics and manifest, with every failure counted, none raised."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import msgspec

from graphprobe.settings import text_from_size
from graphprobe.store import dump_layout, layout
from graphprobe.store.dump_append import AppendFile
from graphprobe.store.dump_dtypes import stored_from_meta
from graphprobe.store.dump_format import encode_op, write_pieces
from graphprobe.store.dump_pool import Array
from graphprobe.store.dump_records import (
    Argument,
    DumpManifest,
    DumpRecord,
    DumpValue,
    OpInfo,
    Place,
    Slot,
    StatName,
    view_from_buffer,
)
from graphprobe.store.dump_stats import HEADER, encode_row
from graphprobe.store.files import Budget, is_no_space
from graphprobe.store.manifest import ManifestFile
from graphprobe.store.schema import _json_from_value as json_from_value
from graphprobe.store.writer import RETRY_SECONDS, SAVE_SECONDS

_OPEN_STATS = 16
"""How many `stats.csv` are kept open; each call of a graph has its own."""


class Job(NamedTuple):
    """One execution on its way to the disk."""

    seq: int
    time_us: int
    op: OpInfo
    place: Place
    values: tuple[DumpValue, ...]
    arguments: tuple[Argument, ...]
    notes: tuple[str, ...]
    stream_id: int
    copies: tuple[Array, ...] = ()


class Pieces(NamedTuple):
    """What one job comes to: its record, the content of its file if it has one, its index line, and its rows."""

    record: DumpRecord
    content: list[memoryview]
    line: bytes
    rows: bytes


class DumpSink:
    """Writes jobs into a time folder. `write` is for one thread at a time; the rest may be called from any.

    `stopped` is set once nothing more will be written, e.g. because the budget was reached.
    """

    def __init__(
        self, time_dir: Path, manifest_file: ManifestFile, manifest: DumpManifest, max_bytes: int | None
    ) -> None:
        self.time_dir = time_dir
        self.manifest = manifest
        self.lock = threading.RLock()
        self.stopped: str | None = None
        self._file = manifest_file
        self._budget = Budget(max_bytes, overhead_bytes=manifest_file.overhead_bytes)
        self._index = AppendFile(time_dir / dump_layout.INDEX)
        self._stats: dict[str, AppendFile] = {}
        self._folders: dict[Place, str] = {}
        self._retry_at: float | None = None
        self._full_reason = ""
        self._temporary = (f"{layout.TEMPORARY_PREFIX}{os.getpid()}-{number}" for number in itertools.count())
        self._wanted: Collection[StatName] = frozenset(manifest.statistics)  # type: ignore[arg-type]

    def write(self, job: Job) -> bool:
        """Put one job on disk; False when it was not, and why is then counted."""
        name = f"{job.op.op_name} (op {job.seq})"
        if self.refuses(name):
            return False
        try:
            return self._write(job, name)
        except Exception as error:
            self._count_error(error, name)
            return False

    def refuses(self, name: str) -> bool:
        """Whether nothing can be written now, which is then counted for the op `name`."""
        if self.stopped is not None:
            self.count(self.stopped, name)
            return True
        with self.lock:
            if self._retry_at is None:
                return False
            if time.monotonic() >= self._retry_at:
                if self._file.restore_reserve():
                    self._retry_at = None
                    return False
                self._retry_at = time.monotonic() + RETRY_SECONDS
            self.count(self._full_reason, name)
            return True

    def count(self, reason: str, name: str, *, noun: str = "op") -> None:
        """Count one more thing that is missing; see `ManifestFile.count_missing`."""
        with self.lock:
            new = self._file.count_missing(reason, noun=noun, first=name)
            self.save(unless_newer_than_s=0.0 if new else SAVE_SECONDS)

    def save(self, *, unless_newer_than_s: float = 0.0) -> None:
        """Rewrite the manifest, if that was not done lately."""
        with self.lock:
            if self._file.save(unless_newer_than_s=unless_newer_than_s):
                self._budget.overhead_bytes = self._file.overhead_bytes
            if self._file.full_reason is not None:
                self._full_reason, self._file.full_reason = self._file.full_reason, None
                self._retry_at = time.monotonic() + RETRY_SECONDS

    def close(self, *, busy: bool = False) -> None:
        """Write the manifest for the last time and close every file, but if another thread is `busy` writing them."""
        with self.lock:
            self._file.drop_reserve()
            self.save()
            self.stopped = self.stopped or "the dump was closed"
            if busy:
                return
            for file in (self._index, *self._stats.values()):
                file.close()

    def _write(self, job: Job, name: str) -> bool:
        folder = self._folder(job.place)
        pieces = self._pieces(job, folder)
        stats = self._stats_file(folder) if pieces.rows else None
        size_bytes = sum(piece.nbytes for piece in pieces.content)
        grown_bytes = size_bytes + self._index.growth_bytes(pieces.line)
        rows_bytes = stats.growth_bytes(pieces.rows) if stats is not None else 0
        with self.lock:
            if not self._budget.take(grown_bytes + rows_bytes):
                reason = f"max_bytes ({text_from_size(self._budget.max_bytes or 0)}) was reached"
                self.stopped = self.manifest.stopped = reason
                self.count(reason, name)
                return False
        try:
            self._put(pieces, stats, rows_bytes)
        except BaseException:
            with self.lock:
                self._budget.give_back(grown_bytes + rows_bytes)
            raise
        with self.lock:
            self.manifest.collected_files += bool(pieces.content)
            self.manifest.collected_bytes += grown_bytes + rows_bytes
            self.manifest.ops += 1
            self.save(unless_newer_than_s=SAVE_SECONDS)
        return True

    def _put(self, pieces: Pieces, stats: AppendFile | None, rows_bytes: int) -> None:
        """The file, then its rows, then its line: what the index names is there. An error takes the others back."""
        path = f"{self.time_dir}/{pieces.record.file}"
        try:
            if pieces.content:
                temporary = f"{path.rpartition('/')[0]}/{next(self._temporary)}"
                try:
                    write_pieces(temporary, pieces.content)
                    os.rename(temporary, path)
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.unlink(temporary)
                    raise
            if stats is not None:
                stats.append(pieces.rows)
                try:
                    self._index.append(pieces.line)
                except BaseException:
                    stats.take_back(rows_bytes)
                    raise
            else:
                self._index.append(pieces.line)
        except BaseException:
            if pieces.content:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            raise

    def _pieces(self, job: Job, folder: str) -> Pieces:
        """Get hold of every value and every statistic, and encode them; a value that fails is a gap in its slot."""
        slots, buffers, rows_of = [], [], []
        for value in job.values:
            slot, buffer = _slot(value)
            stats = None
            try:
                stats = value.stats() if callable(value.stats) else value.stats
            except Exception as error:
                slot = msgspec.structs.replace(slot, missing=f"statistics: {type(error).__name__}: {error}")
            slots.append(slot)
            buffers.append(buffer)
            if stats is not None:
                rows_of.append((slot, stats))
            if slot.missing:
                self.count(slot.missing, f"{slot.name} of {job.op.op_name} (op {job.seq})", noun="value")
        only_stats = bool(rows_of) and all(value.data is None for value in job.values)
        name = dump_layout.STATS
        if not only_stats:
            name = dump_layout.op_file(job.op.op_type, job.op.op_name, job.seq, job.time_us)
        record = DumpRecord(
            seq=job.seq,
            time_us=job.time_us,
            op=job.op,
            place=job.place,
            file=f"{folder}/{name}",
            stream_id=job.stream_id,
            slots=tuple(slots),
            arguments=job.arguments,
            notes=job.notes,
        )
        rows = b"".join(encode_row(record, slot, stats, self._wanted) for slot, stats in rows_of)
        text = json_from_value(record)
        content = [] if only_stats else encode_op(record, text, buffers)
        return Pieces(record, content, text + b"\n", rows)

    def _folder(self, place: Place) -> str:
        """The folder of `place`, relative to the time folder, made if need be; the time folder itself never is."""
        known = self._folders.get(place)
        if known is not None:
            return known
        relative = dump_layout.data_folder(place)
        folder = self.time_dir
        for part in relative.split("/"):
            folder = folder / part
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
        self._folders[place] = relative
        return relative

    def _stats_file(self, folder: str) -> AppendFile:
        file = self._stats.pop(folder, None)
        if file is None:
            if len(self._stats) >= _OPEN_STATS:
                self._stats.pop(next(iter(self._stats))).close()
            file = AppendFile(self.time_dir / folder / dump_layout.STATS, header=HEADER)
        self._stats[folder] = file
        return file

    def _count_error(self, error: Exception, name: str) -> None:
        reason = (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"
        with self.lock:
            self._folders.clear()
            if is_no_space(error):
                self._retry_at = time.monotonic() + RETRY_SECONDS
                self._full_reason = reason
                self._file.drop_reserve()
            self.count(reason, name)


def _slot(value: DumpValue) -> tuple[Slot, memoryview | None]:
    """The slot of a value and its bytes; why there are none, if they cannot be had, stands in the slot."""
    slot = Slot(value.name, value.side, value.meta)
    if value.data is None:
        return slot, None
    try:
        buffer = view_from_buffer(value.data() if callable(value.data) else value.data)
        stored, _, _ = stored_from_meta(value.meta.dtype, value.meta.shape, buffer.nbytes)
    except Exception as error:
        return msgspec.structs.replace(slot, missing=f"{type(error).__name__}: {error}"), None
    return msgspec.structs.replace(slot, stored=stored, size_bytes=buffer.nbytes), buffer
