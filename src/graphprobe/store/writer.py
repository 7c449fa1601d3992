"""Put the facts of a run on disk, from any thread, without ever raising into the program that is watched."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from graphprobe.errors import UsageError
from graphprobe.records import Event, Kind, Manifest, Where
from graphprobe.settings import text_from_size
from graphprobe.store import layout
from graphprobe.store.files import ByteBudget, WrittenFile, digest_from_bytes, is_no_space, replace_file
from graphprobe.store.manifest import RESERVE_BYTES, RETRY_SECONDS, SAVE_SECONDS, ManifestFile
from graphprobe.store.schema import encode_event

_FOLDER_ATTEMPTS = 1000

_UPDATABLE = set(Manifest.__struct_fields__) - {"schema", "missing", "collected_files", "collected_bytes"}

__all__ = ["RunWriter", "WrittenFile"]


class RunWriter:
    """Writes one run: files under `tool_dir`, one line an event, and the manifest. Get one from `create`.

    Thread-safe. In a forked child it goes silent: nothing of the child lands in the parent's folder, and no lock is
    taken, since one held at the fork would never be freed. After `create`, nothing raises: what could not be written
    is counted in the manifest's `missing`, one entry a cause.
    """

    def __init__(self, run_dir: Path, tool_dir: Path, manifest_file: ManifestFile, budget: ByteBudget) -> None:
        self.run_dir = run_dir
        self.tool_dir = tool_dir
        self._file = manifest_file
        self._budget = budget
        self._pid = os.getpid()
        # Re-entrant: a signal handler or a destructor may come back in while this thread holds it.
        self._lock = threading.RLock()
        self._closed = False
        self._sizes: dict[str, int] = {}
        self._retry_at: float | None = None
        self._full_reason = ""
        self._seq = 0
        self._events = os.open(tool_dir / layout.EVENTS, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        self._events_bytes = 0
        self._torn = False

    @classmethod
    def create(
        cls,
        root: Path,
        *,
        manifest: Manifest,
        rank: int | None,
        max_bytes: int | None,
        adopt_run_dir: Path | None = None,
    ) -> RunWriter:
        """Start a run in a new folder under `root`, or in `adopt_run_dir` if that holds no graphprobe folder yet.

        `max_bytes` bounds everything in the tool folder; only the manifest is written even where it does not fit.

        Raises:
            UsageError: the folder cannot be made or written to; nothing of it is left behind.
        """
        made: Path | None = None
        try:
            root = root.absolute()  # the program may go elsewhere
            run_dir, tool_dir, made = _claim(root, manifest, rank, adopt_run_dir)
            reserve_bytes = RESERVE_BYTES if max_bytes is None else min(RESERVE_BYTES, max_bytes // 8)
            file = ManifestFile(tool_dir, _copy(manifest), reserve_bytes=reserve_bytes)
            file.create()
            return cls(run_dir, tool_dir, file, ByteBudget(max_bytes, overhead_bytes=file.overhead_bytes))
        except OSError as error:
            if made is not None:
                shutil.rmtree(made, ignore_errors=True)
            raise UsageError(
                f"no run can be written under {root}: {error.strerror} ({error.filename or made or root})",
                hint="name a folder that can be written to: --out, trace(out_dir=...) or GRAPHPROBE_OUT",
            ) from error

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of the process that made the writer."""
        return os.getpid() != self._pid

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def manifest(self) -> Manifest:
        """A copy of the manifest as it stands, fresher than the file."""
        with contextlib.nullcontext() if self.forked else self._lock:
            return _copy(self._file.value)

    def write_text(self, relpath: str, text: str) -> WrittenFile | None:
        """Write `text` as UTF-8; see `write_bytes`. What UTF-8 cannot hold is written as a backslash escape."""
        if self._silent():
            return None
        try:
            data = text.encode("utf-8", "backslashreplace")
        except Exception as error:
            self._count_error(error, "file", relpath, 0)
            return None
        return self.write_bytes(relpath, data)

    def write_bytes(self, relpath: str, data: bytes) -> WrittenFile | None:
        """Write a file whole, replacing one of that name. None when it was not written, and why is then counted.

        Args:
            relpath: from `layout`, relative to the tool folder.
            data: the content; counts against `max_bytes`.
        """
        if self._silent():
            return None
        size_bytes = 0
        try:
            size_bytes = len(data)
            with self._lock:
                if self._refuses("file", relpath, size_bytes):
                    return None
            try:
                self._write_below(relpath, data)
            except BaseException:
                with self._lock:
                    self._budget.give_back(size_bytes)
                raise
            with self._lock:
                replaced_bytes = self._sizes.get(relpath, 0)
                self._budget.give_back(replaced_bytes)
                self._count_written(relpath, size_bytes, size_bytes - replaced_bytes)
            return WrittenFile(relpath, size_bytes, digest_from_bytes(data))
        except Exception as error:
            self._count_error(error, "file", relpath, size_bytes)
            return None

    def append_text(self, relpath: str, text: str) -> bool:
        """Add `text` at the end of a file, with one write; for logs. False when it was not written."""
        if self._silent():
            return False
        size_bytes = 0
        try:
            data = text.encode("utf-8", "backslashreplace")
            size_bytes = len(data)
            with self._lock:
                if self._refuses("log piece", relpath, size_bytes):
                    return False
                try:
                    self._append_below(relpath, data)
                except BaseException:
                    self._budget.give_back(size_bytes)
                    raise
                self._count_written(relpath, self._sizes.get(relpath, 0) + size_bytes, size_bytes)
            return True
        except Exception as error:
            self._count_error(error, "log piece", relpath, size_bytes)
            return False

    def event(
        self,
        *,
        where: Where,
        kind: Kind,
        name: str,
        file: WrittenFile | None = None,
        changed: bool | None = None,
        before: str | None = None,
        elapsed_ns: int | None = None,
        nodes_before: int | None = None,
        nodes_after: int | None = None,
        added: Iterable[str] = (),
        removed: Iterable[str] = (),
        subsystem: str | None = None,
        message: str | None = None,
        time_ns: int | None = None,
    ) -> Event | None:
        """Add one line to the events; fields as in `Event`. None when it was not written; `seq` has no gap then."""
        if self._silent():
            return None
        try:
            with self._lock:
                event = Event(
                    seq=self._seq,
                    time_ns=time.time_ns() if time_ns is None else time_ns,
                    where=where,
                    kind=kind,
                    name=name,
                    changed=changed,
                    path=None if file is None else file.path,
                    size_bytes=None if file is None else file.size_bytes,
                    digest=None if file is None else file.digest,
                    before=before,
                    elapsed_ns=elapsed_ns,
                    nodes_before=nodes_before,
                    nodes_after=nodes_after,
                    added=tuple(added),
                    removed=tuple(removed),
                    subsystem=subsystem,
                    message=message,
                )
                line = encode_event(event)
                if self._refuses("event line", name, len(line)):
                    return None
                try:
                    self._append_line(line)
                except BaseException:
                    self._budget.give_back(len(line))
                    raise
                self._seq += 1
                return event
        except Exception as error:
            self._count_error(error, "event line", name, 0)
            return None

    def update(self, **fields: object) -> None:
        """Set fields of the manifest and rewrite it; a field or a value that it cannot take is counted as missing."""
        if self._silent():
            return
        with self._lock:
            try:
                document = msgspec.to_builtins(self._file.value)
                unknown = sorted(set(fields) - _UPDATABLE)
                if unknown:
                    raise TypeError(f"cannot set {', '.join(unknown)}")
                document |= {name: msgspec.to_builtins(value) for name, value in fields.items()}
                self._file.value = msgspec.convert(document, Manifest)
            except Exception as error:
                self._file.count_missing(f"manifest not updated: {error}")
            self._save()

    def note(self, text: str) -> None:
        """Add a line to the manifest's notes, once."""
        if self._silent():
            return
        with self._lock:
            if text not in self._file.value.notes:
                self._file.value.notes.append(text)
                self._save()

    def missing(self, text: str) -> None:
        """Say in words what should be there and is not; the same text again is counted."""
        if self._silent():
            return
        with self._lock:
            self._save(unless_newer_than_s=0.0 if self._file.count_missing(text) else SAVE_SECONDS)

    def close(self, state: Literal["finished", "failed"], exception: str | None = None) -> None:
        """End the run: `state` and `exception` go to the manifest. Only the first call counts."""
        if self.forked:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._file.value.state = state
            self._file.value.exception = exception
            self._file.value.ended_ns = time.time_ns()
            self._file.drop_reserve()
            self._save()
            with contextlib.suppress(OSError):
                os.close(self._events)

    def _silent(self) -> bool:
        return self._closed or self.forked

    def _refuses(self, noun: str, name: str, size_bytes: int) -> bool:
        """Whether nothing may be written now, which is then counted; else the bytes are taken from the budget."""
        if self._closed:
            return True
        if self._retry_at is not None:
            if time.monotonic() >= self._retry_at and self._file.restore_reserve():
                self._retry_at = None
            else:
                if time.monotonic() >= self._retry_at:
                    self._retry_at = time.monotonic() + RETRY_SECONDS
                self._count_missing(self._full_reason, noun, name, size_bytes)
                return True
        if self._budget.take(size_bytes):
            return False
        bound = text_from_size(self._budget.max_bytes or 0)
        self._count_missing(f"max_bytes ({bound}) would be exceeded", noun, name, size_bytes)
        return True

    def _below(self, relpath: str) -> Path:
        """The path of `relpath`, with its folder made. The tool folder itself is never made anew once it is gone."""
        pure = PurePosixPath(relpath)
        if pure.is_absolute() or ".." in pure.parts or not pure.name:
            raise ValueError(f"{relpath!r} is no path below the run")
        folder = self.tool_dir
        for part in pure.parent.parts:
            folder = folder / part
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
        return folder / pure.name

    def _write_below(self, relpath: str, data: bytes) -> None:
        replace_file(self._below(relpath), data)

    def _append_below(self, relpath: str, data: bytes) -> None:
        descriptor = os.open(self._below(relpath), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)

    def _append_line(self, line: bytes) -> None:
        """One write; a line of which only a part went to disk is cut off again, or else ended before the next one."""
        data = b"\n" + line if self._torn else line
        written = os.write(self._events, data)
        if written == len(data):
            self._torn = False
            self._events_bytes += written
            return
        try:
            os.ftruncate(self._events, self._events_bytes)
        except OSError:
            self._torn = True
            self._events_bytes += written
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _count_written(self, relpath: str, size_bytes: int, grown_bytes: int) -> None:
        self._sizes[relpath] = size_bytes
        self._file.value.collected_files = len(self._sizes)
        self._file.value.collected_bytes += grown_bytes
        # A write that was under way in another thread while the run was closed is still to be counted.
        self._save(unless_newer_than_s=0.0 if self._closed else SAVE_SECONDS)

    def _count_error(self, error: Exception, noun: str, name: str, size_bytes: int) -> None:
        reason = (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"
        with self._lock:
            if is_no_space(error):
                self._retry_at = time.monotonic() + RETRY_SECONDS
                self._full_reason = reason
                self._file.drop_reserve()
            self._count_missing(reason, noun, name, size_bytes)

    def _count_missing(self, reason: str, noun: str, name: str, size_bytes: int) -> None:
        new = self._file.count_missing(reason, noun=noun, size_bytes=size_bytes, first=name)
        self._save(unless_newer_than_s=0.0 if new else SAVE_SECONDS)

    def _save(self, *, unless_newer_than_s: float = 0.0) -> None:
        if self._file.save(unless_newer_than_s=unless_newer_than_s):
            self._budget.overhead_bytes = self._file.overhead_bytes
        if self._file.full_reason is not None:
            # The manifest has found the disk full. What the reserve gave back is for the manifest alone.
            self._full_reason, self._file.full_reason = self._file.full_reason, None
            self._retry_at = time.monotonic() + RETRY_SECONDS


def _copy(manifest: Manifest) -> Manifest:
    return msgspec.convert(msgspec.to_builtins(manifest), Manifest)


def _claim(root: Path, manifest: Manifest, rank: int | None, adopt_run_dir: Path | None) -> tuple[Path, Path, Path]:
    """A run folder and a tool folder that nobody else has, and the outermost of the two that was made here."""
    if adopt_run_dir is not None:
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            tool_dir = adopt_run_dir / layout.TOOL
            tool_dir.mkdir()
            return adopt_run_dir, tool_dir, tool_dir
    root.mkdir(parents=True, exist_ok=True)
    seconds, rest_ns = divmod(manifest.started_ns, 10**9)
    started = datetime.fromtimestamp(seconds).replace(microsecond=rest_ns // 1000)
    folder = layout.run_folder(started=started, pid=manifest.pid, rank=rank)
    for attempt in range(1, _FOLDER_ATTEMPTS):
        run_dir = root / (folder if attempt == 1 else f"{folder}-{attempt}")
        try:
            run_dir.mkdir()
        except FileExistsError:
            continue
        tool_dir = run_dir / layout.TOOL
        tool_dir.mkdir()
        return run_dir, tool_dir, run_dir
    raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(root / folder))
