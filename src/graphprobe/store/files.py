"""Files that are there whole or not at all, and the count of what they take."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from hashlib import blake2b
from pathlib import Path

import msgspec

from graphprobe.store import layout

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_counter = itertools.count()


class WrittenFile(msgspec.Struct, frozen=True):
    """A file on disk: `path` relative to the tool folder, `/`-separated; `digest` as `digest_from_bytes` gives it.

    `size_bytes` and `digest` are None for a file that goes on changing.
    """

    path: str
    size_bytes: int | None
    digest: str | None


class Budget:
    """The bytes a run may take, in all; None is no bound. Not thread-safe by itself.

    `overhead_bytes` is what the manifest and the reserve take: it counts, yet is never refused.
    """

    def __init__(self, max_bytes: int | None, *, overhead_bytes: int = 0) -> None:
        self.max_bytes = max_bytes
        self.overhead_bytes = overhead_bytes
        self.used_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Reserve `size_bytes`, or take nothing and return False when they would go over the bound."""
        if self.max_bytes is not None and self.used_bytes + self.overhead_bytes + size_bytes > self.max_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Undo `take`, for what was not written or was replaced."""
        self.used_bytes -= size_bytes


def digest_from_bytes(data: bytes) -> str:
    """BLAKE2b-128 of `data`, 32 hexadecimal characters."""
    return blake2b(data, digest_size=16).hexdigest()


def is_no_space(error: BaseException) -> bool:
    """Whether the device or the quota is full."""
    return isinstance(error, OSError) and error.errno in _NO_SPACE


def replace_file(path: Path, data: bytes) -> None:
    """Write `path` whole: readers see the old content or the new one, and an error leaves no temporary file.

    Raises:
        OSError: as the operating system gives it.
    """
    temporary = path.with_name(f"{layout.TEMPORARY_PREFIX}{os.getpid()}-{next(_counter)}")
    try:
        write_new_file(temporary, data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_new_file(path: Path, data: bytes) -> None:
    """Write a file that must not exist yet. Raises OSError; what was written until then stays."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)
