"""The live manifest of a run being written: its file, what is missing and why, and the reserve for a full disk.

With it, the failure handling shared by all dump writers: it counts failures, and after a full disk tries again later.
Of a file that grows by whole lines, what a full disk cut off is taken back.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from pathlib import Path
from typing import ClassVar

import msgspec

from graphprobe.records import Manifest
from graphprobe.settings import text_from_size
from graphprobe.store import layout
from graphprobe.store.files import ByteBudget, is_no_space, replace_file, write_new_file
from graphprobe.store.schema import encode_manifest

RETRY_SECONDS = 2.0
"""How long nothing is tried after the disk was found full."""

SAVE_SECONDS = 1.0
"""How old the counts in the manifest file may get while files are written."""


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


RESERVE_BYTES = 64 * 1024
MAX_CAUSES = 64
"""Most entries `missing` gets; what comes later is counted under one."""

_SLACK_BYTES = 2048


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


class ManifestFile:
    """The manifest and its file. Not thread-safe by itself, and never raises but in `create`.

    A small reserve file of real bytes lies next to it. When the disk is full the reserve is given up, so that the
    manifest can still say so; when it can be laid down again, the disk has room again.
    """

    def __init__(self, tool_dir: Path, manifest: Manifest, *, reserve_bytes: int = RESERVE_BYTES) -> None:
        self.value = manifest
        self.size_bytes = 0
        self.full_reason: str | None = None
        """Set when a save has used the reserve up: nothing else may be written into its place."""
        self._path = tool_dir / layout.MANIFEST
        self._reserve = tool_dir / layout.RESERVE
        self._reserve_bytes = reserve_bytes
        self._shortfalls: dict[tuple[str, str], Shortfall] = {}
        self._given = list(manifest.missing)
        self._saved_at = 0.0

    @property
    def overhead_bytes(self) -> int:
        """What the reserve and the manifest take at most: while it is rewritten, the old one still lies there."""
        return self._reserve_bytes + 2 * self.size_bytes + _SLACK_BYTES

    def create(self) -> None:
        """Write both files for the first time. Raises OSError."""
        data = encode_manifest(self.value)
        self.size_bytes = len(data)
        replace_file(self._path, data)
        write_new_file(self._reserve, os.urandom(self._reserve_bytes))
        self._saved_at = time.monotonic()

    def save(self, *, unless_newer_than_s: float = 0.0) -> bool:
        """Rewrite the file, unless that was done less than so many seconds ago; False when it was not written."""
        if unless_newer_than_s and time.monotonic() - self._saved_at < unless_newer_than_s:
            return False
        self.value.missing = self._given + [entry.render() for entry in self._shortfalls.values()]
        # Set first: a disk that refuses must not be asked again for every file.
        self._saved_at = time.monotonic()
        try:
            data = encode_manifest(self.value)
            try:
                replace_file(self._path, data)
            except OSError as error:
                if not is_no_space(error):
                    raise
                self.drop_reserve()
                self.full_reason = error.strerror
                replace_file(self._path, data)
        except Exception:
            return False
        self.size_bytes = len(data)
        return True

    def count_missing(self, reason: str, *, noun: str = "", size_bytes: int = 0, first: str = "") -> bool:
        """Count one more thing that is missing; True when the reason is new."""
        key = (noun, reason)
        if key not in self._shortfalls and len(self._shortfalls) >= MAX_CAUSES:
            key = ("thing", "other causes")
        new = key not in self._shortfalls
        entry = self._shortfalls.setdefault(key, Shortfall(*key, first=first))
        entry.count += 1
        entry.size_bytes += size_bytes
        self.value.missing = self._given + [one.render() for one in self._shortfalls.values()]
        return new

    def drop_reserve(self) -> None:
        """Give the reserve's bytes back to the disk."""
        with contextlib.suppress(OSError):
            self._reserve.unlink()

    def restore_reserve(self) -> bool:
        """Whether the reserve is there, after trying to lay it down again: False on a disk that is still full."""
        try:
            write_new_file(self._reserve, os.urandom(self._reserve_bytes))
        except FileExistsError:
            return True
        except OSError:
            self.drop_reserve()
            return False
        return True


class CountsShortage:
    """Nothing is raised into the program: what could not be written is counted in the manifest's `missing`.

    Attributes:
        noun: what is counted, unless `count` is told otherwise.
        lock: held around all that several threads may do.
        stopped: why nothing more will be written, e.g. because the budget was reached; None as long as something is.
    """

    noun: ClassVar[str]

    def __init__(self, file: ManifestFile, max_bytes: int | None) -> None:
        self.lock = threading.RLock()
        self.stopped: str | None = None
        self._file = file
        self._budget = ByteBudget(max_bytes, overhead_bytes=file.overhead_bytes)
        self._retry_at: float | None = None
        self._full_reason = ""

    def refuses(self, name: str) -> bool:
        """Whether nothing can be written now, which is then counted for `name`."""
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

    def count(self, reason: str, name: str, *, noun: str | None = None) -> None:
        """Count one more thing that is missing; see `ManifestFile.count_missing`."""
        with self.lock:
            new = self._file.count_missing(reason, noun=noun or self.noun, first=name)
            self.save(unless_newer_than_s=0.0 if new else SAVE_SECONDS)

    def save(self, *, unless_newer_than_s: float = 0.0) -> None:
        """Rewrite the manifest, if that was not done lately."""
        with self.lock:
            if self._file.save(unless_newer_than_s=unless_newer_than_s):
                self._budget.overhead_bytes = self._file.overhead_bytes
            if self._file.full_reason is not None:
                self._full_reason, self._file.full_reason = self._file.full_reason, None
                self._retry_at = time.monotonic() + RETRY_SECONDS

    def _count_error(self, error: Exception, name: str, *, times: int = 1, noun: str | None = None) -> None:
        reason = self._reason(error)
        with self.lock:
            if is_no_space(error):
                self._retry_at = time.monotonic() + RETRY_SECONDS
                self._full_reason = reason
                self._file.drop_reserve()
            for _ in range(times):
                self.count(reason, name, noun=noun)

    def _reason(self, error: Exception) -> str:
        return (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"


def ended_early(state: str | None, stopped: str | None) -> str:
    """What is to be said of a dump that ended before its program did; empty of one that did not, or that still runs."""
    if stopped:
        return f"the dump ended early: {stopped}; nothing is known of what came after"
    return "the process was killed: the last calls may be missing" if state == "killed" else ""
