"""torch's compiler logs into the run, without changing what the user sees of them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

from graphprobe.internals.patches import Patch, PatchSet
from graphprobe.internals.unseen import unseen

LOGGERS = ("graphprobe", "torch._dynamo", "torch._functorch", "torch._inductor", "torch.fx.experimental")
LINE = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(filename)s:%(lineno)d] %(message)s")


class _Lowered(int):
    """A logger's level as set here: known by identity, even where the program sets the same number."""


class CompilerLogs:
    """Listens to torch's compiler loggers at `level`; `start` and `stop` leave the loggers as they were.

    The level of five loggers is lowered, so that their records come into being. A record that would not exist without
    that is taken out in `Logger.handle`, before any filter or handler: whatever handlers the program has or adds later,
    they see what they would have seen. A level that the program sets meanwhile stays, and decides from then on.
    """

    def __init__(self, level: int, sink: Callable[[str, str], None]) -> None:
        """`sink` gets a logger's name and a line without newline for every record."""
        self._level = level
        self._sink = sink
        self._patches = PatchSet()
        self._lowered: dict[str, tuple[int, _Lowered]] = {}
        self._on = False

    def start(self) -> None:
        """Listen; again where the program has raised a level since. Cheap when there is nothing to do."""
        for name in LOGGERS:
            logger = logging.getLogger(name)
            before = logger.getEffectiveLevel()
            if before > self._level:
                self._keep_artifacts_off(name)
                self._lower(logger, self._level)
        if not self._patches.addresses:
            self._patches.apply(logging, Patch("logs", "logging", "Logger.handle", self._listening))
        self._on = True

    def stop(self) -> None:
        self._on = False
        self._patches.undo()
        for name, (level, lowered) in reversed(self._lowered.items()):
            logger = logging.getLogger(name)
            if logger.level is lowered:
                logger.setLevel(level)
        self._lowered.clear()

    def _lower(self, logger: logging.Logger, level: int) -> None:
        lowered = _Lowered(level)
        self._lowered[logger.name] = (logger.level, lowered)
        logger.setLevel(lowered)

    def _keep_artifacts_off(self, name: str) -> None:
        """torch's artifact loggers (`…__graph_code`) print whole graphs; they stay off unless the user has them on."""
        for child, logger in list(logging.root.manager.loggerDict.items()):
            if not isinstance(logger, logging.Logger) or logger.level != logging.NOTSET:
                continue
            if child.startswith(name + ".") and child.rpartition(".")[2].startswith("__"):
                # Its level may come from a logger between the two, for which the user has set one.
                self._lower(logger, logger.getEffectiveLevel())

    def _listening(self, original: Callable[[logging.Logger, logging.LogRecord], None]) -> Callable[..., None]:
        def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
            family = _family(logger.name)
            if family is not None and self._on and not logger.disabled:
                if record.levelno >= self._level:
                    self._tell(record)
                if record.levelno < self._level_without_us(logger, family):
                    return
            with unseen:
                original(logger, record)

        return handle

    def _level_without_us(self, logger: logging.Logger, family: str) -> int:
        current: logging.Logger | None = logger
        while current is not None:
            level: int = current.level
            before, lowered = self._lowered.get(current.name, (level, None))
            if level is lowered:
                level = before
            if level != logging.NOTSET:
                return level
            if current.name == family:
                return logging.NOTSET if current.parent is None else current.parent.getEffectiveLevel()
            current = current.parent
        return logging.NOTSET

    def _tell(self, record: logging.LogRecord) -> None:
        try:
            # A copy: formatting leaves traces in a record, which the program's own formatters would find.
            line = LINE.format(copy.copy(record))
        except Exception as error:  # an argument without a text; nobody would have asked it for one
            line = (
                f"{record.levelname} {record.name} {record.filename}:{record.lineno}] {_safe(record.msg)} ({error!r})"
            )
        self._sink(record.name, line)


def _family(name: str) -> str | None:
    return next((family for family in LOGGERS if name == family or name.startswith(family + ".")), None)


def _safe(message: Any) -> str:
    return message if isinstance(message, str) else type(message).__name__
