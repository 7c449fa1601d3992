"""What a program consists of, as text needs it: also what definitions read when they are executed."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Collection, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from graphprobe.program_text.encoding import Encoder
from graphprobe.program_text.libraries import RebuildCall
from graphprobe.program_text.program import CodeRecorder, _Module
from graphprobe.program_text.rebuild import code_objects, find_class
from graphprobe.program_text.sources import (
    NotRecordable,
    SourceFile,
    first_line,
    is_own,
    lines_of,
    names_when_defined,
)

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
PATTERNS = "torch._inductor."
"""Objects of classes from there are changed by functions that they are given to: pattern matchers."""


Place = tuple[_Module, str, ast.stmt]
"""Where a value comes from: a module of the program, the name there, the statement that binds it."""


class TextProgram(CodeRecorder):
    """Finds what a record needs, what definitions need when they are executed, and values that a decorator has made.

    Attributes:
        statements: by module and name, those that make a value and add to it, for records of the kind `stated`.
        folders: where modules lie that are imported and not installed, by name.
    """

    told_alone = False
    """Whether the text runs by itself, and once: without the helper `INSTANCE`, with names that annotations read."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.statements: dict[tuple[str, str], list[ast.stmt]] = {}
        self.folders: dict[str, str] = {}
        self._places: dict[int, Place] = {}

    @property
    def modules(self) -> list[_Module]:
        """The program's own modules, in the order in which they were met."""
        return [module for module in self._modules.values() if module.own]

    def module_named(self, name: str) -> _Module:
        """One of all modules."""
        return next(module for module in self._modules.values() if module.name == name)

    def stated(self, value: Any, entry: dict[str, Any], path: str) -> dict[str, Any] | None:
        """A value by the statement that has made it, as what decorates a `def` does, and by those that add to it."""
        place = self._places.get(id(value)) or self._place(value)
        if place is None:
            return None
        module, name, node = place
        assert module.source is not None
        entry |= {"kind": "stated", "module": module.name, "qualname": name}
        statements = [node, *statements_about(module.source.tree, name, node, value)]
        self.statements[module.name, name] = statements
        for code in code_objects(module.source.code):
            if any(code.co_firstlineno in lines_of(s) for s in statements):
                self._uses(code, module)
        names = {used for statement in statements for used in self._read_by(statement)}
        self._need(module, (names - {name}) & set(module.namespace))
        return entry

    def describe(self, value: Any, entry: dict[str, Any], path: str) -> dict[str, Any] | None:
        """As `CodeRecorder` does; by its call what torch has made of a function."""
        made = _made_by_torch(value) if type(value) is FunctionType else None
        if made is None:
            return super().describe(value, entry, path)
        return self._encoder.call(made, entry, path)

    def _place(self, value: Any) -> Place | None:
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

    def _decorated(self, module: _Module, name: str, value: Any) -> Place | None:
        if module.namespace.get(name) is not value:
            return None
        statement = top_level(tree_of(module)).get(name)
        return (
            (module, name, statement) if isinstance(statement, ast.FunctionDef) and statement.decorator_list else None
        )

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
        self._need(module, self._read_by(self.node_of(made), decorated=False) & set(namespace))
        return made

    def _read_by(self, node: ast.AST, *, decorated: bool = True) -> set[str]:
        found = set(defining_names(node, decorated=decorated))
        if self.told_alone:
            notes = [getattr(n, "annotation", None) or getattr(n, "returns", None) for n in ast.walk(node)]
            found |= {n.id for note in notes if note is not None for n in ast.walk(note) if isinstance(n, ast.Name)}
        return found

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


def _made_by_torch(function: FunctionType) -> RebuildCall | None:
    """The call of torch that made a function, where all that it was given is kept, as by `vmap`."""
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
    return RebuildCall(maker, (), given) if needed <= set(given) <= set(parameters) else None


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
    return names_when_defined(node, decorated=decorated, annotations=False)


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
