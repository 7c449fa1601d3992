"""Objects of a program as Python text: the statements of its modules that make them, with all that these use."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import inspect
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from graphprobe.diagnose.dossier.own_modules import (
    DEFINITIONS,
    IMPORTS,
    OwnModule,
    folder_of,
    is_found,
    module_of_globals,
    names_in,
    program_modules,
    undecorated,
)
from graphprobe.diagnose.dossier.own_statements import (
    bare,
    changes_of,
    dedented,
    defines,
    is_as_written,
    is_plain,
    is_stale,
    node_of,
)
from graphprobe.internals.operators import operator_of
from graphprobe.internals.program_backends import aot_arguments

LAST = sys.maxsize
"""Line of what stands behind all statements of a module."""
STOCK_OPS = frozenset({"aten", "prims", "prim", "higher_order", "inductor", "quantized"})
ON_PATH = "{folder!r} is where the program's {module} lies: or put it on PYTHONPATH."


class Untellable(Exception):
    """Something cannot be told as text; the message says what and why."""


class OwnText:
    """Collects what is needed: import lines, statements in the order of their files, values that have no statement."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.folders: dict[str, str] = {}
        self._pieces: dict[tuple[int, float, int], str] = {}
        self._ranks: dict[str, int] = {}
        self._modules: dict[str, OwnModule] = {}
        self._meanings: dict[str, Any] = {}
        self._taken: set[tuple[str, int, int]] = set()
        self._open: set[int] = set()
        self._made: dict[int, str] = {}

    def text(self) -> str:
        """All of it, to be put where a module has its statements."""
        found = ""
        if self.folders:
            self.imports.add("import sys")
        paths = [
            f"# {ON_PATH.format(folder=folder, module=module)}\nsys.path.insert(0, {folder!r})"
            for module, folder in self.folders.items()
        ]
        lines = _import_lines(self.imports)
        first = [line for line in lines if not self.folders or line == "import sys"]
        blocks = ["\n".join(first), "\n".join(paths), "\n".join(line for line in lines if line not in first)]
        found = "\n\n".join(filter(None, blocks))
        was_definition = bool(found)
        for _, piece in sorted(self._pieces.items()):
            definition = piece.startswith(("def ", "class ", "async ", "@"))
            between = "\n\n\n" if definition or was_definition else "\n"
            found += (between if found else "") + piece
            was_definition = definition
        return found + "\n"

    def named(self, name: str, text: str) -> str:
        """Give an expression a name, behind everything else; the name that it got."""
        name = self._free(name)
        self._pieces[len(self._ranks), LAST, len(self._pieces)] = f"{name} = {text}"
        return name

    # -- expressions --------------------------------------------------------------------------------------------------

    def expression(self, value: Any, what: str) -> str:
        """Text that gives `value`, once the statements have run.

        Raises:
            Untellable: there is none; `what` says in the message whose value it is.
        """
        if is_plain(value):
            return self._plain(value)
        if id(value) in self._made:
            return self._made[id(value)]
        if id(value) in self._open:
            raise Untellable(f"{what} leads back to itself")
        self._open.add(id(value))
        try:
            return self._expression(value, what)
        finally:
            self._open.discard(id(value))

    def _expression(self, value: Any, what: str) -> str:
        found = self._of_library(value, what) or self._global(value)
        if found is not None:
            return found
        for kind, tell in self._forms():
            if isinstance(value, kind):
                return tell(value, what)
        arguments = aot_arguments(value)
        if arguments is not None:
            self.imports.add("from torch._dynamo.backends.common import aot_autograd")
            return self._call("aot_autograd", (), arguments, what)
        return self._instance(value, what)

    def _forms(self) -> tuple[tuple[Any, Callable[[Any, str], str]], ...]:
        return (
            ((list, tuple, set, frozenset), self._items),
            (dict, self._dict),
            (functools.partial, self._partial),
            (MethodType, lambda v, what: f"{self.expression(v.__self__, what)}.{v.__name__}"),
            (FunctionType, self._local),
            (type, self._local_class),
            (ModuleType, self._module),
        )

    def _plain(self, value: Any) -> str:
        if isinstance(value, tuple):
            parts = [self._plain(item) for item in value]
            return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        return repr(value)

    def _items(self, value: Any, what: str) -> str:
        inner = ", ".join(self.expression(item, f"an entry of {what}") for item in value)
        if type(value) is list:
            return f"[{inner}]"
        if type(value) is tuple:
            return f"({inner}{',' if len(value) == 1 else ''})"
        if type(value) in (set, frozenset):
            return f"{type(value).__name__}([{inner}])"
        raise Untellable(f"{what} is a {type(value).__name__}")

    def _dict(self, value: Any, what: str) -> str:
        if type(value) is not dict:
            raise Untellable(f"{what} is a {type(value).__name__}")
        entry = f"an entry of {what}"
        pairs = [f"{self.expression(k, entry)}: {self.expression(v, entry)}" for k, v in value.items()]
        return f"{{{', '.join(pairs)}}}"

    def _partial(self, value: Any, what: str) -> str:
        self.imports.add("import functools")
        args = (self.expression(value.func, what), *(self.expression(v, what) for v in value.args))
        return self._call("functools.partial", args, value.keywords, what)

    def _call(self, function: str, args: tuple[str, ...], keywords: Mapping[str, Any], what: str) -> str:
        given = [f"{name}={self.expression(v, f'{name} of {what}')}" for name, v in keywords.items()]
        return f"{function}({', '.join([*args, *given])})"

    def _module(self, value: Any, what: str) -> str:
        self.imports.add(self._import_module(value, value.__name__))
        return str(value.__name__)

    def _instance(self, value: Any, what: str) -> str:
        """An object of the program's class that is reached under no name: without its constructor."""
        kind = type(value)
        plain = all(getattr(kind, name) is getattr(object, name) for name in ("__reduce_ex__", "__new__"))
        slots = [name for c in kind.__mro__ for name in getattr(c, "__slots__", ())]
        if is_found(kind.__module__) or not plain or slots or isinstance(value, torch.nn.Module):
            raise Untellable(f"{what} is an object of {kind.__qualname__} that no statement of its module makes")
        made, name = self.expression(kind, what), self._free(kind.__name__.lower().lstrip("_") or "made")
        state = self._call("", (), vars(value), what) if vars(value) else ""
        home = self._of(sys.modules[kind.__module__].__dict__ if kind.__module__ in sys.modules else {})
        self._put(home, LAST, f"{name} = object.__new__({made})" + (f"\nvars({name}).update{state}" if state else ""))
        self._made[id(value)] = name
        return name

    def _free(self, name: str) -> str:
        found, i = name, 1
        while found in self._meanings:
            i += 1
            found = f"{name}_{i}"
        self._meanings[found] = object()
        return found

    # -- what a library has -------------------------------------------------------------------------------------------

    def _of_library(self, value: Any, what: str) -> str | None:
        if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
            self.imports.add("import torch")
            return f'torch.device("{value}")' if isinstance(value, torch.device) else str(value)
        operator = operator_of(value)
        if operator is not None:
            return self._operator(value, operator.namespace)
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if module == "builtins" and isinstance(name, str) and getattr(builtins, name, None) is value:
            return name
        if not (isinstance(module, str) and isinstance(name, str) and is_found(module) and module in sys.modules):
            return None
        if _reached(sys.modules[module], name) is not value:
            return None
        self.imports.add(f"import {module}")
        return f"{module}.{name}"

    def _operator(self, value: Any, namespace: str) -> str:
        if namespace not in STOCK_OPS:
            raise Untellable(f"it uses the operator {value}, which the program registers")
        self.imports.add("import torch")
        return f"torch.ops.{value}"

    def _import_module(self, module: ModuleType, name: str) -> str:
        """The line that binds a module to a name."""
        full = module.__name__
        if not is_found(full):
            folder = folder_of(full)
            if folder is None:
                raise Untellable(f"it uses the module {full}, which cannot be imported elsewhere")
            self.folders[full] = folder
        return f"import {full}" if name == full else f"import {full} as {name}"

    # -- globals of the program ---------------------------------------------------------------------------------------

    def _global(self, value: Any) -> str | None:
        """Have a global of the program in place that is this object; its name."""
        found = next(global_names(value), None)
        if found is None:
            return None
        self.take(self._of(found[0]), found[1])
        return found[1]

    def _of(self, namespace: Mapping[str, Any]) -> OwnModule:
        name = str(namespace.get("__name__", ""))
        if name not in self._modules or self._modules[name].namespace is not namespace:
            self._modules[name] = module_of_globals(namespace)
        return self._modules[name]

    def take(self, home: OwnModule, name: str) -> None:
        """Have a global in place under its name, with what it needs."""
        value = home.namespace[name]
        if name in self._meanings:
            if self._meanings[name] is not value and not (is_plain(value) and self._meanings[name] == value):
                raise Untellable(f"it uses two things called {name}")
            return
        self._meanings[name] = value
        nodes = home.bindings.get(name, [])
        node = nodes[0] if len(nodes) == 1 else next((n for n in nodes if defines(n, value)), None)
        if isinstance(node, IMPORTS):
            self._take_import(home, node, name, value)
        elif isinstance(value, ModuleType):
            self.imports.add(self._import_module(value, name))
        elif node is None and (text := self._of_library(value, name)) is not None:
            self._put(home, 0, f"{name} = {text}")
        elif node is None or is_stale(node, value):
            self._take_value(home, node, name, value)
        else:
            self._take_statement(home, node, value, name)

    def _take_import(self, home: OwnModule, node: ast.stmt, name: str, value: Any) -> None:
        assert isinstance(node, ast.Import | ast.ImportFrom)
        alias = next(a for a in node.names if name in (a.asname, a.name.partition(".")[0]))
        if isinstance(node, ast.Import):
            same = [a for a in node.names if a is alias or (a.asname is None and a.name.partition(".")[0] == name)]
            for one in same:
                self._check_found(one.name)
                self.imports.add(f"import {one.name}" + (f" as {one.asname}" if one.asname else ""))
            return
        module = "." * node.level + (node.module or "")
        if node.level:
            module = resolved(module, str(home.namespace.get("__package__") or ""))
        if isinstance(value, ModuleType):
            self.imports.add(self._import_module(value, name))
        elif is_found(module):
            self.imports.add(f"from {module} import {alias.name}" + (f" as {name}" if alias.name != name else ""))
        else:
            self._take_from(sys.modules[module].__dict__, alias.name, name, value, home)

    def _take_from(self, namespace: Mapping[str, Any], name: str, here: str, value: Any, home: OwnModule) -> None:
        """A global that comes from another module of the program."""
        if name == here:
            del self._meanings[here]
        self.take(self._of(namespace), name)
        if name != here:
            self._put(home, 0, f"{here} = {name}")

    def _check_found(self, module: str) -> None:
        if not is_found(module):
            self._import_module(sys.modules[module], module)

    def _take_value(self, home: OwnModule, node: ast.stmt | None, name: str, value: Any) -> None:
        """A global as it is now, for there is no statement that says so."""
        if isinstance(value, FunctionType | type) and not is_plain(value):
            text = self._local(value, name) if isinstance(value, FunctionType) else self._local_class(value, name)
            if text != name:
                self._put(home, LAST, f"{name} = {text}")
            return
        before = len(self._pieces)
        text = self.expression_of_parts(value, name)
        alone = len(self._pieces) == before
        self._put(home, (node.lineno if node is not None else 0) if alone else LAST, f"{name} = {text}")

    def expression_of_parts(self, value: Any, what: str) -> str:
        """As `expression`, and never the name under which the value is known."""
        if is_plain(value):
            return self._plain(value)
        for kind, tell in self._forms()[:4]:
            if isinstance(value, kind):
                return tell(value, what)
        arguments = aot_arguments(value)
        if arguments is None:
            return self._instance(value, what)
        self.imports.add("from torch._dynamo.backends.common import aot_autograd")
        return self._call("aot_autograd", (), arguments, what)

    def _take_statement(self, home: OwnModule, node: ast.stmt, value: Any, name: str) -> None:
        key = (home.name, node.lineno, node.col_offset)
        if key in self._taken:
            return
        self._taken.add(key)
        decorated = not (isinstance(node, ast.FunctionDef) and is_as_written(node, value))
        self._statement(home, node, decorated=decorated)
        for other in changes_of(home, name, value):
            place = (home.name, other.lineno, other.col_offset)
            if place not in self._taken:
                self._taken.add(place)
                if isinstance(other, DEFINITIONS):
                    self._meanings[other.name] = home.namespace[other.name]
                self._statement(home, other, decorated=True)

    def _statement(self, home: OwnModule, node: ast.stmt, *, decorated: bool) -> None:
        text = home.text_of(node, decorated=decorated)
        missing = self._needs(home, text, getattr(node, "name", None))
        if missing and isinstance(node, DEFINITIONS):
            text = ast.unparse(bare(node if decorated else undecorated(node)))
            missing = self._needs(home, text, node.name)
        if missing:
            raise Untellable(f"it uses {sorted(missing)[0]}, which is not defined")
        self._put(home, node.lineno, text)

    def _needs(self, home: OwnModule, text: str, own: str | None) -> set[str]:
        """Have in place what a text reads; names that are not there."""
        names = {n for n in names_in(text) if not (n.startswith("__") and n.endswith("__"))} - {own}
        for name in sorted(names & set(home.namespace)):
            self.take(home, name)
        return {n for n in names if n not in home.namespace and not hasattr(builtins, n)}

    def _put(self, home: OwnModule, line: float, text: str) -> None:
        rank = self._ranks.setdefault(home.name, len(self._ranks))
        self._pieces[rank, line, len(self._pieces)] = text

    # -- functions and classes inside of functions --------------------------------------------------------------------

    def _local(self, function: Any, what: str) -> str:
        """A function that was made inside of another one becomes global, and so does what it takes from there."""
        home, name = self._of(function.__globals__), str(function.__name__)
        node = node_of(function, home.text)
        if node is None:
            raise Untellable(f"{name} has no text of its own in a file")
        if isinstance(node, ast.Lambda):
            text, name = ast.unparse(node), "<lambda>"
        else:
            text = ast.unparse(undecorated(node)) if node.decorator_list else dedented(home, node)
            self._claim(name, function)
        if any(isinstance(n, ast.Nonlocal) for n in ast.walk(node)):
            raise Untellable(f"{what}: {name} changes variables of the function around it")
        if not all(is_plain(v) for v in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())):
            raise Untellable(f"{what}: arguments of {name} have defaults that are no plain values")
        taken = self._closure(home, function, node.lineno)
        self._rest(home, text, {name, *taken})
        if isinstance(node, ast.Lambda):
            return f"({text})"
        self._put(home, node.lineno, text)
        return name

    def _closure(self, home: OwnModule, function: Any, line: int) -> list[str]:
        taken = []
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name == "__class__":
                continue
            value = _content(cell, name)
            taken.append(name)
            if value is function or self._meanings.get(name) is value:
                continue
            self._claim(name, value)
            text = self._plain(value) if is_plain(value) else self._inner(value, name)
            if text != name:
                self._put(home, line - 0.5, f"{name} = {text}")
        return taken

    def _inner(self, value: Any, name: str) -> str:
        if isinstance(value, FunctionType) and value.__name__ == name and "<locals>" in value.__qualname__:
            del self._meanings[name]
        if isinstance(value, ModuleType):
            self.imports.add(self._import_module(value, name))
            return name
        return self.expression(value, name)

    def _claim(self, name: str, value: Any) -> None:
        if self._meanings.setdefault(name, value) is not value:
            raise Untellable(f"it uses two things called {name}")

    def _rest(self, home: OwnModule, text: str, own: set[str]) -> None:
        """What a local definition reads besides its closure."""
        names = {n for n in names_in(text) if not (n.startswith("__") and n.endswith("__"))} - own
        for name in sorted(names & set(home.namespace)):
            self.take(home, name)
        missing = sorted(n for n in names if n not in home.namespace and not hasattr(builtins, n))
        if missing:
            raise Untellable(f"it uses {missing[0]}, which is known inside of a function only")

    def _local_class(self, kind: Any, what: str) -> str:
        home = self._of(getattr(sys.modules.get(kind.__module__), "__dict__", {}))
        try:
            text = textwrap.dedent(inspect.getsource(kind)).rstrip()
            line = inspect.getsourcelines(kind)[1]
        except (OSError, TypeError) as error:
            raise Untellable(f"{what}: {kind.__name__} has no text of its own in a file") from error
        self._claim(kind.__name__, kind)
        taken = [kind.__name__]
        for method in vars(kind).values():
            if isinstance(method, FunctionType):
                taken += self._closure(home, method, line)
        self._rest(home, text, set(taken))
        self._put(home, line, text)
        return str(kind.__name__)


