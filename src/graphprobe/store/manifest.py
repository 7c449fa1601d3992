"""The live manifest of a run being written: its file, what is missing and why, and the reserve for a full disk."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from graphprobe.records import Manifest
from graphprobe.settings import text_from_size
from graphprobe.store import layout
from graphprobe.store.files import is_no_space, replace_file, write_new_file
from graphprobe.store.schema import encode_manifest

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
