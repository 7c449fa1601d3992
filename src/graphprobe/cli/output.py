"""The file that `--json` names: one that does not exist yet, in a folder that does."""

from __future__ import annotations

from pathlib import Path

from graphprobe.errors import UsageError
from graphprobe.store.files import check_replaced


def new_file(path: str | None, *marks: bytes) -> Path | None:
    """The absolute path, None for none; raises UsageError before anything runs.

    A file that exists is accepted only if it has one of `marks`, see `check_replaced`.
    """
    if path is None:
        return None
    file = Path(path).absolute()
    if not file.parent.is_dir():
        raise UsageError(f"--json {path}: there is no folder {file.parent}")
    if marks:
        check_replaced(file, f"--json {path}", *marks)
    elif file.exists():
        raise UsageError(f"--json {path}: it exists already", hint="remove it, or name another file")
    return file
