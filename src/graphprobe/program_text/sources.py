"""The text of the program that a frame needs: statements of a file with their line numbers, the rest left blank."""

from __future__ import annotations

import ast
import copy
import dis
import functools
import inspect
import itertools
import linecache
import os
import site
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType
from typing import Any

from graphprobe.program_text.loading import code_objects, find_class, first_line

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
PATTERNS = "torch._inductor."
"""Objects of classes from there are changed by functions that they are given to: pattern matchers."""


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

    def place_of(self, code: CodeType) -> int:
        """Which of the functions of its name and line it is."""
        alike = [c for c in code_objects(self.code) if c.co_qualname == code.co_qualname]
        there = [c for c in alike if c.co_firstlineno == code.co_firstlineno]
        same = [i for i, c in enumerate(there) if c.co_code == code.co_code]
        exact = [i for i in same if list(there[i].co_positions()) == list(code.co_positions())]
        if not same:
            raise NotRecordable(
                f"{self.file} does not hold {code.co_qualname} (line {code.co_firstlineno}) as it was loaded"
            )
        return (exact or same)[0]

    def class_node(self, qualname: str) -> ast.ClassDef:
        """The statement of a class."""
        node = find_class(self.tree, qualname)
        if node is None:
            raise NotRecordable(f"{self.file} has no class statement for {qualname}")
        return node

    def plain_text(self, node: ast.stmt, *, decorated: bool = True, indent: str = "", placed: bool = False) -> str:
        """One statement, with another indentation than it has in the file, and without what decorates it if so asked.

        Args:
            placed: a comment above tells file and line, as `loading` reads it.
        """
        decorators = getattr(node, "decorator_list", [])
        first = first_line(node) if decorated else node.lineno
        lines = self._lines[first - 1 : node.end_lineno]
        before = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        texts = [n for n in ast.walk(node) if isinstance(n, ast.JoinedStr | ast.Constant)]
        kept = {line for n in texts for line in range(n.lineno - first + 1, (n.end_lineno or n.lineno) - first + 1)}
        shift = [
            line if i in kept else indent + line.removeprefix(before) if line.strip() else ""
            for i, line in enumerate(lines)
        ]
        text = "\n".join(shift).rstrip()
        if not decorated and decorators:
            node = copy.copy(node)
            node.decorator_list = []  # type: ignore[attr-defined]
        try:
            read: Any = ast.parse(f"if True:\n{text}" if indent else text)
            whole = [ast.dump(n) for n in (read.body[0] if indent else read).body] == [ast.dump(node)]
        except SyntaxError:  # it shares its lines with others
            whole = False
        place = f"{indent}#@ {f'{self.file}:{first}' if whole else 'moved'}\n" if placed else ""
        return place + (text if whole else textwrap.indent(ast.unparse(node), indent))


@dataclass
class _Module:
    """A module as it is collected: `namespace` is its live globals."""

    name: str
    namespace: Mapping[str, Any]
    own: bool
    source: SourceFile | None = None
    values: dict[str, Any] = field(default_factory=dict)
    whole: bool = False
    """Whether the module itself is a value, so that any attribute of it may be read."""


def lines_of(statement: ast.stmt) -> range:
    return range(first_line(statement), (statement.end_lineno or statement.lineno) + 1)


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
            prefixes = itertools.accumulate(name.split("."), "{}.{}".format)
            found.update(part for part in prefixes if part in sys.modules)
    return found


def defining_names(node: ast.AST, *, decorated: bool = True) -> set[str]:
    """Names that a statement reads when it is executed: not those inside of functions. Annotations are texts.

    `decorated`: with those of what decorates it.
    """
    parts = read_when_defined(node, decorated=decorated, annotations=False)
    return {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}


def read_when_defined(node: ast.AST, *, decorated: bool = True, annotations: bool = True) -> Iterator[ast.AST]:
    """The parts of a statement that are executed with it, as for `defining_names`; and annotations, if so asked."""
    yield node
    parts: Iterable[ast.AST | None] = ast.iter_child_nodes(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        given = node.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        notes = [*(argument.annotation for argument in every if argument is not None), getattr(node, "returns", None)]
        parts = [*given.defaults, *given.kw_defaults, *(getattr(node, "decorator_list", []) if decorated else [])]
        parts = [*parts, *(notes if annotations else [])]
    elif isinstance(node, ast.AnnAssign) and not annotations:
        parts = [node.value]
    for part in parts:
        if part is not None:
            yield from read_when_defined(part, annotations=annotations)


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


def own_function() -> Callable[[FrameType], str | None]:
    """What a frame's function is called, `name (file:line)`, if it is of the program."""
    from graphprobe.engine.naming import short_place  # imports torch

    known: dict[CodeType, str | None] = {}

    def name_of(frame: FrameType) -> str | None:
        code = frame.f_code
        if code not in known:
            module = frame.f_globals.get("__name__")
            own = isinstance(module, str) and not code.co_filename.startswith("<") and is_own(module)
            name = code.co_qualname.replace("<locals>.", "")
            known[code] = f"{name} ({short_place(code.co_filename, code.co_firstlineno)})" if own else None
        return known[code]

    return name_of


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


def statements_about(tree: ast.Module, name: str, made: ast.stmt, value: Any) -> Iterator[ast.stmt]:
    """Statements that add to what another one has `made`: `@op.register_fake`, `table[key] = f`, `passes.add(f)`."""
    own = getattr(made, "decorator_list", [])
    texts = {n.value for d in own for n in ast.walk(d) if isinstance(n, ast.Constant) and "::" in str(n.value)}
    given = [] if isinstance(value, FunctionType | type) else [name]  # to a decorator; a function is given to anything
    patterns = type(value).__module__.startswith(PATTERNS)
    parts: list[ast.expr]
    for node in plain_statements(tree.body):
        if node is made:
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            parts, names = [node.value], [name] if patterns else []
        elif isinstance(node, Definition):
            parts, names = node.decorator_list, given
        else:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(t, ast.Attribute | ast.Subscript) and root_of(t)[0] == name for t in targets):
                yield node
            continue
        if any(root_of(part) == (name, True) or _takes(part, names, texts) for part in parts):
            yield node


