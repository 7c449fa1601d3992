"""Who may import whom: reads the imports of `src/graphprobe` and holds them against the table of ARCHITECTURE.md.

The checker works on source text, so that the tests below can hand it small bad modules and see it object.
"""

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, module_at
from graphprobe.faces import imported_for_types

sizes = module_at("scripts", "sizes.py")

LAYERS = sizes.layers()
"""A room may import from its own layer, without a cycle, and from the layers before it."""

RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}

TORCH_SIDE = frozenset(
    {"internals", "engine", "judge", "program_text", "probe", "backends", "ops", "diagnose", "watch"}
)
"""Rooms that import torch; rooms in `LAZY`, and `store`, import torch in functions only."""

LAZY = frozenset({"__init__", "__main__", "scope", "api", "compat", "testing", "cli"})

THIRD_PARTY: dict[str, frozenset[str]] = {
    "__init__": frozenset(),
    "__main__": frozenset(),
    **dict.fromkeys(LAYERS[0], frozenset({"msgspec"})),
    "scope": frozenset({"torch"}),
    "store": frozenset({"msgspec", "numpy", "safetensors", "torch"}),
    "numerics": frozenset({"msgspec", "numpy", "safetensors"}),
    "compare": frozenset({"msgspec", "numpy"}),
    "reduce": frozenset({"msgspec", "numpy"}),
    "analysis": frozenset({"msgspec"}),
    "report": frozenset({"msgspec", "jinja2", "rich"}),
    "export": frozenset({"google", "msgspec", "numpy", "onnx"}),  # google.protobuf writes what onnx holds
    "internals": frozenset({"msgspec", "numpy", "sympy", "torch"}),
    "engine": frozenset({"msgspec", "numpy", "safetensors", "torch"}),
    "judge": frozenset({"msgspec", "numpy", "torch"}),
    "program_text": frozenset({"msgspec", "numpy", "torch"}),
    "probe": frozenset({"msgspec", "numpy", "torch"}),
    "backends": frozenset({"msgspec", "numpy", "torch"}),
    "ops": frozenset({"torch"}),
    "diagnose": frozenset({"msgspec", "numpy", "torch"}),
    "watch": frozenset({"msgspec", "numpy", "torch"}),
    "api": frozenset(),
    "compat": frozenset({"msgspec", "click", "torch"}),
    "testing": frozenset({"_pytest", "msgspec", "pytest"}),
    "cli": frozenset({"msgspec", "click", "rich", "torch"}),
}
"""`torch` in `scope`, `store`, `compat` and `cli` means: inside a function."""

PICKLE = frozenset({"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"})
PRINTING = frozenset({"cli", "report"})
LINE_LIMIT = 600


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


def import_faults(found: Any, module: str) -> Iterator[str]:
    room = sizes.room_of(module)
    top = found.name.split(".")[0]
    if top in PICKLE:
        yield f"{found.line}: imports {top}: no pickle here"
    elif top == "graphprobe":
        other = sizes.room_of(found.name)
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
        if room in (*LAZY, "store") and found.running:
            yield f"{found.line}: {room} imports torch when it is loaded; do that inside a function"
        # A constant names private torch where the module's text goes into programs that graphprobe writes.
        if room != "internals" and has_private_part(found.name) and not found.by_constant:
            yield f"{found.line}: {found.name} is private; only internals imports it"


def faults(text: str, module: str, *, is_package: bool = False) -> list[str]:
    """Everything in one module that the table forbids, as `line: what`; lines count from 1, 0 is the whole module."""
    room = sizes.room_of(module)
    if room not in THIRD_PARTY:
        return [f"0: {room} is not a room of the table"]
    tree = ast.parse(text)
    result = [
        fault for found in sizes.imports(tree, module, is_package=is_package) for fault in import_faults(found, module)
    ]
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


MODULES = sizes.modules_of()

FACED = ("store", "judge", "compare", "numerics", "reduce", "report")
"""Rooms that tests of other rooms know by their face: the names of the `__init__`, at most 15."""

MOST_NAMES = 15
FACES = {room: frozenset(importlib.import_module(f"graphprobe.{room}").__all__) for room in FACED}
NAMED = re.compile(r"graphprobe\.(\w+)\.(\w+(?:\.\w+)*)")


