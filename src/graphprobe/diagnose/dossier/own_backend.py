"""Writes backends and hooks that a program defines as Python text or as an import, so that a repro holds them."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from graphprobe.diagnose.dossier.case_check import made_of
from graphprobe.engine.naming import is_library, short_place
from graphprobe.internals.aot_backends import aot_arguments, registered, unwrapped
from graphprobe.internals.operators.operators import operator_of
from graphprobe.program_text.encoding import Encoder
from graphprobe.program_text.loading import first_line
from graphprobe.program_text.objects import INSTANCE_CALL, INSTANCE_TEXT
from graphprobe.program_text.plain_values import Unwritable
from graphprobe.program_text.program import Place, TextProgram
from graphprobe.program_text.sources import NotRecordable, _Module, bindings, is_own, tree_of
from graphprobe.program_text.text import program_text

STAND_IN = "eager"
"""What `Case.backend` says where the backend has no name."""

LONGEST = 60
"""Lines of text beyond which a module that can be imported is imported."""

STOCK_OPS = frozenset({"aten", "prims", "prim", "higher_order", "inductor", "quantized"})
ON_PATH = "{folder!r} is where the program's {module} lies: or put it on PYTHONPATH."
OUTSIDE = re.compile(r"\b(argv|parse_args|environ|getenv)\b")
"""What another process has otherwise."""


@dataclass(frozen=True)
class OwnBackend:
    """A backend of the program, or what it has put into a setting of torch."""

    name: str  # expression that gives it once `text` has run; mostly a name
    text: str  # Python that defines it, with what it imports and calls, to be put at the top level of a file
    shown: str = ""  # what the program calls it, for messages
    folder: str = ""  # that the text puts on Python's path, for a module that is not installed; empty: none
    live: Any = field(default=None, compare=False, repr=False)  # the program's own object, where this process has it

    def make(self, *, file: str = __file__) -> Any:
        """It, anew from its text; `file`: what the text takes for its own file."""
        return made_of(self.text, self.name, self.shown, file)

    def value(self) -> Any:
        """It, as the program has it, or else anew."""
        return self.make() if self.live is None else self.live


class WrittenBackend:
    """A backend that graphprobe has written for a step of the program's, with the text that a repro holds of it."""

    def __init__(self, text: str, name: str, values: Mapping[str, Any], told: OwnBackend | None) -> None:
        """`text` defines the function `name`, a backend; `values`: live objects, by the names that it has for them.

        `told`: all of it as a repro holds it; None: not all has a text.
        """
        space: dict[str, Any] = {"torch": torch, **values}
        exec(compile(text, f"<{name}>", "exec"), space)
        self.function, self.told, self.__name__ = space[name], told, name

    def __call__(self, gm: Any, inputs: Any) -> Any:
        """Compile a graph."""
        return self.function(gm, inputs)


def own_backend(backend: str | Callable[..., Any]) -> tuple[OwnBackend | None, str]:
    """The text of a backend of the program; or why it has none, as a sentence without its dot.

    It may use whatever stands at the top level of its module, modules of torch, of the standard library, of installed
    packages, and values that a text can give. A name is looked up where the program has registered it.

    A name that stock torch knows needs none, for no reason.
    """
    value, shown = registered(backend) if isinstance(backend, str) else backend, shown_name(backend)
    if value is None:
        return None, ""
    try:
        if isinstance(value, WrittenBackend):
            if value.told is None:
                raise Unwritable("a function of the program, or what it holds, has no text")
            return value.told, ""
        inner, given = unwrapped(value)
        return _told(functools.partial(inner, **given) if given else inner, shown, "backend"), ""
    except Unwritable as error:
        return None, f"the backend {shown} cannot be saved: {error}"


def own_hook(value: Any) -> OwnBackend:
    """What the program has put into a setting of torch.

    Raises:
        Unwritable: no text gives it.
    """
    return _told(value, shown_name(value), "hook")


def shown_name(backend: Any) -> str:
    """What the program calls a backend or a hook, without addresses."""
    if isinstance(backend, str):
        return f'"{backend}"'
    inner, _ = unwrapped(backend)
    found = next(global_names(inner), None)
    if found is not None:
        module = str(found[0].get("__name__", ""))
        return found[1] if module == "__main__" else f"{found[1]} of {module}"
    if isinstance(inner, FunctionType | type):
        return inner.__qualname__.replace("<locals>.", "")
    if isinstance(inner, WrittenBackend):
        return inner.__name__
    if isinstance(inner, MethodType):
        return f"{shown_name(inner.__self__)}.{inner.__name__}"
    if isinstance(inner, functools.partial):
        return f"functools.partial({shown_name(inner.func)}, ...)"
    arguments = aot_arguments(inner)
    if arguments is not None:
        return f"aot_autograd(fw_compiler={shown_name(arguments['fw_compiler'])})"
    return re.sub(r" at 0x[0-9a-f]+", "", " ".join(repr(inner).split()))[:80]


