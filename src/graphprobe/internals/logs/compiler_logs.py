"""torch's compiler logs into the run, without changing what the user sees of them."""

from __future__ import annotations

import copy
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from graphprobe.internals.bus import Patch, PatchSet
from graphprobe.internals.logs.log_plan import LogsPlan, Route
from graphprobe.internals.unseen import unseen

LOGGERS = ("graphprobe", "torch._dynamo", "torch._functorch", "torch._inductor", "torch.fx.experimental")
LINE = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(filename)s:%(lineno)d] %(message)s")
ARTIFACTS = "torch._logging._internal"
BREAKS = "graph_breaks"
"""The one artifact whose records carry a traceback; torch shows it only when it is verbose."""


class _Lowered(int):
    """A logger's level as set here: known by identity, even where the program sets the same number."""


class _Heard(msgspec.Struct, frozen=True):
    """Who hears a logger: the main log, and files of their own."""

    main: bool
    routes: tuple[Route, ...] = ()
    artifact: str | None = None
    asked: bool = False


_NOBODY = _Heard(False)


class _Configuring(threading.local):
    """Whether this thread sets up an artifact's logger, which is to be as the program wants it."""

    on = False


class CompilerLogs:
    """Listens to torch's compiler loggers at `level`; `start` and `stop` leave the loggers as they were.

    The level of some loggers is lowered, so that their records come into being. A record that would not exist without
    that is taken out in `Logger.handle`, before any filter or handler: whatever handlers the program has or adds later,
    they see what they would have seen. A level that the program sets meanwhile stays, and decides from then on.
    """

    def __init__(
        self,
        level: int,
        sink: Callable[[str, str], None],
        *,
        plan: LogsPlan | None = None,
        file_sink: Callable[[str, str], None] = lambda name, line: None,
    ) -> None:
        """Args:
        sink: gets a logger's name and a line without newline for every record at `level` or above.
        plan: components and artifacts that have files of their own.
        file_sink: gets the name of such a file and a line for it, which may have newlines inside.
        """
        self._level = level
        self._sink = sink
        self._plan = LogsPlan() if plan is None else plan
        self._file_sink = file_sink
        self._patches = PatchSet()
        self._lowered: dict[str, tuple[int, _Lowered]] = {}
        self._heard: dict[str, _Heard] = {}
        self._on = False
        self._configuring_now = _Configuring()

    def start(self) -> None:
        """Listen; again where the program has raised a level since. Cheap when there is nothing to do."""
        for name, level in self._wanted().items():
            logger = logging.getLogger(name)
            before = logger.getEffectiveLevel()
            if before > level:
                self._keep_artifacts_off(name)
                self._lower(logger, level)
        if not self._patches.addresses:
            self._patches.apply(logging, Patch("logs", "logging", "Logger.handle", self._listening))
        internal = sys.modules.get(ARTIFACTS)
        if internal is not None and len(self._patches.addresses) == 1:
            self._patches.apply(internal, Patch("logs", ARTIFACTS, "configure_artifact_log", self._configuring))
            self._patches.apply(internal, Patch("logs", ARTIFACTS, "LogState.is_artifact_enabled", self._enabling))
        self._open_artifacts()
        self._on = True

    def stop(self) -> None:
        self._on = False
        self._patches.undo()
        for name, (level, lowered) in reversed(self._lowered.items()):
            logger = logging.getLogger(name)
            if logger.level is lowered:
                logger.setLevel(level)
        self._lowered.clear()

    def _wanted(self) -> dict[str, int]:
        """The level that each logger is to have, outermost first."""
        wanted = dict.fromkeys(LOGGERS, self._level)
        for route in self._plan.routes:
            for name in route.loggers:
                wanted[name] = min(route.level, wanted.get(name, route.level))
        return dict(sorted(wanted.items()))

    def _lower(self, logger: logging.Logger, level: int) -> None:
        lowered = _Lowered(level)
        before = self._lowered.get(logger.name)
        # Lowered twice, as a logger between a family and its artifact may be, it goes back to what it was at first.
        kept = before[0] if before is not None and logger.level is before[1] else logger.level
        self._lowered[logger.name] = (kept, lowered)
        logger.setLevel(lowered)

    def _keep_artifacts_off(self, name: str) -> None:
        """torch's artifact loggers (`…__graph_code`) print whole graphs; they stay off unless the user has them on."""
        for child, logger in _artifact_loggers():
            if logger.level == logging.NOTSET and child.startswith(name + "."):
                # Its level may come from a logger between the two, for which the user has set one.
                self._lower(logger, logger.getEffectiveLevel())

    def _open_artifacts(self) -> None:
        if not (self._plan.artifacts or self._plan.along):
            return
        for name, logger in _artifact_loggers():
            self._open_artifact(name, logger)

    def _open_artifact(self, name: str, logger: logging.Logger) -> None:
        if self._hearing(name).asked and logger.getEffectiveLevel() > logging.DEBUG:
            self._lower(logger, logging.DEBUG)

    def _configuring(self, original: Callable[[logging.Logger], None]) -> Callable[..., None]:
        """Artifact loggers that come into being while we listen: Inductor is imported within the first compile."""

        def configure_artifact_log(log: logging.Logger) -> None:
            self._configuring_now.on = True
            try:
                original(log)
            finally:
                self._configuring_now.on = False
            if not self._on:
                return
            if log.level == logging.NOTSET:
                self._lower(log, self._level_without_us(log))
            self._open_artifact(log.name, log)

        return configure_artifact_log

    def _enabling(self, original: Callable[[Any, str], bool]) -> Callable[[Any, str], bool]:
        """Some code asks torch's log state, not the logger, whether to log: `recompiles`, `bytecode`."""

        def is_artifact_enabled(state: Any, name: str) -> bool:
            if original(state, name):
                return True
            return self._on and not self._configuring_now.on and name in self._plan.artifacts

        return is_artifact_enabled

    def _listening(self, original: Callable[[logging.Logger, logging.LogRecord], None]) -> Callable[..., None]:
        def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
            heard = self._hearing(logger.name)
            if heard is not _NOBODY and self._on and not logger.disabled:
                hidden = record.levelno < self._level_without_us(logger)
                if heard.main and record.levelno >= self._level and not (hidden and heard.artifact is not None):
                    self._tell(record)
                if heard.routes or heard.asked:
                    self._tell_files(record, heard)
                if hidden:
                    return
            with unseen:
                original(logger, record)

        return handle

    def _hearing(self, name: str) -> _Heard:
        heard = self._heard.get(name)
        if heard is None:
            heard = self._heard[name] = self._find_hearing(name)
        return heard

    def _find_hearing(self, name: str) -> _Heard:
        main = any(_below(name, family) for family in LOGGERS)
        last = name.rpartition(".")[2]
        artifact = last[2:] if last.startswith("__") else None
        # The nearest component above the logger; torch has loggers that belong to two, e.g. to dynamo and to dynamic.
        found = [(len(at), route) for route in self._plan.routes for at in route.loggers if _below(name, at)]
        nearest = max((length for length, _ in found), default=0)
        routes = tuple({route.name: route for length, route in found if length == nearest}.values())
        if artifact is None:
            return _Heard(main, routes) if main or routes else _NOBODY
        brought = artifact in self._plan.along and any(route.level <= logging.DEBUG for route in routes)
        asked = artifact in self._plan.artifacts or brought
        return _Heard(main, (), artifact, asked) if main or asked else _NOBODY

    def _level_without_us(self, logger: logging.Logger) -> int:
        current: logging.Logger | None = logger
        while current is not None:
            level: int = current.level
            before, lowered = self._lowered.get(current.name, (level, None))
            if level is lowered:
                level = before
            if level != logging.NOTSET:
                return level
            current = current.parent
        return logging.NOTSET

    def _tell(self, record: logging.LogRecord) -> None:
        self._sink(record.name, _line(record))

    def _tell_files(self, record: logging.LogRecord, heard: _Heard) -> None:
        if heard.artifact is not None:
            if heard.asked:
                self._file_sink(heard.artifact, _file_line(record, heard.artifact, verbose=self._plan.verbose))
            return
        for route in heard.routes:
            if record.levelno >= route.level:
                self._file_sink(route.name, _file_line(record, None, verbose=route.verbose))


