"""The file that `--json` names: one that does not exist yet, in a folder that does."""

from __future__ import annotations

from pathlib import Path

from graphprobe.errors import UsageError


def new_file(path: str | None) -> Path | None:
    """The absolute path, None for none; raises UsageError before anything runs."""
    if path is None:
        return None
    file = Path(path).absolute()
    if not file.parent.is_dir():
        raise UsageError(f"--json {path}: there is no folder {file.parent}")
    if file.exists():
        raise UsageError(f"--json {path}: it exists already", hint="remove it, or name another file")
    return file