def place_of_backend(backend: Any) -> str | None:
    """`file:line` where the program defines a backend, or names it; None where it does neither."""
    inner, _ = unwrapped((registered(backend) or backend) if isinstance(backend, str) else backend)
    while isinstance(inner, functools.partial):
        inner = inner.func
    if isinstance(inner, WrittenBackend):
        return None
    code = getattr(inspect.unwrap(inner), "__code__", None)
    if code is None and (found := next(global_names(inner), None)) is not None:
        nodes = bindings(tree_of(_Module("", found[0], True))).get(found[1], [])
        return short_place(found[0]["__file__"], nodes[0].lineno) if nodes else None
    arguments = aot_arguments(inner)
    if code is None and arguments is not None:
        return place_of_backend(arguments["fw_compiler"])
    code = code or getattr(type(inner).__call__, "__code__", None)
    own = code is not None and not is_library(code.co_filename)
    return short_place(code.co_filename, code.co_firstlineno) if code is not None and own else None


def merged_text(owns: Iterable[OwnBackend]) -> str | None:
    """The texts of several as one, each statement once; None where a name means different things in them."""
    imports: dict[str, ast.stmt] = {}
    others: dict[str, ast.stmt] = {}
    meanings: dict[str, str] = {}
    for own in owns:
        for text, node in _statements(own.text):
            for name, meaning in _meanings(node):
                if meanings.setdefault(name, meaning) != meaning:
                    return None
            (imports if isinstance(node, ast.Import | ast.ImportFrom) else others)[text] = node
    if any(own.folder for own in owns):  # what is imported may need the path before
        lines = dict.fromkeys(text for own in owns for text, _ in _statements(own.text))
        return "\n".join(lines) + "\n"
    return "\n\n\n".join(filter(None, ["\n".join(imports), *others])) + "\n"


