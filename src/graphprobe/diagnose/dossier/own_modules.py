"""The modules of a program: which are its own, and the statements of their files that bind a name."""

from __future__ import annotations

import ast
import functools
import importlib.util
import linecache
import site
import symtable
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)


@dataclass
class OwnModule:
    """A module of the program.

    Attributes:
        name: of it.
        namespace: its globals.
        text: of its file; empty where there is none.
        bindings: statements that bind a global, by its name.
        others: those that bind none.
    """

    name: str
    namespace: Mapping[str, Any]
    text: str
    bindings: dict[str, list[ast.stmt]] = field(default_factory=dict)
    others: list[ast.stmt] = field(default_factory=list)

    def text_of(self, node: ast.stmt, *, decorated: bool = True) -> str:
        """A statement as the file has it; one inside of a block, without its indentation."""
        if node.col_offset or (isinstance(node, DEFINITIONS) and node.decorator_list and not decorated):
            return ast.unparse(node if decorated else undecorated(node))
        found = ast.get_source_segment(self.text, node) or ast.unparse(node)
        if isinstance(node, DEFINITIONS) and node.decorator_list:
            above = self.text.splitlines()[node.decorator_list[0].lineno - 1 : node.lineno - 1]
            found = "\n".join([*above, found])
        return found


def undecorated(node: ast.stmt) -> ast.stmt:
    """A definition without what decorates it."""
    return ast.fix_missing_locations(type(node)(**{**dict(ast.iter_fields(node)), "decorator_list": []}))


def module_of_globals(namespace: Mapping[str, Any]) -> OwnModule:
    """The module that these are the globals of, with its file as it is now."""
    name, file = str(namespace.get("__name__", "")), str(namespace.get("__file__") or "")
    text = "".join(linecache.getlines(file)) if file else ""
    made = OwnModule(name, namespace, text)
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return made
    for node in _statements(tree.body):
        bound = list(_bound_by(node))
        for one in bound:
            made.bindings.setdefault(one, []).append(node)
        if not bound:
            made.others.append(node)
    return made


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those that run with the module, in blocks too."""
    for node in body:
        blocks = (
            [] if isinstance(node, DEFINITIONS) else [getattr(node, n, []) for n in ("body", "orelse", "finalbody")]
        )
        blocks += [handler.body for handler in getattr(node, "handlers", [])]
        if any(blocks):
            for block in blocks:
                yield from _statements(block)
        else:
            yield node


def _bound_by(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, DEFINITIONS):
        yield node.name
    elif isinstance(node, IMPORTS):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def names_in(text: str) -> set[str]:
    """Global names that Python text reads, wherever in it."""

    def walk(table: symtable.SymbolTable, top: bool) -> Iterator[str]:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (top or symbol.is_global()):
                yield symbol.get_name()
        for inner in table.get_children():
            yield from walk(inner, False)

    return set(walk(symtable.symtable(text, "<own>", "exec"), True))


def root_of(node: ast.expr) -> str | None:
    """The name that a chain of attributes, subscripts and calls begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def program_modules() -> list[ModuleType]:
    """What is loaded and belongs to the program, its script first."""
    loaded: list[tuple[str, Any]] = list(sys.modules.items())
    own = [m for name, m in loaded if isinstance(m, ModuleType) and not is_found(name)]
    return sorted(own, key=lambda module: module.__name__ != "__main__")


def is_common(module: str) -> bool:
    """Whether it is there wherever torch is."""
    top = module.partition(".")[0]
    return top == "torch" or (top in sys.stdlib_module_names and top != "__main__")


def is_found(module: str) -> bool:
    """Whether any Python of this environment finds it, wherever it is started."""
    top = module.partition(".")[0]
    if is_common(module) or top in sys.builtin_module_names:
        return True
    if top == "__main__":
        return False
    file = file_of(sys.modules.get(top))
    return file is not None and any(file.is_relative_to(path) for path in _installed())


def file_of(module: ModuleType | None) -> Path | None:
    """The file, or the folder, of a module."""
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return Path(file).resolve() if isinstance(file, str) else None


def folder_of(name: str) -> str | None:
    """The folder that must be on Python's path so that a module is found by its name; None where none does it."""
    top = sys.modules.get(name.partition(".")[0])
    file, own = file_of(top), file_of(sys.modules.get(name))
    if file is None or own is None or name == "__main__":
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin or Path(spec.origin).resolve() != own:
        return None
    return str(file.parent.parent if file.name == "__init__.py" else file.parent)


@functools.cache
def _installed() -> tuple[Path, ...]:
    """Folders of installed packages, and those that their .pth files name."""
    folders = [Path(path).resolve() for path in site.getsitepackages()]
    for file in [file for folder in folders if folder.is_dir() for file in folder.glob("*.pth")]:
        lines = file.read_text("utf-8", "replace").splitlines()
        folders += [Path(line).resolve() for line in lines if line.startswith("/") and Path(line).is_dir()]
    return tuple(folders)