def behind_faces(text: str, folder: str) -> list[str]:
    """What a test in `tests/FOLDER` takes from other rooms past their faces, in imports, patches and programs."""
    tree = ast.parse(text)
    imported = ((found.line, found.name) for found in sizes.imports(tree, "tests", is_package=False))
    written = (
        (node.lineno, found[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for found in NAMED.finditer(node.value)
    )
    return [
        f"{line}: {name} is behind the face of {room}"
        for line, name in sorted({*imported, *written})
        for room, rest in NAMED.findall(name)
        if room in FACES and room != folder and rest not in FACES[room]
    ]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_module_keeps_to_its_layer(module: Any) -> None:
    assert faults(module.text, module.name, is_package=module.is_package) == []


@pytest.mark.parametrize("room", FACED)
def test_a_face_is_small_and_each_of_its_names_loads(room: str) -> None:
    package = importlib.import_module(f"graphprobe.{room}")
    assert len(FACES[room]) <= MOST_NAMES
    assert FACES[room] == set(imported_for_types(package))
    assert [name for name in FACES[room] if getattr(package, name, None) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing


def test_tests_know_other_rooms_by_their_faces() -> None:
    tests = ROOT / "tests"
    found = [
        f"{path.relative_to(ROOT)}:{fault}"
        for path in sorted(tests.rglob("*.py"))
        if path.name not in (Path(__file__).name, "test_once.py")  # names what is inside of rooms
        for fault in behind_faces(path.read_text("utf-8"), path.relative_to(tests).parts[0])
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "folder", "faults"),
    [
        ("from graphprobe.store import Run, layout", "cli", 0),
        ("from graphprobe.store.reader import Run", "store", 0),
        ("from graphprobe.store.reader import Run", "cli", 1),
        ("import graphprobe.store.reader", "cli", 1),
        ("from graphprobe.store import reader", "cli", 1),
        ("patch('graphprobe.store.reader.Run.find', None)", "cli", 1),
        ("patch('graphprobe.internals.names.NAMES', None)", "cli", 0),
        ("from graphprobe import compare", "cli", 0),
    ],
)
def test_what_is_behind_a_face(text: str, folder: str, faults: int) -> None:
    assert len(behind_faces(text, folder)) == faults


def test_there_is_something_to_check() -> None:
    assert {"errors", "records"} <= {sizes.room_of(module.name) for module in MODULES}


def test_table_of_rooms_is_read() -> None:
    assert LAYERS[0][0] == "errors" and LAYERS[-1] == ("cli",)
    assert sorted(RANK) == sorted(THIRD_PARTY.keys() - {"__init__", "__main__"})


@pytest.mark.slow
def test_rooms_form_no_cycle() -> None:
    edges: dict[str, set[str]] = {}
    for module in MODULES:
        targets = {
            sizes.room_of(found.name)
            for found in sizes.imports(module.tree, module.name, is_package=module.is_package)
            if found.name.split(".")[0] == "graphprobe"
        }
        edges.setdefault(sizes.room_of(module.name), set()).update(targets & RANK.keys() - {sizes.room_of(module.name)})
    assert sizes.circles(edges) == []


@pytest.mark.parametrize(
    ("module", "text", "expected"),
    [
        ("graphprobe.store.writer", "from graphprobe.probe import session", "lies after it"),
        ("graphprobe.store.writer", "from ..report import html", "lies after it"),
        ("graphprobe.store.writer", "from .. import engine", "lies after it"),
        ("graphprobe.store.writer", "def f():\n from graphprobe.engine import x", "lies after it"),
        ("graphprobe.store.writer", "NAME = 'graphprobe.engine.x'\nimport_module(NAME)", "lies after it"),
        ("graphprobe.records", "from .store import layout", "lies after it"),
        ("graphprobe.store.tensors", "import torch", "inside a function"),
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
        ("graphprobe.report.profile_document", "from rich.text import Text", "report.terminal has the Text"),
        ("graphprobe.report.profile_document", "from rich.console import Console", "draws a random number"),
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
        ("graphprobe.internals.dynamo.dynamo_taps", "import torch._dynamo\nfrom torch._inductor import config"),
        ("graphprobe.engine.compiled", "import torch\nfrom torch.fx import GraphModule\ntorch.__version__\nself._x"),
        (
            "graphprobe.cli.commands.run",
            "import click\ndef run():\n from graphprobe.probe import session\n import torch",
        ),
        ("graphprobe.cli.commands.run", "if TYPE_CHECKING:\n from graphprobe.probe import session\nprint('x')"),
        ("graphprobe", "def __getattr__(name):\n from .probe import session\nfrom .errors import UsageError"),
        ("graphprobe.engine.capture", "import torch\ntorch.load('f', weights_only=True)"),
        ("graphprobe", "if x:\n from graphprobe.api import obey_environment"),
        ("graphprobe.engine.fp64", "import torch\ntorch.ops.aten._softmax.default(x)"),
        ("graphprobe.store.writer", "\n" * LINE_LIMIT),
    ],
)
def test_checker_lets_good_code_pass(module: str, text: str) -> None:
    assert faults(text, module, is_package=module == "graphprobe") == []