def _import_lines(imports: set[str]) -> list[str]:
    """Import statements, one for each module that names are taken from."""
    taken: dict[str, list[str]] = {}
    for line in sorted(line for line in imports if line.startswith("from ")):
        module, _, name = line.removeprefix("from ").partition(" import ")
        taken.setdefault(module, []).append(name)
    plain = sorted(line for line in imports if line.startswith("import "))
    return [*plain, *(f"from {module} import {', '.join(names)}" for module, names in taken.items())]


def global_names(value: Any) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Modules of the program, as their globals, with the name that an object has there; where it was made first."""
    if is_plain(value):
        return
    found = [
        (vars(module), name)
        for module in program_modules()
        for name, held in list(vars(module).items())
        if held is value and not name.startswith("__")
    ]
    made = getattr(value, "__module__", None)
    yield from sorted(found, key=lambda item: (item[0].get("__name__") != made, _is_imported(item)))


def _is_imported(item: tuple[Mapping[str, Any], str]) -> bool:
    nodes = module_of_globals(item[0]).bindings.get(item[1], [])
    return any(isinstance(node, IMPORTS) for node in nodes)


def resolved(name: str, package: str) -> str:
    """The absolute name of a relative module."""
    return importlib.util.resolve_name(name, package) if package else name.lstrip(".")


def _reached(module: ModuleType, name: str) -> Any:
    try:
        return functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        return None


def _content(cell: CellType, name: str) -> Any:
    try:
        return cell.cell_contents
    except ValueError as error:
        raise Untellable(f"{name} has no value yet") from error


def shortened(text: str) -> str:
    """A text for a message: one line, no addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", " ".join(text.split()))[:80]