def _takes(call: ast.expr, names: Collection[str], texts: Collection[Any]) -> bool:
    """Whether one of the names is an argument of a call, or one of the texts stands in it."""
    arguments = [*call.args, *(k.value for k in call.keywords)] if isinstance(call, ast.Call) else []
    return any(isinstance(a, ast.Name) and a.id in names for a in arguments) or any(
        isinstance(n, ast.Constant) and n.value in texts for n in ast.walk(call)
    )


def root_of(node: ast.expr) -> tuple[str | None, bool]:
    """The name that a chain of attributes, subscripts and calls begins with, and whether it has an attribute."""
    attribute = False
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        attribute = attribute or isinstance(node, ast.Attribute)
        node = node.func if isinstance(node, ast.Call) else node.value
    return (node.id if isinstance(node, ast.Name) else None), attribute


def plain_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run with a module, those of its blocks too."""
    for node in body:
        names = () if isinstance(node, Definition) else ("body", "orelse", "finalbody")
        blocks = [getattr(node, name, []) for name in names] + [h.body for h in getattr(node, "handlers", [])]
        if any(blocks):
            for block in blocks:
                yield from plain_statements(block)
        else:
            yield node


def bindings(tree: ast.Module) -> dict[str, list[ast.stmt]]:
    """Statements of a module that bind a global, by its name."""
    found: dict[str, list[ast.stmt]] = {}
    for node in plain_statements(tree.body):
        names: list[str] = []
        if isinstance(node, Definition):
            names = [node.name]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = [n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
            names = [part.id for part in parts if isinstance(part.ctx, ast.Store)]
        for name in names:
            found.setdefault(name, []).append(node)
    return found


def imported_as(module: _Module, name: str) -> str | None:
    """The program's own line that takes a name from a library, where it has one."""
    for node in bindings(tree_of(module)).get(name, []):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level and not is_own(node.module):
            leaf = next(alias.name for alias in node.names if name == (alias.asname or alias.name))
            if getattr(sys.modules.get(node.module), leaf, None) is module.namespace.get(name):
                return f"from {node.module} import {leaf}" + (f" as {name}" if name != leaf else "")
    return None


def functions_of(value: Any) -> list[FunctionType]:
    """What runs when a value is called: a function, or the methods of a class, or of an object's class."""
    if type(value) is FunctionType:
        return [inner for inner in (value, inspect.unwrap(value)) if type(inner) is FunctionType]
    kind = value if issubclass(type(value), type) else type(value)
    return [function for owner in kind.__mro__ for function in vars(owner).values() if type(function) is FunctionType]


def tree_of(module: _Module) -> ast.Module:
    """The text of a module, parsed; empty for one without a text."""
    file = module.namespace.get("__file__")
    if module.source is None and isinstance(file, str):
        try:
            module.source = SourceFile(file, module.namespace)
        except NotRecordable:
            return ast.Module(body=[], type_ignores=[])
    return module.source.tree if module.source is not None else ast.Module(body=[], type_ignores=[])


def top_level(tree: ast.Module) -> dict[str, Definition]:
    """Functions and classes of a module by name, of several the last."""
    return {name: node for name, nodes in bindings(tree).items() for node in nodes if isinstance(node, Definition)}


def definitions_of(module: _Module) -> dict[str, Definition]:
    """The same of a module whose text is known; of another nothing."""
    return top_level(module.source.tree) if module.source is not None else {}


def literals_of(node: ast.AST) -> dict[str, Any]:
    """What a class statement, or the defaults of a function, give to names, where that is a plain constant."""
    pairs: list[tuple[str, ast.expr]] = []
    if isinstance(node, ast.ClassDef):
        for statement in node.body:
            if isinstance(statement, ast.Assign):
                pairs += [(target.id, statement.value) for target in statement.targets if isinstance(target, ast.Name)]
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
                pairs.append((statement.target.id, statement.value))
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
        pairs += zip(names[len(names) - len(node.args.defaults) :], node.args.defaults, strict=True)
        named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        pairs += [(argument.arg, value) for argument, value in named if value is not None]
    found = {}
    for name, value in pairs:
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
    return found
