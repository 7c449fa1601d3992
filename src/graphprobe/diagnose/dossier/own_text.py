"""An object of a program as Python text that defines it anew, from the statements of the program that make it."""

from __future__ import annotations

import ast
import importlib.util
import linecache
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from graphprobe.diagnose.program_text.objects import INSTANCE, INSTANCE_TEXT
from graphprobe.diagnose.program_text.parts import Place, TextProgram, bindings, tree_of
from graphprobe.diagnose.program_text.plain_values import Unwritable
from graphprobe.diagnose.program_text.text import program_text
from graphprobe.internals.dynamo.torch_backends import aot_arguments, aot_autograd
from graphprobe.internals.operators.operators import operator_of
from graphprobe.probe.frames.encoding import Encoder
from graphprobe.probe.frames.libraries import RebuildCall
from graphprobe.probe.frames.program import _Module
from graphprobe.probe.frames.sources import NotRecordable, first_line, is_own

STOCK_OPS = frozenset({"aten", "prims", "prim", "higher_order", "inductor", "quantized"})
ON_PATH = "{folder!r} is where the program's {module} lies: or put it on PYTHONPATH."
OUTSIDE = re.compile(r"\b(argv|parse_args|environ|getenv)\b")
"""What another process has otherwise."""


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
        """As for any program; backends of AOTAutograd by what they were given."""
        operator = operator_of(value)
        if operator is not None and operator.namespace not in STOCK_OPS:
            raise NotRecordable(f"it uses the operator {value}, which the program registers")
        arguments = aot_arguments(value)
        if arguments is None:
            return super().describe(value, entry, path)
        return self._encoder.call(RebuildCall(aot_autograd(), (), arguments), entry, path)

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
    if f"{INSTANCE}(" in text:
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
