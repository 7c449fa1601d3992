"""Writes down the ways into the compiler beside `torch.compile`: each graph that is made, and what packages hold."""

from __future__ import annotations

import inspect
import zipfile
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from graphprobe.internals.context import Frame
from graphprobe.internals.observer import FrameFacts
from graphprobe.internals.way_taps import WayGraph, Ways
from graphprobe.store import layout

if TYPE_CHECKING:
    from types import FrameType

    from graphprobe.probe.dump.backend import WayDump
    from graphprobe.probe.model import ModelRecorder

TEXTS = (".cpp", ".h", ".py", ".json", ".txt", ".cu")
"""Files of a package that people read."""


class WayRecorder:
    """Records the ways of a session: an `internals.way_taps.WayObserver`."""

    def __init__(self, begin: Callable[[FrameFacts], Any], failed: Callable[[str, str], None]) -> None:
        """`begin`: returns the `ModelRecorder` of a new model; `failed`: called with what is not recorded."""
        self._begin, self._folders = begin, list[str]()
        self._ways = Ways(
            self, own_names, copies=False, origin=lambda: origin_here() if self.dump is not None else None
        )
        self.install, self.remove, self.failed = self._ways.install, self._ways.remove, failed
        self.dump: WayDump | None = None
        """Of a run with a dump of graphs."""

    def way_graph(self, graph: WayGraph, gm: Any) -> None:
        """One more graph: the first is a model of its own."""
        if graph.before is None:
            if self.dump is not None:
                self.dump.begins(graph)
            graph.token = self._begin(_facts(graph))
        else:
            graph.token = graph.before.token
        if graph.token is not None:
            graph.token.trail("traced").graph(gm, phase=graph.kind, made_by=graph.made_by)

    def way_compiles(self, graph: WayGraph) -> Frame | None:
        """What Inductor does belongs to the model."""
        return None if graph.token is None else Frame(graph.token, "forward", "inductor")

    def way_packaged(self, graph: WayGraph, path: str) -> None:
        """The texts of a package, and a list of all that it holds."""
        model: ModelRecorder | None = graph.token
        if model is None or not zipfile.is_zipfile(path):
            return
        number = sum(1 for name in self._folders if name.startswith(f"{model.number}/"))
        folder = "package" if not number else f"package_{number}"
        self._folders.append(f"{model.number}/{folder}")
        listed = []
        for entry, name in _entries(zipfile.Path(path)):
            data = entry.read_bytes()
            listed.append(f"{len(data):>12}  {name}")
            if name.endswith(TEXTS):
                self._write(model, f"{folder}/{PurePosixPath(name).name}", data)
        self._write(model, f"{folder}.txt", "\n".join([f"{path}, bytes and names:", *listed, ""]).encode())

    def way_refused(self, graph: WayGraph, error: BaseException, step: WayGraph | None) -> None:
        """The script ends with it, or has expected it."""

    def way_called(self, graph: WayGraph, called: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Values are the dump's."""

    def way_runs(self, graph: WayGraph, gm: Any) -> Callable[..., Any] | None:
        """A dump runs it node by node."""
        return None if self.dump is None else self.dump.runner(graph, gm, _facts(graph).function or "graph")

    def _write(self, model: ModelRecorder, name: str, data: bytes) -> None:
        file = model.writer.write_bytes(f"{layout.model_folder(model.number)}/{name}", data)
        model.writer.event(where=model.where, kind="note", name=name, file=file)


def _entries(folder: zipfile.Path, before: str = "") -> Iterator[tuple[zipfile.Path, str]]:
    for entry in folder.iterdir():
        name = f"{before}{entry.name}"
        if entry.is_dir():
            yield from _entries(entry, f"{name}/")
        else:
            yield entry, name


def own_names() -> Callable[[FrameType], str | None]:
    """What names a frame's function, if it is of the program."""
    from graphprobe.program_text.sources import own_function  # imports torch

    return own_function()


def origin_here() -> Callable[[], Any]:
    """What returns which lines and module led to the operator that runs now."""
    from graphprobe.probe.dump.single_ops import Origins  # imports torch

    return Origins().here


def _facts(graph: WayGraph) -> FrameFacts:
    fn: Any = inspect.unwrap(graph.traced.fn)
    code = getattr(getattr(type(fn), "forward", fn), "__code__", None)
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    place = (None, None) if code is None else (code.co_filename, code.co_firstlineno)
    return FrameFacts(function=name.replace("<locals>.", ""), file=place[0], line=place[1], made_by=graph.made_by)
