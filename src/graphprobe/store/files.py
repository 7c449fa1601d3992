"""Files that are there whole or not at all, the count of what they take, and reading those that anybody wrote."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import msgspec

from graphprobe.errors import GraphprobeError, UsageError
from graphprobe.store import layout

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_counter = itertools.count()
_SECONDS_TRIED = 3600
_MOST_BUFFERS = 512
"""Buffers per system call; Linux takes 1024."""

MOST_BYTES = 1 << 30
"""Of a file that is read whole."""
MOST_LINE_BYTES = 64 << 20
"""Of a line of a file that is read line by line."""
_HEAD_BYTES, _TAIL_BYTES, _BUFFER_BYTES = 4 << 10, 64 << 10, 1 << 20


class WrittenFile(msgspec.Struct, frozen=True):
    """A file on disk: `path` relative to the tool folder, `/`-separated; `digest` as `digest_from_bytes` returns it.

    `size_bytes` and `digest` are None for a file that goes on changing.
    """

    path: str
    size_bytes: int | None
    digest: str | None


class ByteBudget:
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


def replace_file(path: str | os.PathLike[str], *pieces: bytes | memoryview) -> None:
    """Write `path` whole: readers see the old content or the new one, and an error leaves no temporary file.

    Raises:
        OSError: as the operating system raises it.
    """
    with replacing(path) as temporary:
        write_new_file(temporary, *pieces)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """A new file beside `path`, by name, which takes its place when the block has written it, and is gone if it fails.

    Raises:
        OSError: as the operating system raises it.
    """
    folder, slash, _ = os.fspath(path).rpartition("/")
    temporary = f"{folder}{slash}{layout.TEMPORARY_PREFIX}{os.getpid()}-{next(_counter)}"
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_new_file(path: str | os.PathLike[str], *pieces: bytes | memoryview) -> None:
    """Write a file that must not exist yet, in as few system calls as it takes; views are 1-d bytes.

    Raises:
        OSError: what was written until then stays.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        pending = deque([piece for piece in pieces if len(piece)])
        while pending:
            several = list(itertools.islice(pending, _MOST_BUFFERS))
            written = os.writev(descriptor, several) if len(several) > 1 else os.write(descriptor, several[0])
            while pending and written >= len(pending[0]):
                written -= len(pending.popleft())
            if written:
                pending[0] = memoryview(pending[0])[written:]
    finally:
        os.close(descriptor)


def folder_below(folder: Path, relative: str) -> Path:
    """The folder of that path below another one, made if need be; the other one is never made anew once it is gone."""
    for part in filter(None, relative.split("/")):
        folder = folder / part
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
    return folder


def claim_folder(parent: Path, names: Iterable[str]) -> Path:
    """Make the first folder of these names in `parent` that is not there yet.

    Raises:
        OSError: `parent` does not exist or cannot be written to, or all are there.
    """
    for name in names:
        with contextlib.suppress(FileExistsError):
            (parent / name).mkdir()
            return parent / name
    raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(parent))


def seconds_from(began: datetime) -> Iterator[datetime]:
    """The times for which a folder is tried: from `began` on, one a second."""
    return (began + timedelta(seconds=later_s) for later_s in range(_SECONDS_TRIED))


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise OSError unless `path` is a regular file: a FIFO would hang its reader, and opening a device may do things.

    A name that no file can have is a file that is not there, too.
    """
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:
        raise OSError(errno.ENOENT, f"no file can be called that: {error}", os.fspath(path)) from error
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file that anybody may have written, for reading. Raises OSError, also where it is no regular file."""
    check_regular(path)
    return open(path, "rb")


def lines_at(path: Path) -> Iterator[bytes]:
    """The lines of a file that anybody may have written; raises OSError, also at one that is too long to be one."""
    check_regular(path)
    with open(path, "rb", buffering=_BUFFER_BYTES) as file:
        while line := file.readline(MOST_LINE_BYTES):
            if len(line) == MOST_LINE_BYTES and not line.endswith(b"\n"):
                raise OSError(errno.EFBIG, f"a line has more than {MOST_LINE_BYTES} bytes")
            yield line


def read_file(path: str | os.PathLike[str], *, below: Path | None = None, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a file that anybody may have written.

    Raises:
        OSError: it cannot be read, is no regular file, is larger than `most_bytes`, or a link leads out of `below`.
    """
    if below is not None and not Path(path).resolve().is_relative_to(below.resolve()):
        raise OSError(errno.EACCES, f"it is a link that leads out of {below}", os.fspath(path))
    with open_file(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > most_bytes:
            raise OSError(errno.EFBIG, f"it has {size_bytes} bytes, and at most {most_bytes} are read", os.fspath(path))
        return file.read(most_bytes)


def read_or_refuse(
    path: str | os.PathLike[str], refusal: type[GraphprobeError], *, hint: str = "", below: Path | None = None
) -> bytes:
    """The content of a file as `read_file` returns it; where it cannot be read, `refusal` says why."""
    try:
        return read_file(path, below=below)
    except OSError as error:
        raise refusal(f"{path} cannot be read: {error.strerror}", hint=hint) from error


def file_to_write(path: str, *marks: bytes, named: str, force: bool = False, by: str = "") -> Path:
    """The absolute path of a file that a caller asks for: a new one, in a folder that is there.

    Args:
        path: as the caller gave it.
        marks: what an earlier file of the kind has, see `check_replaced`.
        named: what the caller calls it, for messages.
        force: whether such a file may be replaced.
        by: how the caller asks for that; empty where nobody can.

    Raises:
        UsageError: it is a folder, or in none, or it exists and may not be replaced.
    """
    file = Path(path).absolute()
    if not file.parent.is_dir():
        raise UsageError(f"{named}: there is no folder {file.parent}")
    if file.is_dir():
        raise UsageError(f"{named}: it is a folder", hint="name a file")
    if force:
        check_replaced(file, named, *marks)
    elif file.exists():
        other = f"overwrite it with {by}" if by else "remove it"
        raise UsageError(f"{named}: it exists already", hint=f"name another file, or {other}")
    return file


def check_replaced(path: Path, named: str, *marks: bytes) -> None:
    """Raise UsageError where something is at `path` that `--force` must not replace; `named` is for the message.

    Only a regular file is replaced, and only one that is empty or has one of `marks`: what this package writes into
    files of that kind, near their beginning or end. Without marks every regular file is.
    """
    try:
        with open_file(path) as file:
            head = file.read(_HEAD_BYTES)
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            tail = file.read()
    except FileNotFoundError:
        return
    except OSError as error:
        why = error.strerror or str(error)
    else:
        if not head or not marks or any(mark in head or mark in tail for mark in marks):
            return
        why = "graphprobe did not write it, or it is a file of another kind"
    raise UsageError(f"{named}: it is not replaced: {why}", hint="name another file, or remove it")
