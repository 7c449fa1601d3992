"""Who may import whom: reads the imports of `src/graphprobe` and holds them against the table of ARCHITECTURE.md.

The checker works on source text, so that the tests below can hand it small bad modules and see it object.
"""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT

PACKAGE = ROOT / "src" / "graphprobe"

LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "errors",
        "settings",
        "select",
        "records",
        "findings",
        "dump_plan",
        "compiler_config",
        "scope",
        "callable_package",
    ),
    ("store", "numerics"),
    ("compare", "reduce", "analysis"),
    ("report", "export"),
    ("internals",),
    ("engine",),
    ("judge",),
    ("probe",),
    ("backends", "ops"),
    ("diagnose",),
    ("api", "compat", "testing"),
    ("cli",),
)
"""A room may import from its own layer, without a cycle, and from the layers before it."""

RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}

TORCH_SIDE = frozenset({"internals", "engine", "judge", "probe", "backends", "ops", "diagnose"})
"""Rooms that import torch; `scope`, `api`, `compat`, `testing`, `cli` and the package import them in functions only."""

LAZY = frozenset({"__init__", "__main__", "scope", "api", "compat", "testing", "cli"})

EXCEPTIONS = frozenset({("graphprobe", "graphprobe.probe.switch")})
"""With `TORCH_COMPILE_DEBUG` set the package loads its switch; `test_cold_import.py` watches what that costs."""

THIRD_PARTY: dict[str, frozenset[str]] = {
    "__init__": frozenset(),
    "__main__": frozenset(),
    **dict.fromkeys(LAYERS[0], frozenset({"msgspec"})),
    "scope": frozenset({"torch"}),
    "store": frozenset({"msgspec", "numpy", "safetensors"}),
    "numerics": frozenset({"msgspec", "numpy", "safetensors"}),
    "compare": frozenset({"msgspec", "numpy"}),
    "reduce": frozenset({"msgspec", "numpy"}),
    "analysis": frozenset({"msgspec"}),
    "report": frozenset({"msgspec", "jinja2", "rich"}),
    "export": frozenset({"google", "msgspec", "numpy", "onnx"}),  # google.protobuf writes what onnx holds
    "internals": frozenset({"msgspec", "numpy", "sympy", "torch"}),
    "engine": frozenset({"msgspec", "numpy", "safetensors", "torch"}),
    "judge": frozenset({"msgspec", "numpy", "torch"}),
    "probe": frozenset({"msgspec", "numpy", "torch"}),
    "backends": frozenset({"msgspec", "numpy", "torch"}),
    "ops": frozenset({"torch"}),
    "diagnose": frozenset({"msgspec", "numpy", "torch"}),
    "api": frozenset(),
    "compat": frozenset({"msgspec", "click", "torch"}),
    "testing": frozenset({"_pytest", "msgspec", "pytest"}),
    "cli": frozenset({"msgspec", "click", "rich", "torch"}),
}
"""`torch` in `scope`, `compat` and `cli` means: inside a function."""

PICKLE = frozenset({"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"})
PRINTING = frozenset({"cli", "report"})
LINE_LIMIT = 600


@dataclasses.dataclass(frozen=True)
class Import:
    """One imported name, fully spelled out, e.g. `torch.fx.Graph`; `running` says it happens when the module loads."""

    name: str
    line: int
    running: bool


def room_of(module: str) -> str:
    """`graphprobe.store.writer` -> `store`; the package itself is the room `__init__`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def walk(node: ast.AST, *, running: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below `node`, and whether it runs when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and is_type_checking(child.test):
            for part in child.body:
                yield part, False
                yield from walk(part, running=False)
            for part in child.orelse:
                yield part, running
                yield from walk(part, running=running)
            continue
        inside = running and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield child, running
        yield from walk(child, running=inside)


def imports(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[Import]:
    """All imports of a module, relative ones resolved, `import_module("…")` with a literal included."""
    for node, running in walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, running)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                home = module.split(".") if is_package else module.split(".")[:-1]
                home = home[: len(home) - node.level + 1]
                base = ".".join([*home, *filter(None, [base])])
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, running)
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield Import(str(node.args[0].value), node.lineno, running)


def has_private_part(name: str) -> bool:
    """Whether a name of torch is private; an operator such as `torch.ops.aten._softmax` is not."""
    if name.startswith("torch.ops."):
        return False
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def torch_names(tree: ast.Module) -> dict[str, str]:
    """Local names that stand for torch or something inside it, and what they stand for."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    names[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch" and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def torch_attributes(tree: ast.Module) -> Iterator[tuple[str, ast.Attribute]]:
    """Attribute chains that start at torch, spelled out: `t._C` after `import torch as t` gives `torch._C`."""
    names = torch_names(tree)
    for node in ast.walk(tree):
        parts: list[str] = []
        inner: ast.expr | ast.AST = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if isinstance(node, ast.Attribute) and isinstance(inner, ast.Name) and inner.id in names:
            yield ".".join([names[inner.id], *reversed(parts)]), node


