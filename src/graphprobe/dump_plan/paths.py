"""Whether a folder can take a dump, and a file be read: asked of the system, and tried."""

from __future__ import annotations

import os
import stat
import tempfile

from graphprobe.errors import lacks_room


def directory_fault(path: str) -> str | None:
    """What is wrong with `path` as the folder of a dump, None if nothing is: it is there, can be read and written.

    Permissions alone do not tell, since root may do anything, so a file without a name is written. A disk that is full
    or read-only is no fault of the path: the dump says what it could not write, and the program runs.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        return _reason(error)
    if not stat.S_ISDIR(mode):
        return "it is no directory"
    wanted = {"read": os.R_OK, "written to": os.W_OK, "entered": os.X_OK}
    for verb, right in wanted.items():
        if not os.access(path, right) and not (right == os.W_OK and _read_only(path)):
            return f"it cannot be {verb}"
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"\0")
    except OSError as error:
        if lacks_room(error):
            return None
        return f"nothing can be written there: {_reason(error)}"
    return None


def file_fault(path: str) -> str | None:
    """What is wrong with `path` as a file to read, None if nothing is."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        return _reason(error)
    if not stat.S_ISREG(mode):
        return "it is a directory" if stat.S_ISDIR(mode) else "it is no ordinary file"
    return None if os.access(path, os.R_OK) else "it cannot be read"


def _read_only(path: str) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "it does not exist"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "it is no path" if isinstance(error, UnicodeError) else str(error)
