"""What `--logs` asks for: components with levels, and artifacts, by names from torch's list, read without torch."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import logging
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from graphprobe.errors import UsageError
from graphprobe.internals.names import require

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
    found = None if REGISTRY[0] in sys.modules else _from_source()
    found = found if found is not None else _from_torch()
    components = dict(found.components)
    for name, loggers in OWN.items():
        components[name] = (*components.get(name, ()), *loggers)
    return LogNames(components, found.artifacts)


def torch_folder() -> Path | None:
    """Where torch lies, without importing it; None when it is not installed."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent


def is_torch_module(name: str) -> bool:
    """Whether `torch.a.b` is a module of the installed torch; nothing is imported."""
    folder = torch_folder()
    first, *rest = name.split(".")
    if folder is None or first != "torch" or not all(part.isidentifier() for part in rest):
        return False
    path = folder.joinpath(*rest)
    return path.is_dir() or path.with_suffix(".py").is_file()


def _from_source() -> LogNames | None:
    """None when the file is not there, or says it in another way than by literals."""
    folder = torch_folder()
    if folder is None:
        return None
    try:
        tree = ast.parse((folder / REGISTRATIONS).read_text("utf-8"))
        return _names_in(tree)
    except (OSError, SyntaxError, ValueError, KeyError):
        return None


def _names_in(tree: ast.Module) -> LogNames | None:
    constants: dict[str, Any] = {}
    components: dict[str, tuple[str, ...]] = {}
    artifacts: dict[str, bool] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            constants[statement.targets[0].id] = _value(statement.value, constants)
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        arguments = [_value(argument, constants) for argument in call.args]
        options = {keyword.arg: _value(keyword.value, constants) for keyword in call.keywords}
        if call.func.id == "register_log":
            loggers = arguments[1]
            components[arguments[0]] = (loggers,) if isinstance(loggers, str) else tuple(loggers)
        elif call.func.id == "register_artifact":
            artifacts[arguments[0]] = not options.get("off_by_default", False)
    return LogNames(components, artifacts) if components and artifacts else None


def _value(node: ast.expr, constants: dict[str, Any]) -> Any:
    """A literal, with names of constants and `*names` in it."""
    if isinstance(node, ast.Name):
        return constants[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        found: list[Any] = []
        for item in node.elts:
            if isinstance(item, ast.Starred):
                found.extend(_value(item.value, constants))
            else:
                found.append(_value(item, constants))
        return found
    return ast.literal_eval(node)


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