def import_faults(found: Import, module: str) -> Iterator[str]:
    """What is wrong with one import in `module`."""
    room = room_of(module)
    if any(found.name == name or found.name.startswith(f"{name}.") for owner, name in EXCEPTIONS if owner == module):
        return
    top = found.name.split(".")[0]
    if top in PICKLE:
        yield f"{found.line}: imports {top}: no pickle here"
    elif top == "graphprobe":
        other = room_of(found.name)
        if other not in RANK or room not in RANK:  # names of the package itself; the package may show every room
            other = "__init__" if other not in RANK else other
        elif RANK[other] > RANK[room]:
            yield f"{found.line}: {room} imports {other}, which lies after it"
        if room in LAZY and other in TORCH_SIDE and found.running:
            yield f"{found.line}: {room} imports {other} when it is loaded; do that inside a function"
    elif top not in sys.stdlib_module_names and top not in THIRD_PARTY[room]:
        yield f"{found.line}: {room} imports {top}, which is not on its list"
    elif found.name.startswith("rich.text") and module != "graphprobe.report.terminal":
        yield f"{found.line}: report.terminal has the Text that spells out what steers a terminal"
    elif top == "rich" and found.running and module != "graphprobe.report.terminal":
        yield f"{found.line}: rich draws a random number when it is imported; report.terminal does that with care"
    elif top == "torch":
        if room in LAZY and found.running:
            yield f"{found.line}: {room} imports torch when it is loaded; do that inside a function"
        if room != "internals" and has_private_part(found.name):
            yield f"{found.line}: {found.name} is private; only internals imports it"


def faults(text: str, module: str, *, is_package: bool = False) -> list[str]:
    """Everything in one module that the table forbids, as `line: what`; lines count from 1, 0 is the whole module."""
    room = room_of(module)
    if room not in THIRD_PARTY:
        return [f"0: {room} is not a room of the table"]
    tree = ast.parse(text)
    result = [fault for found in imports(tree, module, is_package=is_package) for fault in import_faults(found, module)]
    for name, node in torch_attributes(tree):
        if room != "internals" and has_private_part(name) and not has_private_part(name.rpartition(".")[0]):
            result.append(f"{node.lineno}: {name} is private; only internals uses it")
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        spelled = ast.unparse(call.func)
        if spelled == "print" and room not in PRINTING:
            result.append(f"{call.lineno}: print outside cli and report")
        if spelled in ("click.echo", "click.secho"):
            result.append(f"{call.lineno}: {spelled} sends what steers a terminal; report.visible.echo spells it out")
        weights_only = any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in call.keywords)
        if spelled == "torch.save" or (spelled == "torch.load" and not weights_only):
            result.append(f"{call.lineno}: {spelled} is pickle underneath")
    lines = len(text.splitlines())
    if lines > LINE_LIMIT:
        result.append(f"0: {lines} lines; {LINE_LIMIT} is the limit")
    return result


def cycles(edges: dict[str, set[str]]) -> list[str]:
    """Rooms that can reach themselves."""

    def reaches(start: str) -> set[str]:
        seen: set[str] = set()
        todo = list(edges.get(start, ()))
        while todo:
            if (room := todo.pop()) not in seen:
                seen.add(room)
                todo.extend(edges.get(room, ()))
        return seen

    return sorted(room for room in edges if room in reaches(room))


