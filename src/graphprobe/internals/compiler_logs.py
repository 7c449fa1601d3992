"""Reads what `--logs` asks for, without torch, and takes torch's logs into the run; the user's own stay the same."""

from __future__ import annotations

import ast
import contextlib
import copy
import difflib
import functools
import importlib.util
import logging
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from graphprobe.errors import UsageError
from graphprobe.internals.bus import Patch, PatchSet
from graphprobe.internals.names import require
from graphprobe.internals.unseen import unseen

REGISTRATIONS = "_logging/_registrations.py"
REGISTRY = ("torch._logging._internal", "log_registry")

OWN = {"aot": ("torch._functorch",), "fx": ("torch.fx",)}
"""Loggers that a component has here beyond torch's list: the partitioner logs outside `aot_autograd`, and FX has no
name."""

LEVELS = {
    "verbose": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
"""`verbose` is DEBUG with the whole traceback of every error."""

USUAL = ("dynamo", "aot", "inductor", "fx")
"""The components that a level without a name is for."""

_SIGNS = {"+": "debug", "-": "error"}
_TOKEN = re.compile(r"([+-]?)([\w.]+)(?:=(\w+))?", re.ASCII)
_GRAMMAR = "write it as info, debug, verbose, NAME=LEVEL or +NAME, with commas between, e.g. dynamo=debug,+graph_breaks"

LOGGERS = ("graphprobe", "torch._dynamo", "torch._functorch", "torch._inductor", "torch.fx.experimental")
LINE = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(filename)s:%(lineno)d] %(message)s")
ARTIFACTS = "torch._logging._internal"
BREAKS = "graph_breaks"
"""The one artifact whose records carry a traceback; torch shows it only when it is verbose."""


class LogNames(msgspec.Struct, frozen=True):
    """What can be asked for.

    Attributes:
        components: name -> the loggers it stands for, e.g. `dynamo` -> `("torch._dynamo", ...)`.
        artifacts: name -> whether a component at DEBUG brings it along (torch calls the others "off by default").
    """

    components: dict[str, tuple[str, ...]]
    artifacts: dict[str, bool]

    def all(self) -> list[str]:
        """Every name, components first."""
        return [*self.components, *self.artifacts]


def known_names() -> LogNames:
    """The names of the installed torch.

    They are read from torch's source: a program may set torch's environment before it imports torch, and that must
    still work. Where the source does not say, torch is imported and asked.

    Raises:
        UnsupportedTorchError: this torch has no such list.
    """
    found = (None if REGISTRY[0] in sys.modules else _from_source()) or _from_torch()
    more = {name: (*found.components.get(name, ()), *loggers) for name, loggers in OWN.items()}
    return LogNames(found.components | more, found.artifacts)


def torch_folder() -> Path | None:
    """Where torch lies, without importing it; None when it is not installed."""
    spec = importlib.util.find_spec("torch")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def is_torch_module(name: str) -> bool:
    """Whether `torch.a.b` is a module of the installed torch; nothing is imported."""
    folder = torch_folder()
    first, *rest = name.split(".")
    if folder is None or first != "torch" or not all(part.isidentifier() for part in rest):
        return False
    path = folder.joinpath(*rest)
    return path.is_dir() or path.with_suffix(".py").is_file()


def _from_source() -> LogNames | None:
    """What torch's file registers, run alone; None when it is not there, or needs more of torch than the two calls."""
    folder = torch_folder()
    if folder is None:
        return None
    components: dict[str, tuple[str, ...]] = {}
    artifacts: dict[str, bool] = {}

    def register_log(name: str, loggers: str | Sequence[str]) -> None:
        components[name] = (loggers,) if isinstance(loggers, str) else tuple(loggers)

    def register_artifact(name: str, *_: Any, off_by_default: bool = False, **__: Any) -> None:
        artifacts[name] = not off_by_default

    try:
        tree = ast.parse((folder / REGISTRATIONS).read_text("utf-8"))
        tree.body = [statement for statement in tree.body if not isinstance(statement, ast.ImportFrom)]
        code = compile(tree, REGISTRATIONS, "exec")
        exec(code, {"register_log": register_log, "register_artifact": register_artifact})
    except Exception:
        return None
    return LogNames(components, artifacts) if components and artifacts else None


def _from_torch() -> LogNames:
    registry = require(*REGISTRY, purpose="--logs")
    off = registry.off_by_default_artifact_names
    return LogNames(
        {name: tuple(loggers) for name, loggers in registry.log_alias_to_log_qnames.items()},
        {name: name not in off for name in sorted(registry.artifact_names)},
    )


class Route(msgspec.Struct, frozen=True):
    """One component's file.

    Attributes:
        name: the component, and the name of its file.
        loggers: the loggers whose lines, and those below them, it gets.
        level: the lowest level that is kept.
        verbose: whether tracebacks and stacks are kept whole.
    """

    name: str
    loggers: tuple[str, ...]
    level: int
    verbose: bool = False


