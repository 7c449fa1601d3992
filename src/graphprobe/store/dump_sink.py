"""Where the ops of a dump end up: files, index, statistics and manifest, with every failure counted, none raised."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from graphprobe.records import TensorStats
from graphprobe.settings import text_from_size
from graphprobe.store import dump_records, layout
from graphprobe.store.dump_dtypes import stored_from_meta
from graphprobe.store.dump_format import OpForm, encode_op, encode_place, write_pieces
from graphprobe.store.dump_queue import Array
from graphprobe.store.dump_records import Data, DumpManifest, DumpRecord, Place, Slot, view_from_buffer
from graphprobe.store.dump_stats import HEADER, columns_of
from graphprobe.store.manifest import SAVE_SECONDS, AppendFile, CountsShortage, ManifestFile
from graphprobe.store.schema import json_from_value

_OPEN_STATS = 16
"""How many `stats.csv` are kept open; each call of a graph has its own."""


_JOBS_AT_A_STRETCH = 8
"""Jobs that are encoded before the program gets a chance to run on: a tenth of a millisecond or so."""


_AT_HAND = {TensorStats}


def _no_pause() -> None:
    pass


Stats: TypeAlias = TensorStats | Callable[[], TensorStats] | None


class DumpJob(NamedTuple):
    """One execution on its way to the disk.

    Attributes:
        data, stats: for each slot of the form, as in `DumpValue`; `data` is empty where no slot has any.
        copies: arrays that go back to the pool of the writer afterwards.
    """

    seq: int
    time_us: int
    form: OpForm
    place: Place
    data: tuple[Data | None, ...]
    stats: tuple[Stats, ...]
    stream_id: int
    copies: tuple[Array, ...] = ()

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.form.op.op_name} (op {self.seq})"


class Pieces(NamedTuple):
    """What one job comes to: its file with its content, if it has one, its index line, and its rows."""

    file: str
    content: list[memoryview]
    line: bytes
    rows: bytes


class _Together:
    """Jobs with statistics only, encoded and not yet on disk."""

    def __init__(self) -> None:
        self.jobs: list[DumpJob] = []
        self.lines: list[bytes] = []
        self.rows: list[bytes] = []

    def add(self, job: DumpJob, line: bytes, rows: bytes) -> None:
        self.jobs.append(job)
        self.lines.append(line)
        self.rows.append(rows)


class DumpSink(CountsShortage):
    """Writes jobs into a time folder. `write` is for one thread at a time; the rest may be called from any.

    `stopped` is set once nothing more will be written, e.g. because the budget was reached.
    """

    noun = "op"

    def __init__(
        self, time_dir: Path, manifest_file: ManifestFile, manifest: DumpManifest, max_bytes: int | None
    ) -> None:
        super().__init__(manifest_file, max_bytes)
        self.time_dir = time_dir
        self.manifest = manifest
        self._index = AppendFile(time_dir / dump_records.INDEX)
        self._stats: dict[str, AppendFile] = {}
        self._folders: dict[Place, str] = {}
        self._last: tuple[Place, tuple[AppendFile, bytes]] | None = None
        self._temporary = (f"{layout.TEMPORARY_PREFIX}{os.getpid()}-{number}" for number in itertools.count())
        self._columns = columns_of(frozenset(manifest.statistics))  # type: ignore[arg-type]

    def write(self, job: DumpJob) -> bool:
        """Put one job on disk; False when it was not, and why is then counted."""
        name = job.name
        if self.refuses(name):
            return False
        try:
            return self._write(job, name)
        except Exception as error:
            self._count_error(error, name)
            return False

    def write_stats(self, job: DumpJob) -> bool:
        """`write` of a job with statistics only; False if it is none, or `write` is to try, and count."""
        if not only_stats(job.data, job.stats) or self.stopped is not None or self._retry_at is not None:
            return False
        try:
            return self._append(*self._encode(job), job.place, 1)
        except Exception:
            return False

    def write_all(self, jobs: Sequence[DumpJob], *, pause: Callable[[], None] = _no_pause) -> None:
        """Put jobs on disk in their order; rows and lines of those that follow each other go out together.

        A job costs itself at most, whatever it raises. `pause` is called after every few jobs.
        """
        together = _Together()
        for number, job in enumerate(jobs, start=1):
            if number % _JOBS_AT_A_STRETCH == 0:
                pause()
            if together.jobs and together.jobs[0].place is not job.place:
                self._append_all(together)
                together = _Together()
            if only_stats(job.data, job.stats) and self.stopped is None and self._retry_at is None:
                with contextlib.suppress(Exception):  # `write` meets it again, and counts it
                    together.add(job, *self._encode(job))
                    continue
            self._append_all(together)
            together = _Together()
            try:
                self.write(job)
            except KeyboardInterrupt:  # on the thread of the program
                raise
            except BaseException as error:
                self.count(f"{type(error).__name__}: {error}", job.name)
        self._append_all(together)

    def write_here(self, jobs: Sequence[DumpJob]) -> None:
        """`write_all` on the thread of the program: an interrupt reaches the program, and lost ops are counted."""
        before = self.manifest.ops
        try:
            self.write_all(jobs)
        except BaseException as error:
            for job in jobs[self.manifest.ops - before :]:
                self.count(f"{type(error).__name__} while it was written", job.name)
            if not isinstance(error, Exception):
                raise

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

    def _encode(self, job: DumpJob) -> tuple[bytes, bytes]:
        """The line and the rows of a job with statistics only."""
        seq, time_us, form, place, _, stats, stream_id, _ = job
        target = self._target(place)[1]
        return form.encode(seq, time_us, stream_id, target, stats, self._columns)  # type: ignore[arg-type]

    def _target(self, place: Place) -> tuple[AppendFile, bytes]:
        """Where the statistics of a place go: the file, and what the index says of the two."""
        if self._last is None or self._last[0] is not place:
            folder = self._folder(place)
            target = self._stats_file(folder), encode_place(place, f"{folder}/{dump_records.STATS}")
            self._last = (place, target)
        return self._last[1]

    def _append_all(self, together: _Together) -> None:
        """Append rows and lines of jobs of one place, all or none; if that fails, one job after the other."""
        jobs = together.jobs
        if jobs and not self._append(b"".join(together.lines), b"".join(together.rows), jobs[0].place, len(jobs)):
            for job in jobs:  # some may still be possible, and each that is not is counted
                self.write(job)

    def _append(self, line: bytes, rows: bytes, place: Place, jobs: int) -> bool:
        """Append lines and rows of so many jobs of a place, all or none; False if that failed."""
        try:
            stats = self._target(place)[0]
        except Exception:
            return False
        rows_bytes = stats.growth_bytes(rows)
        grown_bytes = self._index.growth_bytes(line) + rows_bytes
        with self.lock:
            if not self._budget.take(grown_bytes):
                return False
            try:
                self._put_rows(line, rows, stats, rows_bytes)
            except BaseException as error:
                self._budget.give_back(grown_bytes)
                if isinstance(error, Exception):
                    return False
                raise
            self.manifest.collected_bytes += grown_bytes
            self.manifest.ops += jobs
            self.save(unless_newer_than_s=SAVE_SECONDS)
        return True

    def _write(self, job: DumpJob, name: str) -> bool:
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
        path = f"{self.time_dir}/{pieces.file}"
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
                self._put_rows(pieces.line, pieces.rows, stats, rows_bytes)
            else:
                self._index.append(pieces.line)
        except BaseException:
            if pieces.content:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            raise

    def _put_rows(self, line: bytes, rows: bytes, stats: AppendFile, rows_bytes: int) -> None:
        """The rows, then their line. An error takes the rows back."""
        stats.append(rows)
        try:
            self._index.append(line)
        except BaseException:
            stats.take_back(rows_bytes)
            raise

    def _pieces(self, job: DumpJob, folder: str) -> Pieces:
        """Get hold of every value and every statistic, and encode them; a value that fails is a gap in its slot."""
        form = job.form
        slots, buffers, rows_of = [], [], []
        for slot, data, known in zip(form.slots, job.data or (None,) * len(form.slots), job.stats, strict=True):
            slot, buffer = _stored(slot, data)
            stats = None
            try:
                stats = known() if callable(known) else known
            except Exception as error:
                slot = msgspec.structs.replace(slot, missing=f"statistics: {type(error).__name__}: {error}")
            slots.append(slot)
            buffers.append(buffer)
            if stats is not None:
                rows_of.append((slot, stats))
            if slot.missing:
                self.count(slot.missing, f"{slot.name} of {job.name}", noun="value")
        only_stats = bool(rows_of) and all(data is None for data in job.data)
        name = dump_records.STATS
        if not only_stats:
            name = dump_records.op_file(form.op.op_type, form.op.op_name, job.seq, job.time_us)
        record = DumpRecord(
            seq=job.seq,
            time_us=job.time_us,
            op=form.op,
            place=job.place,
            file=f"{folder}/{name}",
            stream_id=job.stream_id,
            slots=tuple(slots),
            arguments=form.arguments,
            notes=form.notes,
        )
        rows = b""
        if rows_of:
            stated = OpForm(form.op, [slot for slot, _ in rows_of])
            found = tuple(found for _, found in rows_of)
            rows = stated.rows(job.seq, job.time_us, job.stream_id, found, self._columns)
        text = json_from_value(record)
        content = [] if only_stats else encode_op(record, text, buffers)
        return Pieces(record.file, content, text + b"\n", rows)

    def _folder(self, place: Place) -> str:
        """The folder of `place`, relative to the time folder, made if need be; the time folder itself never is."""
        known = self._folders.get(place)
        if known is not None:
            return known
        relative = dump_records.data_folder(place)
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
                self._last = None
                self._stats.pop(next(iter(self._stats))).close()
            file = AppendFile(self.time_dir / folder / dump_records.STATS, header=HEADER)
        self._stats[folder] = file
        return file

    def _count_error(self, error: Exception, name: str, *, times: int = 1, noun: str | None = None) -> None:
        with self.lock:
            self._folders.clear()
            self._last = None
            super()._count_error(error, name, times=times, noun=noun)


def only_stats(data: Sequence[Data | None], stats: Sequence[Stats]) -> bool:
    """Whether there are statistics of every slot, at hand, and no values."""
    return not data and {*map(type, stats)} == _AT_HAND


def _stored(slot: Slot, data: Data | None) -> tuple[Slot, memoryview | None]:
    """The slot with what is stored of it, and the bytes; why there are none, if they cannot be had, stands in it."""
    if data is None:
        return slot, None
    try:
        buffer = view_from_buffer(data() if callable(data) else data)
        stored, _, _ = stored_from_meta(slot.meta.dtype, slot.meta.shape, buffer.nbytes)
    except Exception as error:
        return msgspec.structs.replace(slot, missing=f"{type(error).__name__}: {error}"), None
    return msgspec.structs.replace(slot, stored=stored, size_bytes=buffer.nbytes), buffer