def module_name(path: Path) -> str:
    parts = list(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_module_keeps_to_its_layer(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert faults(text, module_name(path), is_package=path.name == "__init__.py") == []


def test_there_is_something_to_check() -> None:
    assert {"errors", "records"} <= {room_of(module_name(path)) for path in SOURCES}


def test_rooms_form_no_cycle() -> None:
    edges: dict[str, set[str]] = {}
    for path in SOURCES:
        module = module_name(path)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        targets = {
            room_of(found.name)
            for found in imports(tree, module, is_package=path.name == "__init__.py")
            if found.name.split(".")[0] == "graphprobe"
        }
        edges.setdefault(room_of(module), set()).update(targets & RANK.keys() - {room_of(module)})
    assert cycles(edges) == []


def test_cycle_finder() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]
    assert cycles({"a": {"b"}, "b": set()}) == []


@pytest.mark.parametrize(
    ("module", "text", "expected"),
    [
        ("graphprobe.store.writer", "from graphprobe.probe import session", "lies after it"),
        ("graphprobe.store.writer", "from ..report import html", "lies after it"),
        ("graphprobe.store.writer", "from .. import engine", "lies after it"),
        ("graphprobe.store.writer", "def f():\n from graphprobe.engine import x", "lies after it"),
        ("graphprobe.records", "from .store import layout", "lies after it"),
        ("graphprobe.store.tensors", "import torch", "not on its list"),
        ("graphprobe.report.html", "def f():\n import torch", "not on its list"),
        ("graphprobe.report.html", "if TYPE_CHECKING:\n import torch", "not on its list"),
        ("graphprobe.records", "import numpy as np", "not on its list"),
        ("graphprobe.engine.compiled", "import requests", "not on its list"),
        ("graphprobe.engine.compiled", "import torch._dynamo", "is private"),
        ("graphprobe.engine.compiled", "from torch._inductor import config", "is private"),
        ("graphprobe.engine.compiled", "from torch import _guards", "is private"),
        ("graphprobe.engine.compiled", "from torch.utils import _pytree as pytree", "is private"),
        ("graphprobe.engine.compiled", "import torch\ntorch._dynamo.reset()", "is private"),
        ("graphprobe.engine.compiled", "import torch as t\nx = t.utils._pytree.tree_map", "is private"),
        ("graphprobe.engine.compiled", "from torch import fx\nfx._compatibility.f()", "is private"),
        ("graphprobe.engine.compiled", "import importlib\nimportlib.import_module('torch._dynamo')", "is private"),
        ("graphprobe.cli.commands.run", "from graphprobe.probe import session", "inside a function"),
        ("graphprobe.cli.commands.run", "from ...diagnose import ladder", "inside a function"),
        ("graphprobe.cli.commands.doctor", "import torch", "inside a function"),
        ("graphprobe.cli.commands.doctor", "class A:\n import torch", "inside a function"),
        ("graphprobe.cli.commands.doctor", "try:\n import torch\nexcept ImportError: pass", "inside a function"),
        ("graphprobe.compat.torchair", "from graphprobe.backends import registry", "inside a function"),
        ("graphprobe.api", "from graphprobe.diagnose import api", "inside a function"),
        ("graphprobe", "from .probe import session", "inside a function"),
        ("graphprobe", "import torch", "not on its list"),
        ("graphprobe.store.writer", "import pickle", "no pickle"),
        ("graphprobe.engine.capture", "import torch\ntorch.save(x, 'f')", "pickle underneath"),
        ("graphprobe.engine.capture", "import torch\ntorch.load('f')", "pickle underneath"),
        ("graphprobe.store.writer", "print('x')", "print outside"),
        ("graphprobe.cli.commands.ls", "click.echo('x')", "report.visible.echo"),
        ("graphprobe.report.profile", "from rich.text import Text", "report.terminal has the Text"),
        ("graphprobe.report.profile", "from rich.console import Console", "draws a random number"),
        ("graphprobe.store.writer", "\n" * (LINE_LIMIT + 1), "lines"),
        ("graphprobe.utils", "", "not a room"),
    ],
)
def test_checker_objects(module: str, text: str, expected: str) -> None:
    found = faults(text, module, is_package=module == "graphprobe")
    assert len(found) >= 1
    assert all(expected in fault for fault in found)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (
            "graphprobe.store.writer",
            "import os, msgspec\nfrom ..errors import SchemaError\nfrom .layout import RunLayout",
        ),
        ("graphprobe.internals.dynamo", "import torch._dynamo\nfrom torch._inductor import config"),
        ("graphprobe.engine.compiled", "import torch\nfrom torch.fx import GraphModule\ntorch.__version__\nself._x"),
        (
            "graphprobe.cli.commands.run",
            "import click\ndef run():\n from graphprobe.probe import session\n import torch",
        ),
        ("graphprobe.cli.commands.run", "if TYPE_CHECKING:\n from graphprobe.probe import session\nprint('x')"),
        ("graphprobe", "def __getattr__(name):\n from .probe import session\nfrom .errors import UsageError"),
        ("graphprobe.engine.capture", "import torch\ntorch.load('f', weights_only=True)"),
        ("graphprobe", "if x:\n from graphprobe.probe.switch import obey_environment"),
        ("graphprobe.engine.fp64", "import torch\ntorch.ops.aten._softmax.default(x)"),
        ("graphprobe.store.writer", "\n" * LINE_LIMIT),
    ],
)
def test_checker_lets_good_code_pass(module: str, text: str) -> None:
    assert faults(text, module, is_package=module == "graphprobe") == []
