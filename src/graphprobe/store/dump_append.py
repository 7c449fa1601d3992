"""A file that grows by whole lines: what a full disk cut off is taken back, so that the next line starts afresh."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path


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
