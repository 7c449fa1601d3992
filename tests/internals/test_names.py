"""The table of private names: complete, true of the torch that is installed, and told in the same way everywhere."""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
import tomllib
import types
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import torch

from conftest import ROOT
from graphprobe.internals import names, taps
from graphprobe.internals.dynamo import dynamo_taps as dynamo
from graphprobe.internals.names import LOSES, NAMES, RUN_LOSES, SUPPORTED, Name, missing
from internals.torch_paths import Reader, Used, torch_paths
from test_layers import has_private_part

PACKAGE = ROOT / "src" / "graphprobe"
TABLE = "graphprobe.internals.names"
NOT_USED = {
    "torch._VF": "how another tool calls functions of the program's dump",
    "torch._numpy": "the beginning of a name that is shown as numpy's",
    "torch._numpy.numpy": "that replacement, read as an address",
}
"""Texts in the sources that look like names of torch."""


@functools.cache
def used() -> frozenset[Used]:
    return frozenset(one for one in torch_paths(PACKAGE, "graphprobe") if one.module != TABLE)


@functools.cache
def words() -> frozenset[str]:
    """Names, attributes and texts of all sources but the table."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        if path.name == "names.py" and path.parent.name == "internals":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for text in (getattr(node, "attr", None), getattr(node, "id", None), getattr(node, "value", None)):
                if isinstance(text, str):
                    found.update((text, *text.split(".")))
    return frozenset(found)


def not_in_table(paths: frozenset[Used]) -> list[str]:
    """Paths that are private, or replaced, and stand neither in the table nor on the way to one that does."""
    table = {name.path for name in NAMES}
    inside = tuple(f"{name.path}." for name in NAMES if name.only_while_lowering)
    ways = {path.rpartition(".")[0] for path in table}
    while longer := {way.rpartition(".")[0] for way in ways} - ways - {""}:
        ways |= longer
    return sorted(
        f"{one.path} ({one.module}:{one.line})"
        for one in paths
        if (has_private_part(one.path) or one.patched)
        and one.path not in table | ways | NOT_USED.keys()
        and not one.path.startswith(inside)
    )


def test_every_private_name_that_is_used_stands_in_the_table() -> None:
    assert not_in_table(used()) == []


def test_every_name_in_the_table_is_used() -> None:
    paths = {one.path for one in used()}
    unused = [name.path for name in NAMES if name.path not in paths and name.path.rpartition(".")[2] not in words()]
    assert unused == []


def test_what_is_patched_is_called_so() -> None:
    assert {one.path for one in used() if one.patched} == {name.path for name in NAMES if name.use == "patched"}


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("import torch._dynamo.no_such", "torch._dynamo.no_such"),
        ("from torch._inductor import no_such", "torch._inductor.no_such"),
        ("import torch\ndef f():\n return torch._no_such()", "torch._no_such"),
        ("from torch._inductor import ir\ndef f(x):\n return isinstance(x, ir.NoSuch)", "torch._inductor.ir.NoSuch"),
        ("def f():\n m = require('torch._dynamo', 'utils', purpose='x')\n m.no_such()", "torch._dynamo.utils.no_such"),
        ("import sys\nx = getattr(sys.modules.get('torch._guards'), 'NoSuch', None)", "torch._guards.NoSuch"),
        ("M = 'torch._logging'\nN = (M, 'no_such')\nrequire(*N, purpose='x')", "torch._logging.no_such"),
        ("P = {'a': 1}\nx = [Patch('t', 'torch._ops', f'{n}.b', None) for n in P]", "torch._ops.a.b"),
        ("Patch('t', 'torch.fx', 'Public.method', None)", "torch.fx.Public.method"),
        ("import torch\ntorch._dynamo.config.no_such = 1", "torch._dynamo.config.no_such"),
    ],
)
def test_a_name_that_is_not_in_the_table_is_found(source: str, path: str) -> None:
    reader = Reader("m", {})
    reader.visit(ast.parse(source))
    found = not_in_table(frozenset(reader.found))
    assert {line.partition(" ")[0] for line in found} == {path}


def test_a_parameter_hides_a_module() -> None:
    reader = Reader("m", {})
    reader.visit(ast.parse("from torch._inductor import ir\ndef f(ir):\n return ir.no_such"))
    assert {one.path for one in reader.found} == {"torch._inductor.ir"}


def test_the_table_has_each_name_once_and_in_order() -> None:
    keys = [(name.module, name.attribute) for name in NAMES]
    assert keys == sorted(set(keys))


def test_every_name_says_what_is_lost_and_every_loss_has_a_name() -> None:
    assert {capability for name in NAMES for capability in name.needed_for} == set(LOSES)
    assert all(name.needed_for and name.lost for name in NAMES)


def test_every_tap_of_a_run_stands_on_the_names_that_it_patches() -> None:
    table = {name.address: name for name in NAMES}
    observer: Any = object()
    patches = [*taps._all(observer), dynamo.follow_run_dir("")]
    assert {patch.tap for patch in patches} == set(RUN_LOSES)
    for patch in patches:
        assert patch.tap in table[patch.address].needed_for, patch.address


def test_this_torch_has_all_of_them() -> None:
    assert {name.address for name in NAMES if not name.only_while_lowering and name.is_in(torch.__version__)} == {
        name.address for name in NAMES if not name.only_while_lowering and name.is_there()
    }
    assert missing() == {}


def test_a_name_that_is_not_there_is_told() -> None:
    gone = Name("torch._no_such_module", "anything", "called", ("guards", "reduce"))
    also = Name("torch._dynamo.utils", "no_such_name", "called", ("guards",))
    old = Name("torch._dynamo.utils", "no_such_name", "called", ("metrics",), until="2.10")
    new = Name("torch._dynamo.utils", "no_such_name", "called", ("metrics",), since="2.99")
    inside = Name("torch._inductor.virtualized", "V.graph.no_such", "read", ("metrics",))
    assert missing(names=[gone, also, old, new, inside]) == dict.fromkeys(("guards", "reduce"), gone.address)


class WithoutOne:
    """Inductor's handler of a graph that has all that the table names, but for one."""

    def __init__(self, lacks: str) -> None:
        self.lacks = lacks

    def __getattr__(self, name: str) -> Any:
        if name == self.lacks:
            raise AttributeError(name)
        return object()