def _meanings(node: ast.stmt) -> list[tuple[str, str]]:
    """Names that a statement binds at the top level, with what they then mean."""
    if isinstance(node, ast.ImportFrom):
        return [(alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names]
    if isinstance(node, ast.Import):
        tops = [alias.name.partition(".")[0] for alias in node.names]
        return [(a.asname or top, a.name if a.asname else top) for a, top in zip(node.names, tops, strict=True)]
    return [(name, ast.dump(node)) for name in bindings(ast.Module([node], []))]


def _statements(text: str) -> list[tuple[str, ast.stmt]]:
    """The statements of a text, each with the comments above it."""
    lines, end, found = text.splitlines(), 0, []
    for node in ast.parse(text).body:
        last = node.end_lineno or node.lineno
        found.append(("\n".join(lines[end:last]).strip("\n"), node))
        end = last
    return found


def _told(value: Any, shown: str, name: str) -> OwnBackend:
    """The text; an import, where the module can be found by its name and the text would be long, or there is none."""
    imported = _imported(value, shown)
    try:
        found, text, folders = own_text(value, name)
    except Unwritable:
        if imported is None:
            raise
        return imported
    told = OwnBackend(found, text, shown, ", ".join(dict.fromkeys(folders.values())), value)
    return told if imported is None or told.text.count("\n") <= LONGEST else imported


def _imported(value: Any, shown: str) -> OwnBackend | None:
    """It as an import of its module, where that can be found by its name."""
    for namespace, name in global_names(value):
        module = str(namespace.get("__name__", ""))
        folder = folder_of(module)
        if folder is not None:
            text = with_imports([f"from {module} import {name}"], {module: folder}, "")
            return OwnBackend(name, text, shown, folder, value)
    return None


class OwnProgram(TextProgram):
    """As any program; what a statement makes is told by it, where it still says what the value is.

    So an object is as new, whatever it was used for since, and may be one that cannot be looked into.
    """

    told_alone = True

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self._globals: dict[int, list[tuple[Mapping[str, Any], str]]] = {}
        for namespace, name, value in _globals():
            self._globals.setdefault(id(value), []).append((namespace, name))

    def describe(self, value: Any, entry: dict[str, Any], path: str) -> dict[str, Any] | None:
        """As for any program; an operator that the program registers has no text."""
        operator = operator_of(value)
        if operator is not None and operator.namespace not in STOCK_OPS:
            raise NotRecordable(f"it uses the operator {value}, which the program registers")
        return super().describe(value, entry, path)

    def _place(self, value: Any) -> Place | None:
        found = super()._place(value)
        if found is not None or is_plain(value):
            return found
        for namespace, name in self._globals.get(id(value), ()):
            module = self._module_of(namespace)
            nodes = bindings(tree_of(module)).get(name, [])
            if len(nodes) == 1 and says(nodes[0], value):
                return module, name, nodes[0]
        return None

    def _need(self, module: Any, names: set[str]) -> None:
        super()._need(module, {name for name in names if not (name.startswith("__") and name.endswith("__"))})

    def _function(
        self, code: CodeType, namespace: dict[str, Any], cells: Mapping[str, Any], entry: dict[str, Any], path: str
    ) -> dict[str, Any]:
        if not linecache.getlines(code.co_filename):
            raise NotRecordable(f"{code.co_name} has no text of its own in a file")
        return super()._function(code, namespace, cells, entry, path)

    def _function_value(self, function: FunctionType, entry: dict[str, Any], path: str) -> dict[str, Any]:
        made = super()._function_value(function, entry, path)
        made.get("state", {}).pop("_tags", None)  # torch's, of a backend that has a name
        return made

    def _whole(self, module: ModuleType) -> str:
        folder = folder_of(module.__name__)
        if folder is None:
            raise NotRecordable(f"it uses the module {module.__name__}, which cannot be imported elsewhere")
        self.folders[module.__name__] = folder
        return module.__name__


def own_text(value: Any, name: str) -> tuple[str, str, dict[str, str]]:
    """An expression that gives `value` once a text has run, that text, and folders of modules that it imports, by name.

    Args:
        name: for a value that the program has no name for.

    Raises:
        Unwritable: there is none; the message says why.
    """
    try:
        told = program_text({name: value}, reserved={}, program=OwnProgram)
    except Unwritable as error:
        raise Unwritable(str(error).removeprefix(f"{name}: ")) from error
    if told.files:
        raise Unwritable(f"modules of the program use one name for different things: {', '.join(told.modules)}")
    if told.stored:
        raise Unwritable(f"it holds tensors with too many values: {', '.join(told.stored)}")
    text, found = told.text, told.roots[name]
    if not found.replace(".", "").isidentifier():
        while name in bindings(ast.parse(text)):
            name += "_"
        between = "\n\n\n" if text.rpartition("\n")[2].startswith(" ") else "\n"
        text, found = f"{text}{between}{name} = {found}", name
    if INSTANCE_CALL.search(text):
        text = f"{INSTANCE_TEXT}\n\n\n{text}"
    needless = set() if re.search(r"\btorch\b", text) else {"import torch"}
    return found, with_imports({*told.imports} - needless, told.folders, text), told.folders


def with_imports(imports: Iterable[str], folders: Mapping[str, str], text: str) -> str:
    """Imports, one for each module that names are taken from, and the folders where modules lie; then the text."""
    taken: dict[str, list[str]] = {}
    for line in sorted(line for line in imports if line.startswith("from ")):
        module, _, name = line.removeprefix("from ").partition(" import ")
        taken.setdefault(module, []).append(name)
    lines = sorted(line for line in imports if line.startswith("import ") and not (folders and line == "import sys"))
    lines += [f"from {module} import {', '.join(names)}" for module, names in taken.items()]
    paths = [
        f"# {ON_PATH.format(folder=folder, module=module)}\nsys.path.insert(0, {folder!r})"
        for module, folder in folders.items()
    ]
    head = "\n\n".join(filter(None, ["import sys" if paths else "", "\n".join(paths), "\n".join(lines)]))
    return "\n\n\n".join(filter(None, [head, text.strip()])) + "\n"


def is_plain(value: Any) -> bool:
    """Whether its `repr` says all, and nobody can change it."""
    if type(value) is tuple:
        return all(map(is_plain, value))
    return value is None or value is Ellipsis or type(value) in (bool, int, float, complex, str, bytes)


def says(node: ast.stmt, value: Any) -> bool:
    """Whether a statement still makes what a value is, as far as can be seen; a definition as it stands does not."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        code = getattr(value, "__code__", None) if type(value) is FunctionType else None
        plain = code is not None and (code.co_name, code.co_firstlineno) == (node.name, first_line(node))
        return bool(node.decorator_list) and not plain
    if isinstance(node, ast.ClassDef):
        return not issubclass(type(value), type)
    if (
        not isinstance(node, ast.Assign | ast.AnnAssign)
        or node.value is None
        or OUTSIDE.search(ast.unparse(node.value))
    ):
        return False
    try:
        literal = ast.literal_eval(node.value)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return True
    return type(literal) is type(value) and bool(literal == value)


def global_names(value: Any) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Modules of the program, as their globals, with the name that an object has there; where it was made first."""
    found = [] if is_plain(value) else [(space, name) for space, name, held in _globals() if held is value]
    made = getattr(value, "__module__", None)
    yield from sorted(found, key=lambda item: (item[0].get("__name__") != made, _is_imported(item)))


def _globals() -> Iterator[tuple[Mapping[str, Any], str, Any]]:
    """Globals of what is loaded and belongs to the program, its script first."""
    loaded: list[tuple[str, Any]] = list(sys.modules.items())
    for name, module in sorted(loaded, key=lambda item: item[0] != "__main__"):
        if isinstance(module, ModuleType) and is_own(name):
            for key, value in list(vars(module).items()):
                if not key.startswith("__"):
                    yield vars(module), key, value


def _is_imported(item: tuple[Mapping[str, Any], str]) -> bool:
    nodes = bindings(tree_of(_Module("", item[0], True))).get(item[1], [])
    return any(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes)


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
