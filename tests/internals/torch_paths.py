"""Reads sources for the names of torch that they use: imports, attribute paths, and addresses written as text."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

PATCHES = frozenset({"Patch", "TimedFunction", "advised"})
"""Calls of these name what is replaced."""

NOT_TORCHS = frozenset("get items nodes patch cache_info cache_clear __name__ __file__".split())
"""What dicts, functions, modules and settings of whatever origin have: of torch is what stands before it."""


@dataclass(frozen=True, order=True)
class Used:
    """A path of torch, and where it stands; `patched` where it is replaced."""

    path: str
    module: str
    line: int
    patched: bool = False


@dataclass
class _Scope:
    """What names mean in a function: paths of torch, or constants; `None` for what only shadows an outer name."""

    paths: dict[str, str | None] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    outer: _Scope | None = None

    def path(self, name: str) -> str | None:
        return self.paths.get(name) if name in self.paths or self.outer is None else self.outer.path(name)

    def value(self, name: str) -> Any:
        return self.values.get(name) if name in self.values or self.outer is None else self.outer.value(name)


class Reader(ast.NodeVisitor):
    """Collects the private paths of one module."""

    def __init__(self, module: str, known: Mapping[str, Mapping[str, Any]]) -> None:
        """`known`: constants of other modules, by module: texts, and tuples of texts."""
        self.module = module
        self.known = known
        self.scope = _Scope()
        self.found: set[Used] = set()

    # -- what names mean ----------------------------------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.partition(".")[0] == "torch":
                self.scope.paths[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                self._note(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        for alias in node.names:
            if base.partition(".")[0] == "torch":
                self.scope.paths[alias.asname or alias.name] = f"{base}.{alias.name}"
                self._note(f"{base}.{alias.name}", node)
            elif alias.name in self.known.get(base, {}):
                self.scope.values[alias.asname or alias.name] = self.known[base][alias.name]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node, [*node.decorator_list, *filter(None, [node.returns])], node.body)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node, [], [node.body])

    def _function(self, node: ast.FunctionDef | ast.Lambda, outside: list[Any], body: list[Any]) -> None:
        given = node.args
        for part in (*outside, *given.defaults, *filter(None, given.kw_defaults)):
            self.visit(part)
        names = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, [given.vararg, given.kwarg])]
        self.scope = _Scope({name.arg: None for name in names}, outer=self.scope)
        for name in names:
            if name.annotation is not None:
                self.visit(name.annotation)
        for statement in body:
            self.visit(statement)
        assert self.scope.outer is not None
        self.scope = self.scope.outer

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            if not isinstance(target, ast.Name):
                self.visit(target)
            self._bind(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.annotation)
        if node.value is not None:
            self.visit(node.value)
            self._bind(node.target, node.value)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, its in zip(target.elts, value.elts, strict=True):
                self._bind(one, its)
        elif isinstance(target, ast.Name):
            self.scope.paths[target.id] = self.path_of(value)
            constant = self.constant(value)
            if constant is not None:
                self.scope.values[target.id] = constant

    def visit_For(self, node: ast.For) -> None:
        """A loop over constants is read once for each."""
        self.visit(node.iter)
        for values in self._bindings(node.target, node.iter):
            self.scope.paths |= dict.fromkeys(values)
            self.scope.values |= values
            for statement in (*node.body, *node.orelse):
                self.visit(statement)

    def _generators(self, generators: list[ast.comprehension], results: list[ast.expr]) -> None:
        if not generators:
            for result in results:
                self.visit(result)
            return
        first, *rest = generators
        self.visit(first.iter)
        self.scope = _Scope(outer=self.scope)
        for values in self._bindings(first.target, first.iter):
            self.scope.paths = dict.fromkeys(values)
            self.scope.values = {name: value for name, value in values.items() if value is not None}
            for condition in first.ifs:
                self.visit(condition)
            self._generators(rest, results)
        assert self.scope.outer is not None
        self.scope = self.scope.outer

    def visit_ListComp(self, node: Any) -> None:
        self._generators(node.generators, [node.elt])

    visit_SetComp = visit_GeneratorExp = visit_ListComp  # noqa: N815

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._generators(node.generators, [node.key, node.value])

    def _bindings(self, target: ast.expr, iterable: ast.expr) -> list[dict[str, Any]]:
        """What the names of a loop stand for in each turn; None where that is not known."""
        names = [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
        items = self.constant(iterable)
        if isinstance(target, ast.Name) and isinstance(items, tuple):
            return [{target.id: item} for item in items]
        if isinstance(items, tuple) and all(isinstance(item, tuple) and len(item) == len(names) for item in items):
            return [dict(zip(names, item, strict=True)) for item in items]
        return [dict.fromkeys(names)]

    # -- what is used -------------------------------------------------------------------------------------------------

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self.path_of(node)
        if path is None:
            self.generic_visit(node)
        else:
            self._note(path, node)

    def visit_Name(self, node: ast.Name) -> None:
        path = self.scope.path(node.id)
        if path is not None:
            self._note(path, node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """A text that is nothing but an address, such as the name of a module that is waited for."""
        if isinstance(node.value, str) and _is_dotted(node.value):
            self._note(node.value, node)

    def visit_Call(self, node: ast.Call) -> None:
        path = self.path_of(node)
        if path is not None:
            self._note(path, node)
        patched = _dotted(node.func) in PATCHES
        for first, second in _pairs(self._constants(node.args)):
            self._note(f"{first}.{second}", node, patched=patched)
        self.generic_visit(node)

    def visit_Tuple(self, node: ast.Tuple) -> None:
        if len(node.elts) == 2:
            for first, second in _pairs([self.constant(element) for element in node.elts]):
                self._note(f"{first}.{second}", node)
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        text = self.constant(node)
        if text is not None and _is_dotted(text):
            self._note(text, node)
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)

    def path_of(self, node: ast.expr) -> str | None:
        """The path of torch that an expression leads to: a chain of attributes, `getattr`, `require`, `sys.modules`."""
        if isinstance(node, ast.Name):
            return self.scope.path(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.path_of(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        if isinstance(node, ast.Subscript) and _dotted(node.value) == "sys.modules":
            return self._text_path(node.slice)
        if not isinstance(node, ast.Call) or not node.args:
            return None
        called = _dotted(node.func)
        if called in ("getattr", "hasattr", "setattr", "mock.patch.object"):
            owner, name = self.path_of(node.args[0]), self.constant(node.args[1])
            return f"{owner}.{name}" if owner is not None and isinstance(name, str) else None
        if called == "require" and len(node.args) >= 2:
            module, name = self.constant(node.args[0]), self.constant(node.args[1])
            return f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else None
        if called in ("sys.modules.get", "importlib.import_module", "cast"):
            return self._text_path(node.args[-1] if called == "cast" else node.args[0])
        return None

    def _text_path(self, node: ast.expr) -> str | None:
        text = self.constant(node)
        return text if isinstance(text, str) and text.partition(".")[0] == "torch" else self.path_of(node)

    def constant(self, node: ast.expr) -> Any:
        """The text or tuple of texts that an expression stands for, as far as it is written in the sources."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            return self.scope.value(node.id)
        if isinstance(node, ast.JoinedStr):
            parts = [self.constant(part) for part in node.values]
            return "".join(parts) if all(isinstance(part, str) for part in parts) else None
        if isinstance(node, ast.Starred | ast.FormattedValue):
            return self.constant(node.value)
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            found = self._constants(node.elts)
            return tuple(found) if any(item is not None for item in found) else None
        if isinstance(node, ast.Dict):
            return tuple(self.constant(key) for key in node.keys if key is not None) or None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "items":
            keys = self.constant(node.func.value)
            return tuple((key, None) for key in keys) if isinstance(keys, tuple) else None
        return None

    def _constants(self, nodes: list[ast.expr]) -> list[Any]:
        """Those of several expressions; a starred one brings its own."""
        found: list[Any] = []
        for node in nodes:
            value = self.constant(node)
            found.extend(value if isinstance(node, ast.Starred) and isinstance(value, tuple) else [value])
        return found

    def _note(self, path: str, node: ast.AST, *, patched: bool = False) -> None:
        while path.rpartition(".")[2] in NOT_TORCHS:
            path = path.rpartition(".")[0]
        if path.startswith("torch."):
            self.found.add(Used(path, self.module, getattr(node, "lineno", 0), patched))


