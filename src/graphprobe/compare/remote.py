"""Dumps and results under fsspec URLs. Local paths never come here, so that fsspec is imported for URLs only."""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from graphprobe.compare.extras import extra_module
from graphprobe.errors import RunNotFoundError, UsageError

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+(::|://)")


def is_remote(path: str) -> bool:
    """Whether `path` is a URL: `s3://bucket/run`, `memory://run`; a Windows drive has one letter and is none."""
    return _URL.match(path) is not None


def local_copy(url: str) -> Path:
    """A copy of a remote file or folder in a temporary folder, removed when the process ends.

    Values are mapped from local files, so that a dump is fetched once, whole, and read as often as needed.

    Raises:
        RunNotFoundError: nothing is there.
        UsageError: fsspec or the package for this kind of URL is missing, or the transfer failed.
    """
    system, path = _opened(url)
    folder = Path(tempfile.mkdtemp(prefix="graphprobe-remote-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    name = path.rstrip("/").rpartition("/")[2] or "dump"
    try:
        if not system.exists(path):
            raise RunNotFoundError(f"there is nothing at {url}", hint="check the URL and the credentials")
        if system.isdir(path):
            system.get(path.rstrip("/") + "/", str(folder / name) + "/", recursive=True)
        else:
            system.get_file(path, str(folder / name))
    except OSError as error:
        raise UsageError(f"{url} could not be fetched: {error}", hint="check the URL and the credentials") from error
    return folder / name


def write_text(url: str, text: str) -> None:
    """Writes one remote file, over an existing one.

    Raises:
        UsageError: fsspec or the package for this kind of URL is missing, or the transfer failed.
    """
    system, path = _opened(url)
    try:
        system.makedirs(path.rpartition("/")[0], exist_ok=True)
        with system.open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{url} could not be written: {error}", hint="check the URL and the credentials") from error


def _opened(url: str) -> tuple[Any, str]:
    fsspec = extra_module("fsspec", extra="remote", purpose=f"the URL {url}")
    try:
        system, path = fsspec.core.url_to_fs(url)
        return system, str(path)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{url} cannot be opened: {error}", hint="install the fsspec package for such URLs") from error
