"""The text of a backend that a program defines as a function, where that text says all: a repro can then hold it."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

STAND_IN = "eager"
"""What `Case.backend` says where the backend has no name."""

WRAPPERS = ("compiler_fn", "_torchdynamo_orig_backend")
"""Attributes under which torch keeps a function that it wraps."""


@dataclass(frozen=True)
class OwnBackend:
    """A backend of the program.

    Attributes:
        name: of the function.
        text: Python that defines it, with what it imports and calls; needs torch and the standard library.
    """

    name: str
    text: str

    def make(self) -> Callable[..., Any]:
        """The backend, anew from its text."""
        defined: dict[str, Any] = {"__name__": f"own_backend_{self.name}"}
        exec(compile(self.text, f"<{self.name}>", "exec"), defined)
        made: Callable[..., Any] = defined[self.name]
        return made


def own_backend(backend: Callable[..., Any]) -> OwnBackend | None:
    """The text of a backend; None where it is no plain function, or uses what a text cannot define.

    It may use modules of torch and of the standard library, what those export, plain constants of its module, and
    functions for which the same holds.
    """
    function: Any = backend
    while not isinstance(function, FunctionType):
        inner = next((getattr(function, name) for name in WRAPPERS if hasattr(function, name)), None)
        if inner is None or inner is function:
            return None
        function = inner
    parts = _Parts()
    if not parts.add(function):
        return None
    lines = [*sorted(parts.imports), *parts.constants]
    return OwnBackend(function.__name__, "\n\n\n".join(filter(None, ["\n".join(lines), *parts.functions])) + "\n")


class _Parts:
    """What is collected for the text: import lines, constants, functions, in the order in which they are needed."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.constants: list[str] = []
        self.functions: list[str] = []
        self._seen: dict[str, Any] = {}

    def add(self, function: FunctionType) -> bool:
        """Take in a function and what it needs; False where that cannot be done."""
        name = function.__name__
        if name in self._seen:
            return self._seen[name] is function
        self._seen[name] = function
        text = _definition(function)
        if text is None or not all(map(_plain, _defaults(function))) or not self._add_closure(function, text):
            return False
        for used in sorted({*_names(function.__code__), *_names_of_defaults(text)} & set(function.__globals__)):
            if used != name and not self._add_global(used, function.__globals__[used]):
                return False
        self.functions.append(text)
        return True

    def _add_closure(self, function: FunctionType, text: str) -> bool:
        """What it takes from the functions around it becomes global, unless it gives that another value."""
        if any(isinstance(node, ast.Nonlocal) for node in ast.walk(ast.parse(text))):
            return False
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # nothing has been put there yet
                return False
            if value is not function and not self._add_global(name, value):
                return False
        return True

    def _add_global(self, name: str, value: Any) -> bool:
        if isinstance(value, FunctionType) and not _common(value.__module__):
            return value.__name__ == name and self.add(value)
        if self._seen.setdefault(name, value) is not value:
            return False
        if isinstance(value, ModuleType):
            self.imports.add(f"import {value.__name__} as {name}")
            return _common(value.__name__)
        module = getattr(value, "__module__", None)
        if module is not None and _common(module) and getattr(sys.modules.get(module), name, None) is value:
            self.imports.add(f"from {module} import {name}")
            return True
        if _plain(value):
            line = f"{name} = {value!r}"
            self.constants += [] if line in self.constants else [line]
            return True
        return False


def _definition(function: FunctionType) -> str | None:
    """Its `def`, without indentation; None where there is no such text, or it is decorated."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
        (statement,) = ast.parse(text).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    plain = isinstance(statement, ast.FunctionDef) and statement.name == function.__name__
    return text.rstrip() if plain and not statement.decorator_list else None  # type: ignore[attr-defined]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _names_of_defaults(text: str) -> Iterator[str]:
    """Names in the values of its arguments, which are computed where it is defined."""
    statement = ast.parse(text).body[0]
    assert isinstance(statement, ast.FunctionDef)
    for value in filter(None, (*statement.args.defaults, *statement.args.kw_defaults)):
        yield from (node.id for node in ast.walk(value) if isinstance(node, ast.Name))


def _defaults(function: FunctionType) -> list[Any]:
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, bool | int | float | str | bytes)


def _common(module: str) -> bool:
    """Whether it is there wherever torch is."""
    top = module.partition(".")[0]
    return top == "torch" or (top in sys.stdlib_module_names and top != "__main__")
