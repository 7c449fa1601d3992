"""What a program consists of, as text needs it: also what definitions read when they are executed."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from graphprobe.probe.frames.lookup import code_objects, find_class
from graphprobe.probe.frames.program import Program, _Module
from graphprobe.probe.frames.sources import NotRecordable, SourceFile
from graphprobe.probe.frames.values import Encoder

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class TextProgram(Program):
    """Finds what a record needs, what definitions need when they are executed, and values that a decorator has made."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self._places: dict[int, tuple[_Module, str]] = {}

    @property
    def modules(self) -> list[_Module]:
        """The program's own modules, in the order in which they were met."""
        return [module for module in self._modules.values() if module.own]

    def module_named(self, name: str) -> _Module:
        """One of all modules."""
        return next(module for module in self._modules.values() if module.name == name)

    def describe(self, value: Any, entry: dict[str, Any], path: str) -> dict[str, Any] | None:
        """As `Program` does; what a decorated `def` has made is told by that, and by its call what torch has made."""
        place = self._places.get(id(value)) or self._place(value)
        made = _made_by_torch(value) if place is None and type(value) is FunctionType else None
        if made is not None:
            entry |= {"kind": "call", "callable": self._encoder.encode(made[0], path), "args": []}
            entry["kwargs"] = self._encoder.encode_names(made[1], path)
            return entry
        if place is None:
            return super().describe(value, entry, path)
        module, name = place
        entry |= {"kind": "defined", "module": module.name, "qualname": name}
        assert module.source is not None
        statements = [top_level(module.source.tree)[name], *registrations(module.source.tree, name)]
        for code in code_objects(module.source.code):
            if any(code.co_firstlineno in range(first_line(s), (s.end_lineno or 0) + 1) for s in statements):
                self._uses(code, module)
        names = {used for statement in statements for used in defining_names(statement)}
        self._need(module, (names - {name}) & set(module.namespace))
        return entry

    def _place(self, value: Any) -> tuple[_Module, str] | None:
        """Where the `def` stands whose decorator has made a value."""
        if type(value) is not FunctionType and not hasattr(type(value), "cache_info"):
            return None
        inner = [inspect.unwrap(value)]
        for cell in (value.__closure__ or ()) if type(value) is FunctionType else ():
            try:
                inner.append(cell.cell_contents)
            except ValueError:  # nothing has been put there yet
                continue
        for function in inner:
            if type(function) is FunctionType and function is not value:
                module = self._module_of(function.__globals__)
                if module.own and (place := self._decorated(module, function.__name__, value)) is not None:
                    return place
        return None

    def _decorated(self, module: _Module, name: str, value: Any) -> tuple[_Module, str] | None:
        if module.namespace.get(name) is not value:
            return None
        file = module.namespace.get("__file__")
        if module.source is None and isinstance(file, str):
            module.source = SourceFile(file, module.namespace)
        statement = top_level(module.source.tree).get(name) if module.source is not None else None
        return (module, name) if isinstance(statement, ast.FunctionDef) and statement.decorator_list else None

    def _need(self, module: _Module, names: set[str]) -> None:
        for name in (names & set(module.namespace)) if module.own else ():
            value = module.namespace[name]
            plain = type(value) is FunctionType and value.__qualname__ == name and "__wrapped__" not in vars(value)
            if not plain and not issubclass(type(value), type | ModuleType):
                place = self._decorated(module, name, value)
                if place is not None:
                    self._places[id(value)] = place
        super()._need(module, names)

    def _function(
        self, code: CodeType, namespace: dict[str, Any], cells: Mapping[str, Any], entry: dict[str, Any], path: str
    ) -> dict[str, Any]:
        module = self._module_of(namespace)
        if not module.own:
            raise NotRecordable(f"it was made inside of {module.name}.{code.co_qualname}")
        made = super()._function(code, namespace, cells, entry, path)
        names = set(defining_names(self.node_of(made), decorated=False))
        self._need(module, names & set(namespace))
        return made

    def node_of(self, record: Mapping[str, Any]) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef:
        """The text of a function or class."""
        module = self.module_named(record["module"])
        assert module.source is not None
        if record["kind"] == "class":
            found_class = find_class(module.source.tree, record["qualname"])
            assert found_class is not None
            return found_class
        name = record["qualname"].rpartition(".")[2]
        found: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda] = [
            node
            for node in ast.walk(module.source.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            and getattr(node, "name", "<lambda>") == name
            and first_line(node) == record["line"]
        ]
        found.sort(key=lambda node: (node.lineno, node.col_offset))
        if record["at"] >= len(found):
            raise NotRecordable(f"{module.source.file} does not define {record['qualname']} where it was loaded")
        return found[int(record["at"])]


def _made_by_torch(function: FunctionType) -> tuple[Any, dict[str, Any]] | None:
    """The function of torch that made this one, and what it was given, where all of that is kept, as by `vmap`."""
    name, _, inner = function.__code__.co_qualname.partition(".<locals>.")
    maker = function.__globals__.get(name)
    if (
        not inner
        or not str(function.__globals__.get("__name__")).startswith("torch.")
        or type(maker) is not FunctionType
    ):
        return None
    try:
        given = {
            n: c.cell_contents for n, c in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        }
    except ValueError:  # nothing has been put there yet
        return None
    parameters = inspect.signature(inspect.unwrap(maker)).parameters
    needed = {n for n, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
    return (maker, given) if needed <= set(given) <= set(parameters) else None


def first_line(node: Any) -> int:
    """Where a definition begins, with what decorates it."""
    lines: list[int] = [node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]
    return min(lines)


def registrations(tree: ast.Module, name: str) -> list[ast.stmt]:
    """Statements that give more to what a decorated `def` has made, as `@op.register_fake` and its like do."""
    own = top_level(tree)[name].decorator_list
    texts = {n.value for d in own for n in ast.walk(d) if isinstance(n, ast.Constant) and "::" in str(n.value)}

    def about(node: ast.AST) -> bool:
        parts = list(ast.walk(node))
        return any(isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == name for n in parts) or any(
            isinstance(n, ast.Constant) and n.value in texts for n in parts
        )

    found: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and about(node.value):
            found.append(node)
        elif isinstance(node, ast.FunctionDef) and node.name != name and any(map(about, node.decorator_list)):
            found.append(node)
    return found


def top_level(tree: ast.AST) -> dict[str, Definition]:
    """Functions and classes of a module by name, of several the last."""
    found: dict[str, Definition] = {}
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition):
            found[node.name] = node
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            found.update(top_level(node))
    return found


def definitions_of(module: _Module) -> dict[str, Definition]:
    """The same of a module whose text is known; of another nothing."""
    return top_level(module.source.tree) if module.source is not None else {}


def defining_names(node: ast.AST, *, decorated: bool = True) -> Iterator[str]:
    """Names that a definition reads when it is executed; annotations are texts, and are not read."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        outer: list[ast.AST] = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        outer += getattr(node, "decorator_list", []) if decorated else []
        for part in outer:
            yield from defining_names(part)
    elif isinstance(node, ast.AnnAssign):
        if node.value is not None:
            yield from defining_names(node.value)
    else:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        for child in ast.iter_child_nodes(node):
            yield from defining_names(child)


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