def renamed(name: Name, patch: pytest.MonkeyPatch) -> bool:
    """Rename the last part of a name in this torch; False for a built-in class, which has no such way."""
    path = name.path.split(".")
    if not name.attribute:
        patch.setitem(sys.modules, name.module, None)
        return True
    owner: Any = importlib.import_module(name.module)
    for part in name.attribute.split(".")[:-1]:
        owner = getattr(owner, part)
    if not isinstance(owner, type) and type(owner) is not ModuleType:
        return False  # a module of settings, an object
    for holder in getattr(owner, "__mro__", (owner, None))[:-1]:
        if path[-1] in vars(holder):
            try:
                patch.delattr(holder, path[-1])
            except TypeError:
                return False
    return True


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.address)
def test_each_name_that_is_renamed_is_missed(name: Name, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing(names=[name], while_lowering=False) == {}
    told = dict.fromkeys(name.needed_for, name.address)
    if name.only_while_lowering:
        lacks = name.attribute.rpartition(".")[2]
        graph = WithoutOne(lacks)
        graph.__class__ = type("SubgraphLowering", (WithoutOne,), {})  # one that is nested
        found = types.SimpleNamespace(**({} if lacks == "graph" else {"graph": graph}))
        monkeypatch.setattr(importlib.import_module("torch._inductor.virtualized"), "V", found)
        assert missing(names=[name], while_lowering=True) == told
    elif renamed(name, monkeypatch):
        assert missing(names=[name]) == (told if name.is_in(torch.__version__) else {})
    else:
        other = msgspec.structs.replace(name, attribute=f"{name.attribute}_renamed")
        assert missing(names=[other]) == dict.fromkeys(name.needed_for, other.address)


@pytest.mark.parametrize(
    ("version", "there"),
    [("2.11.0", False), ("2.12.1+cu130", True), ("2.13.0", True), ("2.14.0a0+git1", False), ("3.0", False)],
)
def test_the_versions_that_have_a_name(version: str, there: bool) -> None:
    name = Name("torch", "x", "read", ("dump",), since="2.12", until="2.13")
    assert name.is_in(version) == there
    assert name.versions == "2.12 to 2.13"


def test_the_range_of_torch_is_the_same_wherever_it_stands() -> None:
    oldest, newest = SUPPORTED
    major, minor = map(int, newest.split("."))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert f"torch>={oldest},<{major}.{minor + 1}" in project["project"]["dependencies"]
    for file in ("README.md", "docs/messages/unsupported-torch.md"):
        text = " ".join((ROOT / file).read_text("utf-8").split())
        assert f"torch {oldest} to {newest}" in text, file
    assert all(name.is_in(version) for name in NAMES for version in [name.since or oldest, name.until or newest])


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("torch_names", ROOT / "scripts" / "torch_names.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_the_table(script: ModuleType) -> None:
    assert script.FILE.read_text("utf-8") == script.page(), "python scripts/torch_names.py writes it"


def test_the_sources_of_this_torch_have_what_it_has(script: ModuleType) -> None:
    lines, untold = script.lacking(script.Sources(Path(torch.__file__).parent))
    assert lines == []
    assert [address for address in untold if "V.graph" not in address] == ["torch._C:_get_tensor_metadata"]


def test_the_installed_torch_has_the_names_and_the_paths_of_the_sources(script: ModuleType) -> None:
    found = script.installed()
    assert {name.path for name in NAMES if not name.only_while_lowering} <= found.keys()
    assert {path: why for path, why in found.items() if why} == {}


def test_sources_that_lack_a_name(script: ModuleType, tmp_path: Path) -> None:
    package = tmp_path / "torch" / "_inner"
    package.mkdir(parents=True)
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.13.0'\n")
    (tmp_path / "torch" / "__init__.py").write_text(
        "from ._inner.made import Sub as Made\nfrom ._inner.made import *\n"
    )
    (package / "__init__.py").write_text("if True:\n    from torch._inner.made import shared\n")
    (package / "made.py").write_text(
        "class Base:\n    def __init__(self):\n        self.own = 1\n    def method(self): ...\n"
        "class Sub(Base): ...\nshared: Sub = Sub()\n"
    )
    wanted = {
        ("torch", "Made.method"): True,
        ("torch", "Made.own"): True,
        ("torch", "Base"): True,
        ("torch._inner", "shared.method"): True,
        ("torch._inner.made", "Sub.gone"): False,
        ("torch._inner", "gone"): False,
        ("torch._gone", "x"): False,
    }
    sources = script.Sources(tmp_path)
    assert {key: sources.has(*key) for key in wanted} == wanted
    rows = [Name(module, attribute, "read", ("dump",)) for module, attribute in wanted]
    lines, untold = script.lacking(sources, [*rows, Name("torch", "Made", "read", ("dump",), since="2.14")])
    assert untold == []
    assert lines == [
        *(f"{row.address} is not there: {row.lost}" for row in rows[4:]),
        "torch:Made is there, and the table says that it is not",
    ]


def test_the_table_is_read_without_torch(run_python: Callable[..., Any]) -> None:
    code = f"import sys; sys.modules['torch'] = None; import {names.__name__} as n; print(len(n.NAMES))"
    done = run_python("-c", code)
    assert done.out.strip() == str(len(NAMES))
