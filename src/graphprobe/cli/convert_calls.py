"""`graphprobe convert --to msprobe` and `--to ptdbg`: a dump of calls in the layout of another tool."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from graphprobe.errors import UsageError
from graphprobe.store.files import check_replaced

if TYPE_CHECKING:
    from graphprobe.store.calls import CallDump

T = TypeVar("T")

LAYOUTS = ("msprobe", "ptdbg")
"""What `--to` takes besides the formats of single files."""


def export(dump: Path, layout: str, out: Path | None, *, force: bool) -> tuple[Path, list[str]]:
    """Write the dump at `dump` to `out`, and tell where and what was left out.

    Args:
        dump: in any format that `graphprobe compare` reads.
        layout: one of `LAYOUTS`.
        out: a folder for `msprobe`, the `.pkl` text for `ptdbg`, beside which the folder of values is made.
        force: files that exist are overwritten.

    Raises:
        UsageError: `out` cannot be used, or there is no dump.
    """
    from graphprobe.compare.open import open_dump
    from graphprobe.store.foreign.msprobe_write import write_msprobe
    from graphprobe.store.foreign.ptdbg_write import write_ptdbg

    what = "a new folder" if layout == "msprobe" else "a new .pkl file"
    if out is None:
        raise UsageError(f"--to {layout} needs --out", hint=f"name {what}")
    source, target = dump.resolve(), out.resolve()
    if source == target or source in target.parents or target in source.parents:
        raise UsageError(f"--out {out} and {dump} lie one in the other", hint=f"name {what} elsewhere")
    if layout == "msprobe":
        if out.exists() and not out.is_dir():
            raise UsageError(f"--out {out} is a file", hint=f"name {what}")
        if not force and out.is_dir() and any(out.iterdir()):
            raise UsageError(f"--out {out} is not empty", hint=f"pass --force to overwrite, or name {what}")
        opened = open_dump(dump)
        return out, list(_whole([out], lambda: write_msprobe(opened, out, overwrite=force)))
    if not target.parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {target.parent}", hint="make it first")
    if out.is_dir() or out.suffix != ".pkl":
        raise UsageError(f"--out {out}: expected a file name that ends with .pkl", hint=f"name {what}")
    if out.exists() and not force:
        raise UsageError(f"--out {out} exists already", hint="pass --force to overwrite it, or name another file")
    check_replaced(out, f"--out {out}", b"[[", b'["')
    opened = open_dump(dump)
    _whole([out], lambda: write_ptdbg(opened, out, stacks=True))
    return out, _left_by_ptdbg(opened)


def _whole(places: Sequence[Path], write: Callable[[], T]) -> T:
    """`write()`; when it fails, what it made at or in `places` is removed, and the error names the first."""
    before = {path for folder in places if folder.exists() for path in (folder, *_inside(folder))}
    try:
        return write()
    except BaseException as error:
        for folder in places:
            for path in _inside(folder) if folder in before else [folder]:
                if path not in before and path.is_dir():
                    shutil.rmtree(path)
                elif path not in before:
                    path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(places[0])) from error
        raise


def _inside(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _left_by_ptdbg(dump: CallDump) -> list[str]:
    """What `write_ptdbg` left out of a dump: it writes the calls of APIs in the first step of the first rank."""
    rank, *ranks = dump.ranks()
    step, *steps = dump.steps(rank)
    kinds = Counter(call.kind for call in dump.calls(rank, step) if call.kind != "api")
    left = [f"calls of kind {kind}: {count}" for kind, count in kinds.items()]
    places = [f"rank {other}" for other in ranks] + [f"step {other}" for other in steps]
    if places:
        left.append(f"{', '.join(places)}: a text holds one step of one rank; convert the folder of that step alone")
    return left
