"""Where saved values go: into a dump that is open, else into a folder of this process, in the same format."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import Counter
from pathlib import Path
from weakref import WeakKeyDictionary

import torch

from graphprobe.errors import UsageError
from graphprobe.probe import environment
from graphprobe.probe.dump.sessions import open_sessions
from graphprobe.probe.dump.tensors import device_index, dump_value, is_capturing, stream_of
from graphprobe.settings import resolve
from graphprobe.store.dump_records import DumpManifest, OpInfo, Place
from graphprobe.store.dump_writer import DumpWriter

FOLDER = "graphprobe-saved"
VARIABLE = "GRAPHPROBE_SAVED"
OFF = ("off", "0", "no", "false")
MODEL = "saved"
"""What stands in the place of a model's name in a record."""

logger = logging.getLogger("graphprobe")


class _Switch:
    """Read by Dynamo while it traces, which guards on it: when it changes, what uses `save` is compiled anew."""

    def __init__(self) -> None:
        self.off = False


switch = _Switch()


class _Saved:
    """The folder of this process, made with the first value. One instance a process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.folder: Path | None = None
        self.writer: DumpWriter | None = None
        self.last: DumpWriter | None = None
        self.counts: WeakKeyDictionary[DumpWriter, Counter[str]] = WeakKeyDictionary()
        self.said: set[str] = set()
        self.closes_at_exit = False

    def begin_in_child(self) -> None:
        """After a fork: another thread of the parent may hold the lock for ever, and the writer is the parent's."""
        self.lock = threading.RLock()
        self.writer, self.last = None, None


_saved = _Saved()
os.register_at_fork(after_in_child=lambda: _saved.begin_in_child())


def save_to(folder: str | os.PathLike[str] | None) -> None:
    """Save to a new dump under `folder` from now on, which is made if need be; None: save nothing.

    Until this is called, `GRAPHPROBE_SAVED` in the environment says where to, or `off`; without it values go into the
    dump that is open (`dump_config.enable_dump`), or else under `graphprobe-saved` in the working directory.

    With None, code that is compiled from then on holds nothing of `save`, and costs what it would without; what was
    compiled before is compiled again at its next call.

    Raises:
        UsageError: no folder can be made there.
    """
    with _saved.lock:
        if folder is not None:
            path = Path(folder).absolute()
            _make(path)
            _saved.folder = path
        switch.off = folder is None
        _close()
        _saved.writer = None


def flush() -> Path | None:
    """Wait until everything saved so far is on disk; the folder it is in, None when nothing was saved."""
    writer = _saved.last
    if writer is None:
        return None
    writer.flush()
    return writer.time_dir


def keep(t: torch.Tensor, name: str, *, compiled: bool, gradient: bool, source: str) -> None:
    """Hand a value to the writer; a copy is taken before this returns."""
    if switch.off:
        return
    found = _writer()
    if found is None:
        return
    writer, stats = found
    if is_capturing():
        writer.missing("work was being captured into a CUDA graph", name=name)
        return
    if not writer.accepts:
        writer.missing("the dump has ended", name=name)
        return
    with _saved.lock:
        counts = _saved.counts.setdefault(writer, Counter())
        index, counts[name] = counts[name], counts[name] + 1
    op = OpInfo(
        op_type="save",
        op_name=name,
        engine="eager",
        perturbs=compiled,
        target="graphprobe.save.default",
        source=source,
        direction="backward" if gradient else None,
    )
    place = Place(model_name=MODEL, model_id=0, data_index=index, device_id=device_index((t,)))
    value = dump_value("output.0", "output", t, stats=stats, pool=writer.pool)
    writer.submit(op, place, (value,), stream_id=stream_of(t))


def failed(what: str, error: BaseException) -> None:
    """The program goes on without it; said once for each cause."""
    text = f"{type(error).__name__}: {error}"
    with _saved.lock:
        new = text not in _saved.said
        _saved.said.add(text)
    if new:
        logger.error("graphprobe.ops: %s failed: %s", what, text)
    writer = _saved.last
    if writer is not None:
        writer.missing(text, name=what)


def _writer() -> tuple[DumpWriter, bool] | None:
    """The writer for a value that is saved now, and whether it takes statistics instead; None: saving is off."""
    with _saved.lock:
        folder = _saved.folder
        if folder is None:
            wanted = os.environ.get(VARIABLE, "")
            if wanted.lower() in OFF:
                switch.off = True
                return None
            if not wanted:
                sessions = open_sessions()
                if sessions:
                    _saved.last = sessions[-1].writer()
                    return _saved.last, sessions[-1].plan.data == "stats"
            folder = Path(wanted or FOLDER).absolute()
        if _saved.writer is None:
            _make(folder)
            most = resolve(arguments={}, environ=os.environ).max_bytes or 1
            _saved.writer = DumpWriter.create(folder, manifest=_manifest(folder), max_bytes=most)
            logger.warning("graphprobe.ops.save writes to %s", _saved.writer.time_dir)
            if not _saved.closes_at_exit:
                atexit.register(_close)
                _saved.closes_at_exit = True
        _saved.last = _saved.writer
        return _saved.writer, False


def _close() -> None:
    if _saved.writer is not None:
        _saved.writer.close()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"values cannot be saved under {folder}: {error.strerror}", hint="name a folder that can be made"
        ) from error


def _manifest(folder: Path) -> DumpManifest:
    run = environment.manifest_of_rank(os.environ)
    return DumpManifest.of(run, engine="eager", plan={"saved_by": "graphprobe.ops.save", "path": str(folder)})