def _dotted(node: ast.expr) -> str:
    """Names as they are written, `a.b.c`; nothing for another expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _is_dotted(text: str) -> bool:
    return text.startswith("torch.") and all(part.isidentifier() and part != "_" for part in text.split("."))


def _pairs(values: list[Any]) -> Iterator[tuple[str, str]]:
    """Module and name, as they follow each other in an address."""
    for first, second in pairwise(values):
        if not isinstance(first, str) or not isinstance(second, str) or second.startswith("torch."):
            continue
        if (_is_dotted(first) or first == "torch") and all(part.isidentifier() for part in second.split(".")):
            yield first, second


def constants_of(tree: ast.Module) -> dict[str, Any]:
    """Texts and tuples of texts that a module binds at its top."""
    reader = Reader("", {})
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                reader._bind(target, node.value)
    return reader.scope.values


@functools.cache
def sources(folder: Path, package: str) -> dict[str, ast.Module]:
    """Each module of a package, by its name; not to be changed."""
    return {
        ".".join((package, *path.relative_to(folder).with_suffix("").parts)): ast.parse(path.read_text("utf-8"))
        for path in sorted(folder.rglob("*.py"))
    }


@functools.cache
def torch_paths(folder: Path, package: str) -> frozenset[Used]:
    """Every path of torch in the sources of a package."""
    trees = sources(folder, package)
    known = {module: constants_of(tree) for module, tree in trees.items()}
    found: set[Used] = set()
    for module, tree in trees.items():
        reader = Reader(module, known)
        reader.visit(tree)
        found |= reader.found
    return frozenset(found)
