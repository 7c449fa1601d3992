"""Runs the text of a program. The part between the marks is copied into each `replay.py`."""

from __future__ import annotations

# <loading>
import __future__

import ast
import functools
import importlib
import re
import sys
import types
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from graphprobe.engine.replay import Undecided, parse_safetensors

ROOTS = "roots"
"""The name under which a text leaves the values that it was asked for, by name."""
HELPERS = ("instance", "stored", "made_in", "missing")
"""Functions that a text may call."""
VALUES = "values"
"""Statements below this header make values, beside the program's modules."""
HEADER = re.compile(r"^# ---- (\S+):(?: (.+))?$")
"""Before statements of a module: its name and file."""
PLACE = re.compile(r"^\s*#@ (?:(.+):(\d+)|moved)$")
"""Before a definition: where it begins in the program's own file; or that its lines are others than there."""
WITHIN = re.compile(r"^#@ in (\S+)$")
"""Before a definition among the values: the module whose globals it has."""
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class Placeholder:
    """Takes the place of a value that could not be written."""

    def __init__(self, type: str, reason: str) -> None:
        self.type, self.reason = type, reason

    def __repr__(self) -> str:
        return f"<not recorded: {self.type}, {self.reason}>"


def instance(kind: Any, /, **attributes: Any) -> Any:
    """An object with these attributes, without its constructor."""
    made = object.__new__(kind)
    if issubclass(kind, torch.nn.Module):
        torch.nn.Module.__init__(made)
    for name, value in attributes.items():
        if name in ("_parameters", "_buffers", "_modules"):
            getattr(made, name).update(value)
        else:
            object.__setattr__(made, name, value)
    return made


def code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a file and of everything defined in it, in the order of the text."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from code_objects(constant)


def find_class(tree: ast.AST, qualname: str) -> ast.ClassDef | None:
    """The last class of that name."""
    found: list[ast.AST] = [tree]
    for part in qualname.split("."):
        if part != "<locals>":
            found = [n for parent in found for n in definitions(parent) if getattr(n, "name", None) == part]
    classes = [node for node in found if isinstance(node, ast.ClassDef)]
    return classes[-1] if classes else None


def definitions(parent: ast.AST) -> Iterator[ast.AST]:
    """Functions and classes that stand directly in a scope, also inside of its `if`, `try` and the like."""
    for child in ast.iter_child_nodes(parent):
        if isinstance(child, SCOPES):
            yield child
        else:
            yield from definitions(child)


@functools.cache
def codes_of(file: str) -> list[types.CodeType]:
    return list(code_objects(compile(Path(file).read_text("utf-8"), file, "exec", dont_inherit=True)))


def made_in(module: str, qualname: str, line: int, at: int, cells: Mapping[str, Any]) -> types.FunctionType:
    """The `at`-th function of that name and line in an installed module, which was made inside of another one."""
    library: Any = importlib.import_module(module)
    alike = [c for c in codes_of(library.__file__) if (c.co_qualname, c.co_firstlineno) == (qualname, line)]
    if at >= len(alike) or not set(alike[at].co_freevars) >= set(cells):
        raise Undecided(f"{module} has another {qualname} in this process than when it was recorded")
    closure = [types.CellType(cells[n]) if n in cells else types.CellType() for n in alike[at].co_freevars]
    return types.FunctionType(alike[at], vars(library), alike[at].co_name, None, tuple(closure))


