"""What all writers of runs and dumps share: the live manifest, and what happens when something cannot be written.

If a full disk cuts off a line of a file that grows by whole lines, the rest of the line is taken back.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import msgspec

from graphprobe.errors import UsageError
from graphprobe.records import Manifest
from graphprobe.settings import text_from_size
from graphprobe.store import layout
from graphprobe.store.files import ByteBudget, is_no_space, replace_file, write_new_file
from graphprobe.store.schema import encode_manifest

RETRY_SECONDS = 2.0
"""How long nothing is tried after the disk was found full."""

SAVE_SECONDS = 1.0
"""How old the counts in the manifest file may get while files are written."""

RESERVE_BYTES = 64 * 1024
MAX_CAUSES = 64
"""Most entries `missing` gets; what comes later is counted under one."""

_SLACK_BYTES = 2048

ManifestT = TypeVar("ManifestT", bound=Manifest)


class DumpedManifest(Manifest, kw_only=True):
    """`manifest.json` of a dump: that of a run, with what concerns every dump.

    Attributes:
        plan: what was asked for, as it was in force, for people.
        stopped: why dumping ended before the program did, e.g. because the budget was reached.
        queue_peak_bytes, blocked_ns: the most that waited to be written, and how long the program waited for room.
        called: what such a dump is called in messages, e.g. `an API dump`.
        version: the field that only such dumps have, the schema of their files, and the one that can be read.
    """

    called: ClassVar[str]
    version: ClassVar[tuple[str, int]]

    plan: dict[str, Any]
    stopped: str | None = None
    queue_peak_bytes: int = 0
    blocked_ns: int = 0

    @classmethod
    def of(cls, run: Manifest, **own: Any) -> Self:
        """The manifest of a dump by the process that `run` describes; `own` are further fields, JSON as they are."""
        key, known = cls.version
        return msgspec.convert(msgspec.to_builtins(run) | {key: known} | own, cls)


class AppendFile:
    """One file, open for appending. Not thread-safe by itself; raises OSError as the operating system gives it.

    `header` is written with the first line, unless the file holds something already.
    """

    def __init__(self, path: Path, *, header: bytes = b"") -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._size_bytes = os.fstat(self._descriptor).st_size
        self._header = b"" if self._size_bytes else header
        self._line_end = b""

    def growth_bytes(self, data: bytes) -> int:
        """How much the file grows when `data` is appended."""
        return len(self._line_end) + len(self._header) + len(data)

    def append(self, data: bytes) -> None:
        """Add `data`, one or more lines, with one write: all of it is there afterwards, or an error and nothing."""
        whole = self._line_end + self._header + data
        written = os.write(self._descriptor, whole)
        if written == len(whole):
            self._header = self._line_end = b""
            self._size_bytes += written
            return
        try:
            os.ftruncate(self._descriptor, self._size_bytes)
        except OSError:
            self._size_bytes += written
            self._line_end = b"\r\n" if self._header or data.endswith(b"\r\n") else b"\n"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def take_back(self, size_bytes: int) -> None:
        """Cut off the `size_bytes` that were appended last."""
        os.ftruncate(self._descriptor, self._size_bytes - size_bytes)
        self._size_bytes -= size_bytes

    def close(self) -> None:
        """Close the file; what is appended after that fails."""
        descriptor, self._descriptor = self._descriptor, -1  # its number may soon be that of another file
        with contextlib.suppress(OSError):
            os.close(descriptor)


@contextlib.contextmanager
def making(what: str, under: Path, *, hint: str) -> Iterator[list[Path]]:
    """Of a block that makes folders, and puts them into the list: they are removed again if it fails.

    Raises:
        UsageError: in place of an OSError of the block.
    """
    made: list[Path] = []
    try:
        yield made
    except OSError as error:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # the working directory may be gone
            under = under.absolute()
        why = f"{error.strerror} ({error.filename or under})"
        raise UsageError(f"no {what} can be written under {under}: {why}", hint=hint) from error


class Shortfall(msgspec.Struct):
    """Things of one sort that are missing for one reason."""

    noun: str
    reason: str
    count: int = 0
    size_bytes: int = 0
    first: str = ""

    def render(self) -> str:
        """The entry in `missing`."""
        if not self.noun:
            return self.reason if self.count == 1 else f"{self.reason} ({self.count} times)"
        plural = "" if self.count == 1 else "s"
        size = f" ({text_from_size(self.size_bytes)})" if self.size_bytes else ""
        first = f"; first: {self.first}" if self.first else ""
        return f"{self.count} {self.noun}{plural}{size} not written: {self.reason}{first}"


class LiveWriter(Generic[ManifestT]):
    """Writes one run or dump while the program runs, and raises nothing into it: what is lost is counted in `missing`.

    Thread-safe. In a forked child it goes silent: nothing of the child lands in the parent's folder, and no lock is
    taken, since one held at the fork would never be freed.

    A small reserve file of real bytes lies next to the manifest. When the disk is full the reserve is given up, so that
    the manifest can still say so; when it can be laid down again, the disk has room again.

    Attributes:
        noun: what is counted, unless `count` is told otherwise.
        folder: that of the manifest.
        lock: held around all that several threads may do.
        closed: whether `close` was called.
        stopped: why nothing more will be written, e.g. because the budget was reached; None as long as something is.
    """

    noun: ClassVar[str]

    def __init__(self, folder: Path, manifest: ManifestT, max_bytes: int | None) -> None:
        """Write manifest and reserve for the first time; `max_bytes` bounds everything. Raises OSError."""
        self.folder = folder
        # Re-entrant: a signal handler or a destructor may come back in while this thread holds it.
        self.lock = threading.RLock()
        self.stopped: str | None = None
        self._own = manifest
        self.closed = False
        self._pid = os.getpid()
        self._retry_at: float | None = None
        self._full_reason = ""
        self._reserve_bytes = RESERVE_BYTES if max_bytes is None else min(RESERVE_BYTES, max_bytes // 8)
        self._shortfalls: dict[tuple[str, str], Shortfall] = {}
        self._given = list(manifest.missing)
        data = encode_manifest(manifest)
        replace_file(folder / layout.MANIFEST, data)
        write_new_file(folder / layout.RESERVE, os.urandom(self._reserve_bytes))
        self._saved_at = time.monotonic()
        self._budget = ByteBudget(max_bytes, overhead_bytes=self._overhead_bytes(data))

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of the process that made the writer."""
        return os.getpid() != self._pid

    @property
    def silent(self) -> bool:
        """Whether it writes nothing more: it was closed, or this is a forked child."""
        return self.closed or os.getpid() != self._pid

    @property
    def accepts(self) -> bool:
        """Whether what is handed in can still lead to anything: copying values may be skipped when it cannot."""
        return self.stopped is None and not self.silent

    @property
    def manifest(self) -> ManifestT:
        """A copy of the manifest as it stands, fresher than the file."""
        with contextlib.nullcontext() if self.forked else self.lock:
            return msgspec.convert(msgspec.to_builtins(self._own), type(self._own))

    def note(self, text: str) -> None:
        """Add a line to the manifest's notes, once."""
        if not self.silent:
            with self.lock:
                if text not in self._own.notes:
                    self._own.notes.append(text)
                    self.save()

    def missing(self, reason: str, *, name: str = "", noun: str | None = None) -> None:
        """Count something that should be there and is not; an empty `noun`: `reason` says it all."""
        if not self.silent:
            self.count(reason, name, noun=noun)

    def refuses(self, name: str, *, noun: str | None = None, size_bytes: int = 0) -> bool:
        """Whether nothing can be written now, which is then counted for `name`."""
        if self.stopped is not None:
            self.count(self.stopped, name, noun=noun, size_bytes=size_bytes)
            return True
        with self.lock:
            if self._retry_at is None:
                return False
            if time.monotonic() >= self._retry_at:
                if self._restore_reserve():
                    self._retry_at = None
                    return False
                self._retry_at = time.monotonic() + RETRY_SECONDS
            self.count(self._full_reason, name, noun=noun, size_bytes=size_bytes)
            return True

    def count(self, reason: str, name: str, *, noun: str | None = None, size_bytes: int = 0) -> None:
        """Count one more thing that is missing, `name` for one; causes beyond `MAX_CAUSES` are counted together."""
        with self.lock:
            key = (self.noun if noun is None else noun, reason)
            if key not in self._shortfalls and len(self._shortfalls) >= MAX_CAUSES:
                key = ("thing", "other causes")
            new = key not in self._shortfalls
            entry = self._shortfalls.setdefault(key, Shortfall(*key, first=name))
            entry.count += 1
            entry.size_bytes += size_bytes
            self._list_missing()
            self.save(unless_newer_than_s=0.0 if new else SAVE_SECONDS)

    def save(self, *, unless_newer_than_s: float = 0.0) -> None:
        """Rewrite the manifest, unless that was done less than so many seconds ago."""
        if unless_newer_than_s and time.monotonic() - self._saved_at < unless_newer_than_s:
            return
        with self.lock:
            # Set first: a disk that refuses must not be asked again for every file.
            self._saved_at = time.monotonic()
            path = self.folder / layout.MANIFEST
            try:
                self._list_missing()
                data = encode_manifest(self._own)
                try:
                    replace_file(path, data)
                except OSError as error:
                    if not is_no_space(error):
                        raise
                    self._found_full(error)  # what the reserve gives back is for the manifest alone
                    replace_file(path, data)
            except Exception:
                return
            self._budget.overhead_bytes = self._overhead_bytes(data)

    @contextlib.contextmanager
    def _paid(self, size_bytes: int) -> Iterator[None]:
        """Bytes that were taken from the budget are given back when what they are for fails."""
        try:
            yield
        except BaseException:
            with self.lock:
                self._budget.give_back(size_bytes)
            raise

    def _end(self, state: Literal["finished", "failed"], exception: str | None) -> None:
        """Write the manifest for the last time."""
        self._own.state, self._own.exception, self._own.ended_ns = state, exception, time.time_ns()
        self._drop_reserve()
        self.save()

    def _count_error(
        self, error: Exception, name: str, *, times: int = 1, noun: str | None = None, size_bytes: int = 0
    ) -> None:
        with self.lock:
            if is_no_space(error):
                self._found_full(error)
            for _ in range(times):
                self.count(self._reason(error), name, noun=noun, size_bytes=size_bytes)

    def _reason(self, error: Exception) -> str:
        return (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"

    def _found_full(self, error: Exception) -> None:
        self._retry_at = time.monotonic() + RETRY_SECONDS
        self._full_reason = self._reason(error)
        self._drop_reserve()

    def _list_missing(self) -> None:
        self._own.missing = self._given + [entry.render() for entry in self._shortfalls.values()]

    def _overhead_bytes(self, data: bytes) -> int:
        """What the reserve and the manifest take at most: while it is rewritten, the old one still lies there."""
        return self._reserve_bytes + 2 * len(data) + _SLACK_BYTES

    def _drop_reserve(self) -> None:
        """Give the reserve's bytes back to the disk."""
        with contextlib.suppress(OSError):
            (self.folder / layout.RESERVE).unlink()

    def _restore_reserve(self) -> bool:
        """Whether the reserve is there, after trying to lay it down again: False on a disk that is still full."""
        try:
            write_new_file(self.folder / layout.RESERVE, os.urandom(self._reserve_bytes))
        except FileExistsError:
            return True
        except OSError:
            self._drop_reserve()
            return False
        return True