class LogsPlan(msgspec.Struct, frozen=True):
    """All files. `artifacts` are named ones; `along` are those that torch shows with a component at DEBUG."""

    routes: tuple[Route, ...] = ()
    artifacts: frozenset[str] = frozenset()
    along: frozenset[str] = frozenset()

    @property
    def verbose(self) -> bool:
        """Whether any component keeps whole tracebacks."""
        return any(route.verbose for route in self.routes)


def plan_from_text(text: str | None) -> LogsPlan:
    """The plan for the setting `logs`; an empty one for None.

    Raises:
        UsageError: a name or a level that does not exist (the nearest is named), or two levels for one component.
    """
    if text is None:
        return LogsPlan()
    names = known_names()
    levels: dict[str, str] = {}
    general: dict[str, str] = {}
    artifacts: set[str] = set()
    for token in text.split(","):
        name, level = _read(token.strip(), text, names)
        if level is None:
            artifacts.add(name)
            continue
        given = levels if name else general
        for one in (name,) if name else USUAL:
            if given.setdefault(one, level) != level:
                raise UsageError(f"--logs {text}: {one} has two levels, {given[one]} and {level}")
    levels = general | levels
    routes = tuple(
        Route(name, names.components.get(name, (name,)), LEVELS[level], level == "verbose")
        for name, level in levels.items()
    )
    debug = any(route.level <= logging.DEBUG for route in routes)
    along = frozenset(name for name, brought in names.artifacts.items() if brought and debug)
    return LogsPlan(routes, frozenset(artifacts), along)


def _read(token: str, text: str, names: LogNames) -> tuple[str, str | None]:
    """`(name, level)` of one piece; level None for an artifact, an empty name for a level of all usual components."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        what = f"{token!r} is no setting" if token else "there is nothing between two commas"
        raise UsageError(f"--logs {text}: {what}", hint=_GRAMMAR)
    sign, name, level = match.groups()
    if level is not None and (level not in LEVELS or sign):
        why = f"{level!r} is no level" if level not in LEVELS else f"{sign} and ={level} are two ways to say one thing"
        raise UsageError(f"--logs {text}: {why}", hint=_nearest(level, list(LEVELS), "levels"))
    if not sign and level is None and name in LEVELS:
        return "", name
    if name in names.artifacts:
        if level is not None or sign == "-":
            raise UsageError(f"--logs {text}: {name} is an artifact, which is on or not asked for", hint=f"+{name}")
        return name, None
    name = "torch" if name == "all" else name
    if name not in names.components and not is_torch_module(name):
        hint = _nearest(name, [*names.all(), *LEVELS], "names")
        raise UsageError(f"--logs {text}: torch has no log named {name!r}", hint=hint)
    return name, level or _SIGNS.get(sign, "info")


def _nearest(name: str, known: list[str], what: str) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"nearest: {', '.join(near)}" if near else f"known {what}: {', '.join(known)}"


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
        self._hearing = functools.cache(self._find_hearing)
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
        for name, logger in _artifact_loggers() if self._plan.artifacts or self._plan.along else ():
            self._open_artifact(name, logger)
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
                    self._sink(record.name, _line(record))
                if heard.routes or heard.asked:
                    self._tell_files(record, heard)
                if hidden:
                    return
            with unseen:
                original(logger, record)

        return handle

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
        message = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
        return f"{record.levelname} {record.name} {record.filename}:{record.lineno}] {message} ({error!r})"


def _file_line(record: logging.LogRecord, artifact: str | None, *, verbose: bool) -> str:
    """With the compile's id; `verbose` adds where in torch the line comes from, where something went wrong."""
    line = copy.copy(record)
    if artifact == BREAKS and not verbose:
        line.exc_info, line.exc_text = None, None
    if verbose and line.stack_info is None and (line.exc_info or line.levelno >= logging.WARNING or artifact == BREAKS):
        line.stack_info = "Stack (most recent call last):\n" + "".join(_stack()).rstrip()
    compile_id = _compile_id()
    if compile_id is not None:
        with contextlib.suppress(Exception):  # told by `_line`
            line.msg, line.args = f"[{compile_id}] {record.getMessage()}", ()
    return _line(line)


def _stack() -> list[str]:
    """The stack down to the call of the logger."""
    frames = traceback.extract_stack()
    while frames and (frames[-1].filename == __file__ or frames[-1].filename == logging.__file__):
        frames.pop()
    return frames.format()


def _compile_id() -> str | None:
    guards: Any = sys.modules.get("torch._guards")
    if guards is not None:
        with contextlib.suppress(Exception):  # a line without it is a line all the same
            found = guards.CompileContext.current_trace_id()
            return None if found is None else str(found)
    return None
