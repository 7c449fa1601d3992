"""What `--logs` asks for: which component at which level, and which artifacts, each into a file of its own."""

from __future__ import annotations

import difflib
import logging
import re

import msgspec

from graphprobe.errors import UsageError
from graphprobe.internals.logs.registry import LogNames, is_torch_module, known_names

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
