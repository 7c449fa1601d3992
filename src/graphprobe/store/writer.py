"""Put the facts of a run on disk, from any thread, without ever raising into the program that is watched."""

from __future__ import annotations

import contextlib
import time
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from graphprobe.records import Event, Kind, Manifest, Where
from graphprobe.settings import text_from_size
from graphprobe.store import layout
from graphprobe.store.files import WrittenFile, claim_folder, digest_from_bytes, folder_below, replace_file
from graphprobe.store.manifest import SAVE_SECONDS, AppendFile, LiveWriter, making
from graphprobe.store.schema import json_from_value

_FOLDER_ATTEMPTS = 1000

_UPDATABLE = set(Manifest.__struct_fields__) - {"schema", "missing", "collected_files", "collected_bytes"}

__all__ = ["RunWriter", "WrittenFile"]


class RunWriter(LiveWriter[Manifest]):
    """Writes one run: files under `tool_dir`, one line an event, and the manifest. Get one from `create`.

    After `create`, nothing raises: what could not be written is counted in the manifest's `missing`, one entry a cause.
    """

    noun = ""

    def __init__(self, run_dir: Path, tool_dir: Path, manifest: Manifest, max_bytes: int | None) -> None:
        super().__init__(tool_dir, manifest, max_bytes)
        self.run_dir = run_dir
        self.tool_dir = tool_dir
        self._sizes: dict[str, int] = {}
        self._seq = 0
        self._events = AppendFile(tool_dir / layout.EVENTS)

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
        hint = "name a folder that can be written to: --out, trace(out_dir=...) or GRAPHPROBE_OUT"
        with making("run", root, hint=hint) as made:
            root = root.absolute()  # the program may go elsewhere
            run_dir, tool_dir, new = _claim(root, manifest, rank, adopt_run_dir)
            made.append(new)
            own = msgspec.convert(msgspec.to_builtins(manifest), Manifest)
            return cls(run_dir, tool_dir, own, max_bytes)

    def write_text(self, relpath: str, text: str) -> WrittenFile | None:
        """Write `text` as UTF-8; see `write_bytes`. What UTF-8 cannot hold is written as a backslash escape."""
        return self.write_bytes(relpath, text)

    def write_bytes(self, relpath: str, content: bytes | str) -> WrittenFile | None:
        """Write a file whole, replacing one of that name. None when it was not written, and why is then counted.

        Args:
            relpath: from `layout`, relative to the tool folder.
            content: counts against `max_bytes`.
        """
        if self.silent:
            return None
        size_bytes = 0
        try:
            data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
            size_bytes = len(data)
            with self.lock:
                if self._refuses("file", relpath, size_bytes):
                    return None
            with self._paid(size_bytes):
                replace_file(self._below(relpath), data)
            with self.lock:
                replaced_bytes = self._sizes.get(relpath, 0)
                self._budget.give_back(replaced_bytes)
                self._count_written(relpath, size_bytes, size_bytes - replaced_bytes)
            return WrittenFile(relpath, size_bytes, digest_from_bytes(data))
        except Exception as error:
            self._count_error(error, relpath, noun="file", size_bytes=size_bytes)
            return None

    def append_text(self, relpath: str, text: str) -> bool:
        """Add `text` at the end of a file, with one write; for logs. False when it was not written."""
        if self.silent:
            return False
        size_bytes = 0
        try:
            data = text.encode("utf-8", "backslashreplace")
            size_bytes = len(data)
            with self.lock:
                if self._refuses("log piece", relpath, size_bytes):
                    return False
                with self._paid(size_bytes), contextlib.closing(AppendFile(self._below(relpath))) as file:
                    file.append(data)
                self._count_written(relpath, self._sizes.get(relpath, 0) + size_bytes, size_bytes)
            return True
        except Exception as error:
            self._count_error(error, relpath, noun="log piece", size_bytes=size_bytes)
            return False

    def event(
        self,
        *,
        where: Where,
        kind: Kind,
        name: str,
        file: WrittenFile | None = None,
        **fields: Any,
    ) -> Event | None:
        """Add one line to the events; `fields` as in `Event`. None when it was not written; `seq` has no gap then."""
        if self.silent:
            return None
        try:
            with self.lock:
                if file is not None:
                    fields |= {"path": file.path, "size_bytes": file.size_bytes, "digest": file.digest}
                fields = {"time_ns": time.time_ns(), **fields}
                event = Event(seq=self._seq, where=where, kind=kind, name=name, **fields)
                line = json_from_value(event) + b"\n"
                if self._refuses("event line", name, len(line)):
                    return None
                with self._paid(len(line)):
                    self._events.append(line)
                self._seq += 1
                return event
        except Exception as error:
            self._count_error(error, name, noun="event line")
            return None

    def update(self, **fields: object) -> None:
        """Set fields of the manifest and rewrite it; a field or a value that it cannot take is counted as missing."""
        if self.silent:
            return
        with self.lock:
            try:
                document = msgspec.to_builtins(self._own)
                unknown = sorted(set(fields) - _UPDATABLE)
                if unknown:
                    raise TypeError(f"cannot set {', '.join(unknown)}")
                document |= {name: msgspec.to_builtins(value) for name, value in fields.items()}
                self._own = msgspec.convert(document, Manifest)
            except Exception as error:
                self.count(f"manifest not updated: {error}", "")
            self.save()

    def close(self, state: Literal["finished", "failed"], exception: str | None = None) -> None:
        """End the run: `state` and `exception` go to the manifest. Only the first call counts."""
        if self.forked:
            return
        with self.lock:
            if not self.closed:
                self.closed = True
                self._end(state, exception)
                self._events.close()

    def _refuses(self, noun: str, name: str, size_bytes: int) -> bool:
        """Whether nothing may be written now, which is then counted; else the bytes are taken from the budget."""
        if self.closed or self.refuses(name, noun=noun, size_bytes=size_bytes):
            return True
        if self._budget.take(size_bytes):
            return False
        bound = text_from_size(self._budget.max_bytes or 0)
        self.count(f"max_bytes ({bound}) would be exceeded", name, noun=noun, size_bytes=size_bytes)
        return True

    def _below(self, relpath: str) -> Path:
        """The path of `relpath`, with its folder made. The tool folder itself is never made anew once it is gone."""
        pure = PurePosixPath(relpath)
        if pure.is_absolute() or ".." in pure.parts or not pure.name:
            raise ValueError(f"{relpath!r} is no path below the run")
        return folder_below(self.tool_dir, "/".join(pure.parent.parts)) / pure.name

    def _count_written(self, relpath: str, size_bytes: int, grown_bytes: int) -> None:
        self._sizes[relpath] = size_bytes
        self._own.collected_files = len(self._sizes)
        self._own.collected_bytes += grown_bytes
        # A write that was under way in another thread while the run was closed is still to be counted.
        self.save(unless_newer_than_s=0.0 if self.closed else SAVE_SECONDS)


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
    run_dir = claim_folder(root, (folder, *(f"{folder}-{attempt}" for attempt in range(2, _FOLDER_ATTEMPTS))))
    tool_dir = run_dir / layout.TOOL
    tool_dir.mkdir()
    return run_dir, tool_dir, run_dir
