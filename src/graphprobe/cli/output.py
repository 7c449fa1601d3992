"""Files and folders that a command is asked to write: checked before anything runs, and JSON that is written whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

from graphprobe.errors import UsageError
from graphprobe.store.files import file_to_write, replace_file


@overload
def new_file(option: str, path: str, *marks: bytes, force: bool | None = None) -> Path: ...
@overload
def new_file(option: str, path: str | None, *marks: bytes, force: bool | None = None) -> Path | None: ...
def new_file(option: str, path: str | None, *marks: bytes, force: bool | None = None) -> Path | None:
    """The absolute path that `option` names: a file that does not exist yet, in a folder that does; None for none.

    With `force` it may be one that has one of `marks`, see `check_replaced`; None: the command has no `--force`.

    Raises:
        UsageError: it is none.
    """
    if path is None:
        return None
    by = "" if force is None else "--force"
    return file_to_write(path, *marks, named=f"{option} {path}", force=bool(force), by=by)


def new_folder(path: str) -> Path:
    """The absolute path that `--out` names: of a folder that is empty, or not there yet; raises UsageError else."""
    folder = Path(path).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"--out {path}: it exists and is not an empty folder", hint="name a folder that is new or empty"
        )
    return folder


def write_json(file: Path | None, document: Mapping[str, Any]) -> None:
    """Writes the document in the place of `file`; None: nowhere."""
    if file is not None:
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        replace_file(file, f"{text}\n".encode())
