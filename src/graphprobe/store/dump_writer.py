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

from graphprobe.errors import UsageError
from graphprobe.store.dump_format import OpForm
from graphprobe.store.dump_queue import BATCH, Array, ByteQueue, CopyPool
from graphprobe.store.dump_records import (
    STAT_FIELDS,
    Argument,
    Data,
    DumpManifest,
    DumpValue,
    OpInfo,
    Place,
    Slot,
    WhenFull,
    claim_time_folder,
    view_from_buffer,
)
from graphprobe.store.dump_sink import DumpJob, DumpSink, Stats, only_stats
from graphprobe.store.manifest import RESERVE_BYTES, ManifestFile

QUEUE_BYTES = 128 * 1024 * 1024
QUEUE_OPS = 1024

LINGER_S = 0.002
"""How long the writing thread waits for more small ops with values to write together, in seconds."""

PAUSE_S = 50e-6
"""How long it stands back every few ops while nobody waits for it, in seconds."""


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
        self._queue: ByteQueue[DumpJob] | None = None
        self._thread: threading.Thread | None = None
        self._thread_id: int | None = None
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
            form = OpForm(op, [Slot(value.name, value.side, value.meta) for value in values], arguments, notes)
            data = tuple(value.data for value in values)
            stats = tuple(value.stats for value in values)
            return self._submit(form, place, data, stats, stream_id, copy, time_ns)
        except Exception as error:
            self._sink.count(f"{type(error).__name__}: {error}", str(getattr(op, "op_name", op)))
            return None

    def submit_form(
        self,
        form: OpForm,
        place: Place,
        *,
        data: tuple[Data | None, ...] = (),
        stats: tuple[Stats, ...] = (),
        stream_id: int = 0,
    ) -> int | None:
        """`submit` for an op that runs again and again: hand in one form, and one place a call, each time.

        Args:
            form, place: what ran, and which folder it belongs to.
            data, stats: for each slot of the form, as in `DumpValue`; empty where no slot has any.
            stream_id: of the device.

        Returns:
            As `submit`.
        """
        if self._closed or os.getpid() != self._pid:
            return None
        try:
            if self._queue is not None and only_stats(data, stats):
                return self._enqueue_stats(self._queue, form, place, stats, stream_id)
            return self._submit(form, place, data, stats or (None,) * len(form.slots), stream_id, False, None)
        except Exception as error:
            self._sink.count(f"{type(error).__name__}: {error}", form.op.op_name)
            return None

    def drain(self, *, at_least: int = 1) -> None:
        """Write statistics that wait, on this thread, which is cheaper than to have the writing thread in between.

        Only if nothing but statistics waits, `at_least` so many executions; not where the program must not wait
        (`when_full` is `drop`).
        """
        if self._queue is not None and self._block and not self._closed and os.getpid() == self._pid:
            self._queue.drain(self._sink.write_here, at_least=at_least)

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
        form: OpForm,
        place: Place,
        data: tuple[Data | None, ...],
        stats: tuple[Stats, ...],
        stream_id: int,
        copy: bool,
        time_ns: int | None,
    ) -> int | None:
        time_us = (time.time_ns() if time_ns is None else time_ns) // 1000
        if self._sink.stopped is not None:
            self._sink.refuses(form.op.op_name)
            return None
        if data and all(one is None for one in data):
            data = ()

        def make(held: tuple[Data | None, ...] = data, copies: tuple[Array, ...] = ()) -> DumpJob:
            seq, self._seq = self._seq, self._seq + 1
            return DumpJob(seq, time_us, form, place, held, stats, stream_id, copies)

        if self._queue is None:
            with self._write_lock:
                job = make()
                return job.seq if self._sink.write_stats(job) or self._sink.write(job) else None
        return self._enqueue(self._queue, make, form, data, copy)

    def _enqueue_stats(
        self, queue: ByteQueue[DumpJob], form: OpForm, place: Place, stats: tuple[Stats, ...], stream_id: int
    ) -> int | None:
        """Of an execution with statistics only, which are all at hand: nobody is woken for it."""
        if self._sink.stopped is not None:
            self._sink.refuses(form.op.op_name)
            return None
        time_us = time.time_ns() // 1000

        def make() -> DumpJob:
            seq, self._seq = self._seq, self._seq + 1
            return DumpJob(seq, time_us, form, place, (), stats, stream_id)

        wait = self._block and threading.get_ident() != self._thread_id
        job = queue.add(make, form.queued_bytes(), wait=wait, patient=True)
        if job is not None and job.seq % BATCH == 0:
            self.drain(at_least=BATCH)
        return self._number(job, form)

    def _number(self, job: DumpJob | None, form: OpForm) -> int | None:
        """Of what was handed in; None of what was not, which is counted."""
        if job is None:
            self._sink.count("the queue had no room" if not self._closed else "the dump was closed", form.op.op_name)
            return None
        return job.seq

    def _enqueue(
        self,
        queue: ByteQueue[DumpJob],
        make: Callable[..., DumpJob],
        form: OpForm,
        data: tuple[Data | None, ...],
        copy: bool,
    ) -> int | None:
        size_bytes = form.queued_bytes(data)
        # The writing thread would wait for itself; it comes here when the function for a value runs a dumped op.
        wait = self._block and threading.get_ident() != self._thread_id
        copies: list[Array] = []
        job: DumpJob | None
        if not copy or not data:
            job = queue.add(make, size_bytes, wait=wait)
        elif not queue.reserve(size_bytes, wait=wait):
            job = None
        else:
            try:
                held = tuple(self._copied(one, copies) for one in data)
            except BaseException:
                queue.give_back(size_bytes)
                raise
            job = queue.put(lambda: make(held, tuple(copies)), size_bytes)
            if job is None:
                return None
        return self._number(job, form)

    def _copied(self, data: Data | None, copies: list[Array]) -> Data | None:
        if data is None or callable(data):
            return data
        view = view_from_buffer(data)
        if not view.nbytes:
            return data
        copies.append(self._pool.copy(view))
        return copies[-1]

    def _work(self) -> None:
        """The writing thread. Keeps no job alive while it waits for the next."""
        queue = self._queue
        self._thread_id = threading.get_ident()
        while queue is not None and (batch := queue.get_batch(LINGER_S)):
            jobs = [job for job, _ in batch]
            size_bytes = sum(size for _, size in batch)
            try:
                self._sink.write_all(jobs, pause=self._pause)
                for job in jobs:
                    if job.copies:
                        self._pool.give_back(job.copies)
            except BaseException as error:  # MemoryError and its like: the thread must live on
                self._sink.count(f"{type(error).__name__}: {error}", jobs[0].form.op.op_name)
            finally:
                items = len(batch)
                job = None  # type: ignore[assignment]
                del batch, jobs
                queue.give_back(size_bytes, items)

    def _pause(self) -> None:
        """Let the program have the interpreter's lock, of which a thread that asks gets hold after 5 ms only."""
        if self._queue is not None and not self._queue.awaited:
            time.sleep(PAUSE_S)

    def _save(self) -> None:
        with self._sink.lock:
            self._update_counts()
            self._sink.save()

    def _update_counts(self) -> None:
        if self._queue is not None:
            self._sink.manifest.blocked_ns = self._queue.blocked_ns
            self._sink.manifest.queue_peak_bytes = self._queue.peak_bytes