class ProgramFile:
    """A text and the values beside it.

    Args:
        text: as `program_text` writes it, with headers.
        values: the safetensors file of the values that are not in it.
        zeros: the names of those whose bytes were left out.
        device: for every tensor; None: where each was.
    """

    def __init__(self, text: Path, values: Path, zeros: Collection[str] = (), device: str | None = None) -> None:
        self.path, self.text, self.zeros = text, text.read_text("utf-8"), zeros
        if device is not None:
            self.text = re.sub(r"\.to\('\w+(:\d+)?'\)", f".to({device!r})", self.text)
        try:
            self.values = parse_safetensors(values.read_bytes())[0] if values.is_file() else {}
        except Exception as error:
            raise Undecided(f"{values} is cut off") from error

    def stored(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        if name in self.zeros:
            return torch.zeros(shape, dtype=dtype)
        if name not in self.values:
            raise Undecided(f"the file of values lacks {name}")
        return self.values[name].view(dtype).view(shape)

    def place_of(self, line: int) -> tuple[str, int] | None:
        """File and line in the program's own file of a line of the text; None where they are not known."""
        for number, text in zip(range(line, 0, -1), reversed(self.text.split("\n")[:line]), strict=True):
            if found := PLACE.match(text):
                return (found[1], int(found[2]) + line - number - 1) if found[1] else None
        return None

    def run(self, *, in_place: bool = False) -> dict[str, Any]:
        """Makes the program's modules, which imports find from now on; the values that the text leaves.

        Args:
            in_place: functions and modules name the program's own files and the lines in them.
        """
        lines = self.text.split("\n")
        heads = {number: found for number, line in enumerate(lines, 1) if (found := HEADER.match(line))}
        if not heads:
            raise Undecided(f"{self.path} does not define modules any more: it lacks lines such as '# ---- __main__:'")
        made: dict[str, types.ModuleType] = {}
        for found in heads.values():
            if found[1] not in made:
                made[found[1]] = self._module(found[1], found[2], in_place=in_place)
        for name in sorted(set(made) - {VALUES}):
            _enter(name, made)
        try:
            tree = ast.parse(self.text)
        except SyntaxError as error:
            raise Undecided(f"{self.path} cannot be used: {error}") from error
        values = vars(made.setdefault(VALUES, types.ModuleType(VALUES)))
        values.update(zip(HELPERS, (instance, self.stored, made_in, Placeholder), strict=True))
        for node in tree.body:
            first = first_line(node)
            names = [heads[number][1] for number in sorted(heads) if number < first]
            above = [found[1] for line in lines[max(first - 3, 0) : first - 1] if (found := WITHIN.match(line))]
            file = self._relocate(node, lines) if in_place else None
            flags = __future__.annotations.compiler_flag
            code = compile(ast.Module([node], []), file or str(self.path), "exec", flags=flags, dont_inherit=True)
            namespace = vars(made[[*names, *above][-1]])
            exec(code, namespace, values if above else namespace)
        if ROOTS not in values:
            raise Undecided(f"{self.path} does not define {ROOTS} any more")
        return values[ROOTS]  # type: ignore[no-any-return]

    def _module(self, name: str, file: str | None, *, in_place: bool) -> types.ModuleType:
        made = types.ModuleType(name)
        package = file is not None and Path(file).name == "__init__.py"
        made.__package__ = name if package else name.rpartition(".")[0]
        made.__file__ = file if in_place else str(self.path)
        if package:
            made.__path__ = []
        vars(made)["__builtins__"] = __builtins__
        if name != VALUES:
            sys.modules[name] = made
        return made

    def _relocate(self, node: ast.stmt, lines: list[str]) -> str | None:
        """Have definitions where they were in the program's own file, which is returned."""
        places = [
            (inner, first, found)
            for inner in ast.walk(node)
            if isinstance(inner, ast.stmt) and (first := first_line(inner)) > 1
            if (found := PLACE.match(lines[first - 2])) and found[1]
        ]
        for inner, first, found in places:
            ast.increment_lineno(inner, int(found[2]) - first)
        return places[0][2][1] if places else None


def first_line(node: Any) -> int:
    """Where a definition begins, with what decorates it."""
    lines: list[int] = [node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]
    return min(lines)


def _enter(name: str, made: dict[str, types.ModuleType]) -> None:
    """Have a module found by its dotted name."""
    holder, _, leaf = name.rpartition(".")
    while holder:
        if holder not in sys.modules:
            made[holder] = sys.modules[holder] = types.ModuleType(holder)
            made[holder].__path__ = []
        elif holder in made and not hasattr(made[holder], "__path__"):
            made[holder].__path__ = []
        setattr(sys.modules[holder], leaf, sys.modules[name])
        name = holder
        holder, _, leaf = name.rpartition(".")


# </loading>
