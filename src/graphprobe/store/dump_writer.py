"""Dump the ops of a running program: files are written beside it, and nothing that fails is raised into it."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from graphprobe.errors import UsageError
from graphprobe.store.dump_dtypes import size_from_meta
from graphprobe.store.dump_layout import claim_time_folder
from graphprobe.store.dump_pool import Array, CopyPool
from graphprobe.store.dump_queue import ByteQueue
from graphprobe.store.dump_records import (
    STAT_FIELDS,
    Argument,
    DumpManifest,
    DumpValue,
    OpInfo,
    Place,
    WhenFull,
    view_from_buffer,
)
from graphprobe.store.dump_sink import DumpSink, Job
from graphprobe.store.manifest import RESERVE_BYTES, ManifestFile

QUEUE_BYTES = 128 * 1024 * 1024
QUEUE_OPS = 1024

_VALUE_OVERHEAD_BYTES = 512
"""What a value without data, or one of unknown size, is taken for in the queue."""


class DumpWriter:
    """Writes the dump of one process. Get one from `create`, hand ops to `submit`, and `close` it.

    Thread-safe. In a forked child it goes silent, and takes no lock. After `create` nothing raises: what could not be
    written is counted in the manifest's `missing`. A killed process loses what is still in the queue; with
    `queue_bytes=0` there is none, and only the op in flight is lost.
    """

    def __init__(self, sink: DumpSink) -> None:
        self._sink = sink
        self._pid = os.getpid()
        self._closed = False
        self._seq = 0
        self._block = sink.manifest.when_full == "block"
        # Re-entrant: a destructor may come back in while this thread holds it.
        self._write_lock = threading.RLock()
        self._pool = CopyPool(sink.manifest.queue_bytes)
        self._queue: ByteQueue[Job] | None = None
        self._thread: threading.Thread | None = None
        if sink.manifest.queue_bytes:
            self._queue = ByteQueue(sink.manifest.queue_bytes, sink.manifest.queue_ops)
            self._thread = threading.Thread(target=self._work, name="graphprobe-dump", daemon=True)
            self._thread.start()

    @classmethod
    def create(
        cls,
        dump_path: Path,
        *,
        manifest: DumpManifest,
        max_bytes: int | None = None,
        queue_bytes: int = QUEUE_BYTES,
        queue_ops: int = QUEUE_OPS,
        when_full: WhenFull = "block",
    ) -> DumpWriter:
        """Start a dump in a new time folder below `dump_path`, which must exist.

        Args:
            dump_path: the tree of the rank that `manifest` names is made in it.
            manifest: from `dump_manifest_from_run`; `statistics` says which columns of `stats.csv` to fill, all of
                them when it is empty.
            max_bytes: bounds everything in the time folder; None is no bound. Once it is reached, dumping ends.
            queue_bytes: values that wait to be written; 0 writes each op before `submit` returns.
            queue_ops: executions that wait to be written.
            when_full: `block` makes the program wait for room, `drop` leaves the op out; both are counted.

        Raises:
            UsageError: an argument is wrong, or the folder cannot be made; nothing of it is left behind.
        """
        checks = {"max_bytes": max_bytes, "queue_bytes": queue_bytes, "queue_ops": queue_ops}
        for name, value in checks.items():
            if value is not None and value < (0 if name == "queue_bytes" else 1):
                raise UsageError(f"{name}={value}: expected a positive number")
        if when_full not in ("block", "drop"):
            raise UsageError(f"when_full={when_full!r}: expected 'block' or 'drop'")
        manifest = msgspec.convert(msgspec.to_builtins(manifest), DumpManifest)
        manifest.statistics = manifest.statistics or list(STAT_FIELDS)
        manifest.queue_bytes, manifest.queue_ops, manifest.when_full = queue_bytes, queue_ops, when_full
        time_dir: Path | None = None
        try:
            started = datetime.fromtimestamp(manifest.started_ns // 10**9)
            world_size, rank = manifest.world_size, manifest.rank
            time_dir = claim_time_folder(dump_path, world_size=world_size, rank=rank, started=started)
            reserve_bytes = RESERVE_BYTES if max_bytes is None else min(RESERVE_BYTES, max_bytes // 8)
            file = ManifestFile(time_dir, manifest, reserve_bytes=reserve_bytes)
            file.create()
            return cls(DumpSink(time_dir, file, manifest, max_bytes))
        except OSError as error:
            if time_dir is not None:
                shutil.rmtree(time_dir, ignore_errors=True)
            raise UsageError(
                f"no dump can be written under {dump_path}: {error.strerror} ({error.filename or dump_path})",
                hint="dump_path must be a folder that exists and can be written to",
            ) from error

    @property
    def time_dir(self) -> Path:
        """The folder of this dump."""
        return self._sink.time_dir

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of the process that made the writer."""
        return os.getpid() != self._pid

    @property
    def accepts(self) -> bool:
        """Whether `submit` can still lead to anything: an engine may skip copying values when it cannot."""
        return not self._closed and self._sink.stopped is None and not self.forked

    @property
    def manifest(self) -> DumpManifest:
        """A copy of the manifest as it stands, fresher than the file."""
        if self.forked:
            return msgspec.convert(msgspec.to_builtins(self._sink.manifest), DumpManifest)
        with self._sink.lock:
            self._update_counts()
            return msgspec.convert(msgspec.to_builtins(self._sink.manifest), DumpManifest)

    def submit(
        self,
        op: OpInfo,
        place: Place,
        values: Sequence[DumpValue],
        *,
        arguments: Sequence[Argument] = (),
        notes: Sequence[str] = (),
        stream_id: int = 0,
        copy: bool = False,
        time_ns: int | None = None,
    ) -> int | None:
        """Hand in one execution of an op.

        Args:
            op, place: what ran, and which folder it belongs to.
            values: what it read and wrote, in order.
            arguments: the arguments that are no tensors.
            notes: see `DumpRecord`.
            stream_id: of the device.
            copy: take a copy of each buffer before returning, once there is room for it; for values that the program
                goes on to overwrite. A function in place of a buffer is still called later.
            time_ns: wall clock of the execution; now, if not given.

        Returns:
            The number of the execution, or None when it will not be written, and why is then counted.
        """
        if self._closed or os.getpid() != self._pid:
            return None
        try:
            return self._submit(op, place, tuple(values), tuple(arguments), tuple(notes), stream_id, copy, time_ns)
        except Exception as error:
            self._sink.count(f"{type(error).__name__}: {error}", str(getattr(op, "op_name", op)))
            return None

    def note(self, text: str) -> None:
        """Add a line to the manifest's notes, once."""
        if not self._closed and not self.forked:
            with self._sink.lock:
                if text not in self._sink.manifest.notes:
                    self._sink.manifest.notes.append(text)
                    self._save()

    def missing(self, reason: str, *, name: str = "", noun: str = "op") -> None:
        """Count something that should be in the dump and is not, e.g. an op that an engine had to skip."""
        if not self._closed and not self.forked:
            self._sink.count(reason, name, noun=noun)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was handed in is dealt with, and save the manifest; False when it took longer."""
        if self._closed or self.forked:
            return True
        if threading.current_thread() is self._thread:
            return False
        done = self._queue is None or self._queue.wait_until_empty(timeout_s)
        self._save()
        return done

    def close(
        self,
        state: Literal["finished", "failed"] = "finished",
        exception: str | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """End the dump once all that was handed in is written. Only the first call counts.

        After `timeout_s` the rest is dropped and counted; None waits for as long as it takes.
        """
        if self._closed or self.forked:
            return
        self._closed = True
        busy = False
        if self._queue is not None and self._thread is not None:
            self._queue.close()
            if self._thread is not threading.current_thread():
                self._thread.join(timeout_s)
            busy = self._thread.is_alive()
            for _ in range(self._queue.abandon()):
                self._sink.count("the dump was closed before it was written", "")
        with self._sink.lock:
            manifest = self._sink.manifest
            manifest.state, manifest.exception, manifest.ended_ns = state, exception, time.time_ns()
            self._update_counts()
            if not manifest.ops and not manifest.missing:
                manifest.notes.append("nothing was dumped: no op was handed in")
            self._sink.close(busy=busy)
        self._pool.clear()

    def _submit(
        self,
        op: OpInfo,
        place: Place,
        values: tuple[DumpValue, ...],
        arguments: tuple[Argument, ...],
        notes: tuple[str, ...],
        stream_id: int,
        copy: bool,
        time_ns: int | None,
    ) -> int | None:
        time_us = (time.time_ns() if time_ns is None else time_ns) // 1000
        if self._sink.stopped is not None:
            self._sink.refuses(op.op_name)
            return None

        def make(held: tuple[DumpValue, ...] = values, copies: tuple[Array, ...] = ()) -> Job:
            seq, self._seq = self._seq, self._seq + 1
            return Job(seq, time_us, op, place, held, arguments, notes, stream_id, copies)

        if self._queue is None:
            with self._write_lock:
                job = make()
                return job.seq if self._sink.write(job) else None
        return self._enqueue(self._queue, make, values, op, copy)

    def _enqueue(
        self,
        queue: ByteQueue[Job],
        make: Callable[[tuple[DumpValue, ...], tuple[Array, ...]], Job],
        values: tuple[DumpValue, ...],
        op: OpInfo,
        copy: bool,
    ) -> int | None:
        size_bytes = sum(map(_size, values))
        # The writing thread would wait for itself; it comes here when the function for a value runs a dumped op.
        own = threading.current_thread() is self._thread
        if not queue.reserve(size_bytes, wait=self._block and not own):
            self._sink.count("the queue had no room" if not self._closed else "the dump was closed", op.op_name)
            return None
        copies: list[Array] = []
        try:
            held = tuple(self._copied(value, copies) for value in values) if copy else values
        except BaseException:
            queue.give_back(size_bytes)
            raise
        job = queue.put(lambda: make(held, tuple(copies)), size_bytes)
        return None if job is None else job.seq

    def _copied(self, value: DumpValue, copies: list[Array]) -> DumpValue:
        if value.data is None or callable(value.data):
            return value
        view = view_from_buffer(value.data)
        if not view.nbytes:
            return value
        copies.append(self._pool.copy(view))
        return value._replace(data=copies[-1])

    def _work(self) -> None:
        """The writing thread. Keeps no job alive while it waits for the next."""
        queue = self._queue
        while queue is not None and (item := queue.get()) is not None:
            job, size_bytes = item
            try:
                self._sink.write(job)
                self._pool.give_back(job.copies)
            except BaseException as error:  # MemoryError and its like: the thread must live on
                self._sink.count(f"{type(error).__name__}: {error}", job.op.op_name)
            finally:
                del item, job
                queue.give_back(size_bytes)

    def _save(self) -> None:
        with self._sink.lock:
            self._update_counts()
            self._sink.save()

    def _update_counts(self) -> None:
        if self._queue is not None:
            self._sink.manifest.blocked_ns = self._queue.blocked_ns
            self._sink.manifest.queue_peak_bytes = self._queue.peak_bytes


def _size(value: DumpValue) -> int:
    """What a value takes in the queue."""
    if value.data is None:
        return _VALUE_OVERHEAD_BYTES
    if not callable(value.data):
        return value.data.nbytes if isinstance(value.data, np.ndarray | memoryview) else len(value.data)
    return size_from_meta(value.meta.dtype, value.meta.shape) or _VALUE_OVERHEAD_BYTES