def _artifact_loggers() -> Iterator[tuple[str, logging.Logger]]:
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and name.rpartition(".")[2].startswith("__"):
            yield name, logger


def _below(name: str, family: str) -> bool:
    return name == family or name.startswith(family + ".")


def _line(record: logging.LogRecord) -> str:
    try:
        # A copy: formatting leaves traces in a record, which the program's own formatters would find.
        return LINE.format(copy.copy(record))
    except Exception as error:  # an argument without a text; nobody would have asked it for one
        return f"{record.levelname} {record.name} {record.filename}:{record.lineno}] {_safe(record.msg)} ({error!r})"


def _file_line(record: logging.LogRecord, artifact: str | None, *, verbose: bool) -> str:
    """With the compile's id; `verbose` adds where in torch the line comes from, where something went wrong."""
    line = copy.copy(record)
    if artifact == BREAKS and not verbose:
        line.exc_info, line.exc_text = None, None
    if verbose and line.stack_info is None and (line.exc_info or line.levelno >= logging.WARNING or artifact == BREAKS):
        line.stack_info = "Stack (most recent call last):\n" + "".join(_stack()).rstrip()
    compile_id = _compile_id()
    if compile_id is not None:
        try:
            line.msg, line.args = f"[{compile_id}] {record.getMessage()}", ()
        except Exception:  # told by `_line`
            pass
    return _line(line)


def _stack() -> list[str]:
    """The stack down to the call of the logger."""
    frames = traceback.extract_stack()
    while frames and (frames[-1].filename == __file__ or frames[-1].filename == logging.__file__):
        frames.pop()
    return frames.format()


def _compile_id() -> str | None:
    guards = sys.modules.get("torch._guards")
    current = getattr(getattr(guards, "CompileContext", None), "current_trace_id", None)
    if current is None:
        return None
    try:
        found = current()
    except Exception:  # a line without it is a line all the same
        return None
    return None if found is None else str(found)


def _safe(message: Any) -> str:
    return message if isinstance(message, str) else type(message).__name__
