"""Write the calls of a running program: a thread writes them beside it, and nothing that fails is raised into it."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Literal

import msgspec

from graphprobe.errors import UsageError
from graphprobe.records import Manifest
from graphprobe.store.api_jobs import RawCall, RawValue
from graphprobe.store.api_records import API_SCHEMA, ApiManifest, rank_folder
from graphprobe.store.api_sink import ApiSink
from graphprobe.store.dump_pool import CopyPool
from graphprobe.store.manifest import RESERVE_BYTES, ManifestFile

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
