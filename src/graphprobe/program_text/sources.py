"""The text of the program that a frame stands on: statements of a file with their line numbers, the rest left blank."""

from __future__ import annotations

import ast
import builtins
import copy
import dis
import functools
import linecache
import os
import site
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType
from typing import Any

from graphprobe.program_text.rebuild import code_objects, find_class


class NotRecordable(Exception):
    """Why something cannot be recorded, in words."""


class SourceFile:
    """The text of one module.

    Args:
        file: as in `co_filename`; need not exist, where `linecache` knows the text.
        namespace: the module's globals, which may know a loader.
    """

    def __init__(self, file: str, namespace: Mapping[str, Any]) -> None:
        self.file = file
        # All text that `exec` runs has one name, under which Python 3.13 keeps that of `python -c`.
        text = "" if file == "<string>" else "".join(linecache.getlines(file, dict(namespace)))
        if not text.strip():
            raise NotRecordable(f"there is no text of {file}")
        try:
            self.tree = ast.parse(text)
            self.code = compile(text, file, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise NotRecordable(f"{file} cannot be parsed: {error}") from error
        self._lines = text.split("\n")
        self._needed: set[int] = {
            i for i, s in enumerate(self.tree.body) if isinstance(s, ast.ImportFrom) and s.module == "__future__"
        }

    def place_of(self, code: CodeType) -> int:
        """Which of the functions of its name and line it is; from now on its statement is part of the text."""
        alike = [c for c in code_objects(self.code) if c.co_qualname == code.co_qualname]
        there = [c for c in alike if c.co_firstlineno == code.co_firstlineno]
        same = [i for i, c in enumerate(there) if c.co_code == code.co_code]
        exact = [i for i in same if list(there[i].co_positions()) == list(code.co_positions())]
        if not same:
            raise NotRecordable(
                f"{self.file} does not hold {code.co_qualname} (line {code.co_firstlineno}) as it was loaded"
            )
        self._need(code.co_firstlineno)
        return (exact or same)[0]

    def class_node(self, qualname: str) -> ast.ClassDef:
        """The class; from now on its statement is part of the text."""
        node = find_class(self.tree, qualname)
        if node is None:
            raise NotRecordable(f"{self.file} has no class statement for {qualname}")
        self._need(node.lineno)
        return node

    def text(self) -> str:
        """What is needed, each line where it was."""
        kept: set[int] = set()
        for i in self._needed:
            kept.update(lines_of(self.tree.body[i]))
        return "\n".join(line if n in kept else "" for n, line in enumerate(self._lines, start=1))

    def plain_text(self, node: ast.stmt, *, decorated: bool = True) -> str:
        """One statement, without the indentation that it has in the file, and without what decorates it if so asked."""
        decorators = getattr(node, "decorator_list", [])
        first = first_line(node) if decorated else node.lineno
        text = textwrap.dedent("\n".join(self._lines[first - 1 : node.end_lineno])).rstrip()
        if not decorated and decorators:
            node = copy.copy(node)
            node.decorator_list = []  # type: ignore[attr-defined]
        try:
            whole = ast.dump(ast.parse(text)) == ast.dump(ast.Module(body=[node], type_ignores=[]))
        except SyntaxError:  # it shares its lines with others, or a text in it has several
            whole = False
        return text if whole else ast.unparse(node)

    def _need(self, line: int) -> None:
        for i, statement in enumerate(self.tree.body):
            if line in lines_of(statement):
                self._needed.add(i)


def lines_of(statement: ast.stmt) -> range:
    return range(first_line(statement), (statement.end_lineno or statement.lineno) + 1)


def first_line(node: Any) -> int:
    """Where a definition begins, with what decorates it."""
    lines: list[int] = [node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]
    return min(lines)


def all_codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions in it."""
    yield code
    yield from code_objects(code)


def global_names(code: CodeType) -> set[str]:
    """The globals that a function reads, or the functions in it."""
    wanted = ("LOAD_GLOBAL", "LOAD_NAME")
    return {i.argval for c in all_codes(code) for i in dis.get_instructions(c) if i.opname in wanted}


def imported_modules(code: CodeType, namespace: Mapping[str, Any]) -> set[str]:
    """Modules that a function imports when it is called, as far as they are loaded."""
    found: set[str] = set()
    for inner in all_codes(code):
        steps = list(dis.get_instructions(inner))
        for i, step in enumerate(steps):
            if step.opname != "IMPORT_NAME":
                continue
            level = next(
                (s.argval for s in reversed(steps[:i]) if isinstance(s.argval, int) and s.opname.startswith("LOAD")), 0
            )
            package = str(namespace.get("__package__") or "")
            base = ".".join(package.split(".")[: len(package.split(".")) - level + 1]) if level else ""
            name = ".".join(filter(None, [base, step.argval]))
            found.update(part for part in _prefixes(name) if part in sys.modules)
    return found


def attribute_names(code: CodeType) -> set[str]:
    """Every name that a function or one in it uses, attributes included."""
    return {name for c in all_codes(code) for name in c.co_names}


def names_when_defined(node: ast.AST, *, decorated: bool = True, annotations: bool = True) -> Iterator[str]:
    """Names that a statement reads when it is executed: not those inside of functions.

    Args:
        decorated: with those of what decorates it.
        annotations: with those in annotations; else these are texts.
    """
    parts: Iterable[ast.AST | None] = ast.iter_child_nodes(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        given = node.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        notes = [*(argument.annotation for argument in every if argument is not None), getattr(node, "returns", None)]
        parts = [*given.defaults, *given.kw_defaults, *(getattr(node, "decorator_list", []) if decorated else [])]
        parts = [*parts, *(notes if annotations else [])]
    elif isinstance(node, ast.AnnAssign) and not annotations:
        parts = [node.value]
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for part in parts:
        if part is not None:
            yield from names_when_defined(part, annotations=annotations)


def names_in_class(node: ast.ClassDef) -> set[str]:
    """Every bare name in a class statement that is no builtin."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not hasattr(builtins, n.id)}


def is_own(name: str) -> bool:
    """Whether another process cannot be expected to import the module: it is the program's."""
    if name == "__main__":
        return True
    top = name.partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names or top in ("torch", "graphprobe", "functorch"):
        return False
    module = sys.modules.get(name) or sys.modules.get(top)
    file = getattr(module, "__file__", None)
    if file is None:
        spec = getattr(module, "__spec__", None)
        places = list(getattr(spec, "submodule_search_locations", None) or [])
        return module is None or not (places and _installed(str(places[0])))
    return not _installed(file)


@functools.cache
def _installed(file: str) -> bool:
    real = os.path.realpath(file)
    if any(f"{os.sep}{name}{os.sep}" in real for name in ("site-packages", "dist-packages")):
        return True  # of another environment, that a .pth file has added
    return any(real.startswith(folder + os.sep) for folder in _library_folders())


@functools.cache
def _library_folders() -> list[str]:
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return [os.path.realpath(path) for path in {*paths, *site.getsitepackages(), site.getusersitepackages()} if path]


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    for i in range(len(parts)):
        yield ".".join(parts[: i + 1])
