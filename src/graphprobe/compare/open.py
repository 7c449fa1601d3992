"""Opens a dump or result of any format, by path or fsspec URL; rare packages are imported on demand."""

from __future__ import annotations

import atexit
import importlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from graphprobe.compare.ranks import MergedDump
from graphprobe.errors import GraphprobeError, RunNotFoundError, UsageError
from graphprobe.store.api_reader import open_api_dump
from graphprobe.store.calls import CallDump
from graphprobe.store.dump_reader import is_op_file
from graphprobe.store.dump_reader import open_dump as open_graphs
from graphprobe.store.dump_records import STATS
from graphprobe.store.files import open_file, read_file
from graphprobe.store.foreign.msprobe import MsprobeDump
from graphprobe.store.foreign.ptdbg import PtdbgDump
from graphprobe.store.reader import Run, finds_one

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+(::|://)")

EXPECTED = (
    "a folder of an API dump, a graph dump (a time folder, worldsize*_rank* or anything in it), an index written by "
    "`graphprobe merge`, an msprobe folder or its dump.json, or the .pkl text of ptdbg"
)
"""What can be opened, for messages."""

MOST_NAMED = 4
"""Dumps that a message names."""

MERGED = "graphprobe-ranks.json"
"""Name of the index that `graphprobe merge` writes."""

_STEP_OR_RANK = re.compile(r"(step|rank|proc)\d*$")


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
    system, path = _file_system(url)
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
    system, path = _file_system(url)
    try:
        system.makedirs(path.rpartition("/")[0], exist_ok=True)
        with system.open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{url} could not be written: {error}", hint="check the URL and the credentials") from error


def _file_system(url: str) -> tuple[Any, str]:
    fsspec = extra_module("fsspec", extra="remote", purpose=f"the URL {url}")
    try:
        system, path = fsspec.core.url_to_fs(url)
        return system, str(path)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{url} cannot be opened: {error}", hint="install the fsspec package for such URLs") from error


def extra_module(name: str, *, extra: str, purpose: str) -> Any:
    """The module `name` of an optional dependency.

    Raises:
        UsageError: it is not installed; the hint names the extra of graphprobe that brings it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"{purpose} needs the package {name.partition('.')[0]}, which is not installed ({error})",
            hint=f"pip install 'graphprobe[{extra}]'",
        ) from error


def open_dump(path: str | os.PathLike[str], *, data_dir: str | os.PathLike[str] | None = None) -> CallDump:
    """Open a dump of any known format, and read its calls and their values as a stream.

    Args:
        path: a folder that `graphprobe run --dump` or `graphprobe.dump` wrote; a run, or a folder of runs, with one
            dump in it; one of compiled graphs, in TorchAir's layout, or anything in it, down to the file of one op; an
            index of `graphprobe merge`; a folder or dump.json of msprobe; the .pkl text of ptdbg. An fsspec URL
            (`s3://…`) is copied to a temporary folder first.
        data_dir: of a ptdbg dump, the folder of its values; found beside the text if None.

    Returns:
        the CallDump; of compiled graphs a GraphCalls, whose `ops()` has what such a dump knows beyond calls.

    Raises:
        RunNotFoundError: nothing is there.
        UsageError: something is there, and it is no dump that can be read; the message says what was expected.
        SchemaError: it was written by a newer graphprobe.
    """
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"open_dump({path!r:.80}): it takes a path")
    if is_remote(str(path)):
        dump = open_dump(local_copy(str(path)))
        dump.title = str(path)
        return dump
    place = Path(path)
    if data_dir is not None and not Path(data_dir).is_dir():
        raise UsageError(f"there is no folder of values at {data_dir}")
    opened = _opened(place, data_dir)
    if data_dir is not None and opened.format != "ptdbg":
        raise UsageError(f"{place} is no text of ptdbg, and has its values with it, not in {data_dir}")
    return opened


def _opened(place: Path, data_dir: str | os.PathLike[str] | None) -> CallDump:
    if not place.exists():
        raise RunNotFoundError(f"there is no dump {place}", hint=f"expected {EXPECTED}")
    if not place.is_dir() and not place.is_file():
        raise UsageError(f"{place} is neither a folder nor a file", hint=f"expected {EXPECTED}")
    if place.is_file():
        return _open_file(place, data_dir)
    if (place / MERGED).is_file():
        return _merged(place / MERGED)
    if _msprobe_below(place):
        return MsprobeDump(place)
    if finds_one(open_api_dump, place):
        return open_api_dump(place)
    texts = sorted(p for p in place.glob("*.pkl") if _begins_with(p, b"["))
    if len(texts) == 1:
        return _open_file(texts[0], data_dir)
    found = dumps_of_runs(place)
    if not found and finds_one(open_graphs, place):
        return open_graphs(place)
    if len(found) == 1:
        return open_dump(found[0])
    if found:
        names = ", ".join(map(str, found[:MOST_NAMED])) + (", …" if len(found) > MOST_NAMED else "")
        raise UsageError(
            f"{place} holds {len(found)} dumps: {names}", hint="name one; those of several ranks: graphprobe merge"
        )
    raise UsageError(f"{place} is no dump that can be read", hint=f"expected {EXPECTED}")


def dumps_of_runs(place: Path) -> list[Path]:
    """The dumps that lie in a run, or in the runs right under a folder, the oldest run first."""
    try:
        runs = Run.find_all(place) or [Run.open(place)]
    except GraphprobeError:
        return []
    folders = [folder for one in runs if one.has_events for folder in sorted(one.run_dir.iterdir()) if folder.is_dir()]
    return [folder for folder in folders if finds_one(open_api_dump, folder) or finds_one(open_graphs, folder)]


def _open_file(place: Path, data_dir: str | os.PathLike[str] | None) -> CallDump:
    if place.name == MERGED:
        return _merged(place)
    if place.name == STATS or is_op_file(place):
        return open_graphs(place)
    if _begins_with(place, b"["):
        return PtdbgDump(place, data_dir=None if data_dir is None else Path(data_dir))
    if place.suffix == ".json" and _begins_with(place, b"{"):
        return MsprobeDump(place)
    if _begins_with(place, b"\x80"):
        raise UsageError(
            f"{place} is a pickle, which is not opened: it may run any code",
            hint="the .pkl of ptdbg is text in spite of its name, one JSON list a line",
        )
    raise UsageError(f"{place} is no dump that can be read", hint=f"expected {EXPECTED}")


def _merged(place: Path) -> CallDump:
    again = "write it again with `graphprobe merge`"
    try:
        document = json.loads(read_file(place))
        folders = {int(rank): place.parent / str(folder) for rank, folder in document["ranks"].items()}
        indexes = [folder for folder in folders.values() if folder.name == MERGED or (folder / MERGED).is_file()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{place} is no index of ranks: {error}", hint=again) from error
    if indexes:
        raise UsageError(f"{place} names another index of ranks, {indexes[0]}, and not the dump of a rank", hint=again)
    opened: dict[int, CallDump] = {}
    for rank, folder in folders.items():
        try:
            opened[rank] = open_dump(folder)
        except GraphprobeError as error:
            raise UsageError(f"{place}, rank {rank}: {error}", hint=error.hint or again) from error
    return MergedDump(str(place), opened)


def _msprobe_below(folder: Path, levels: int = 2) -> bool:
    """Whether `dump.json` lies here or below folders called `step…`, and `rank…` or, without a rank, `proc…`."""
    if (here := (folder / "dump.json").is_file()) or not levels:
        return here
    below = (child for child in sorted(folder.iterdir()) if child.is_dir() and _STEP_OR_RANK.match(child.name))
    return any(_msprobe_below(child, levels - 1) for child in below)


def _begins_with(path: Path, mark: bytes) -> bool:
    with open_file(path) as file:
        return file.read(256).lstrip()[: len(mark)] == mark
