"""The table of private names: complete, true of the torch that is installed, and told in the same way everywhere."""

import ast
import importlib
import json
import sys
import tomllib
import types
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import msgspec
import pytest
import torch

from conftest import ROOT, module_at
from graphprobe.internals import names, taps
from graphprobe.internals.dynamo import dynamo_taps as dynamo
from graphprobe.internals.names import LOSES, NAMES, RUN_LOSES, SUPPORTED, Name, missing
from graphprobe.internals.taps import Taps
from internals import torch_paths
from internals.torch_paths import Reader, Used
from test_layers import has_private_part

PACKAGE = ROOT / "src" / "graphprobe"
TABLE = "graphprobe.internals.names"
NOT_USED = {
    "torch._VF": "how another tool calls functions of the program's dump",
    "torch._numpy": "the beginning of a name that is shown as numpy's",
    "torch._numpy.numpy": "that replacement, read as an address",
}
"""Texts in the sources that look like names of torch."""


def used() -> frozenset[Used]:
    return frozenset(one for one in torch_paths.torch_paths(PACKAGE, "graphprobe") if one.module != TABLE)


def words() -> set[str]:
    """Names, attributes and texts of all sources but the table."""
    found: set[str] = set()
    for module, tree in torch_paths.sources(PACKAGE, "graphprobe").items():
        for node in ast.walk(tree) if module != TABLE else ():
            for text in (getattr(node, key, None) for key in ("attr", "id", "value", "name")):
                if isinstance(text, str):
                    found.update((text, *text.split(".")))
    return found


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


@pytest.mark.slow
def test_the_table_has_every_private_name_that_is_used_and_no_other() -> None:
    assert not_in_table(used()) == []
    known = words() | {one.path for one in used()}
    assert [name.path for name in NAMES if not {name.path, name.path.rpartition(".")[2]} & known] == []
    assert {one.path for one in used() if one.patched} == {name.path for name in NAMES if name.use == "patched"}


def found_in(source: str) -> frozenset[Used]:
    reader = Reader("m", {})
    reader.visit(ast.parse(source))
    return frozenset(reader.found)


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
    assert {line.partition(" ")[0] for line in not_in_table(found_in(source))} == {path}


def test_a_parameter_hides_a_module() -> None:
    found = found_in("from torch._inductor import ir\ndef f(ir):\n return ir.no_such")
    assert {one.path for one in found} == {"torch._inductor.ir"}


def test_the_table_has_each_name_once_in_order_with_what_is_lost() -> None:
    keys = [(name.module, name.attribute) for name in NAMES]
    assert keys == sorted(set(keys))
    assert {capability for name in NAMES for capability in name.needed_for} == set(LOSES)
    assert all(name.needed_for and name.lost for name in NAMES)


def test_every_tap_of_a_run_stands_on_the_names_that_it_patches() -> None:
    table = {name.address: name for name in NAMES}
    patches = [*taps._all(cast("Any", object())), dynamo.follow_run_dir("")]
    assert {patch.tap for patch in patches} == set(RUN_LOSES)
    assert [patch.address for patch in patches if patch.tap not in table[patch.address].needed_for] == []


def test_this_torch_has_all_of_them() -> None:
    seen = [name for name in NAMES if not name.only_while_lowering]
    assert [name.is_in(torch.__version__) for name in seen] == [name.is_there() for name in seen]
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


def test_the_versions_that_have_a_name() -> None:
    name = Name("torch", "x", "read", ("dump",), since="2.12", until="2.13")
    assert name.versions == "2.12 to 2.13"
    versions = {"2.11.0": False, "2.12.1+cu130": True, "2.13.0": True, "2.14.0a0+git1": False, "3.0": False}
    assert {version: name.is_in(version) for version in versions} == versions


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
def script() -> Any:
    return module_at("scripts", "torch_names.py")


def test_the_page_is_the_table(script: ModuleType) -> None:
    assert script.FILE.read_text("utf-8") == script.page(), "python scripts/torch_names.py writes it"


@pytest.mark.slow
def test_the_sources_of_this_torch_have_what_it_has(script: ModuleType) -> None:
    lines, untold = script.lacking(script.Sources(Path(torch.__file__).parent))
    assert lines == []
    assert [address for address in untold if "V.graph" not in address] == [
        "torch._C:_functions.AccumulateGrad",
        "torch._C:_get_tensor_metadata",
    ]


@pytest.mark.slow
def test_the_installed_torch_has_the_names_and_the_paths_of_the_sources(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_paths", torch_paths)  # which has read the sources
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = script.installed()
    assert {name.path for name in NAMES if not name.only_while_lowering} <= found.keys()
    assert {path: why for path, why in found.items() if why} == {}


def test_sources_that_lack_a_name(script: ModuleType, tmp_path: Path) -> None:
    files = {
        "version.py": "__version__ = '2.13.0'\n",
        "__init__.py": "from ._inner.made import Sub as Made\nfrom ._inner.made import *\n",
        "_inner/__init__.py": "if True:\n    from torch._inner.made import shared\n",
        "_inner/made.py": "class Base:\n    def __init__(self):\n        self.own = 1\n    def method(self): ...\n"
        "class Sub(Base): ...\nshared: Sub = Sub()\n",
    }
    (tmp_path / "torch" / "_inner").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "torch" / name).write_text(text)
    there = [("torch", "Made.method"), ("torch", "Made.own"), ("torch", "Base"), ("torch._inner", "shared.method")]
    gone = [("torch._inner.made", "Sub.gone"), ("torch._inner", "gone"), ("torch._gone", "x")]
    sources = script.Sources(tmp_path)
    assert [sources.has(*key) for key in (*there, *gone)] == [True] * 4 + [False] * 3
    rows = [Name(module, attribute, "read", ("dump",)) for module, attribute in (*there, *gone)]
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


class Nobody:
    """Stands in for an observer that is never told anything."""


def test_every_tap_waits_at_first_and_says_what_is_lost_without_it() -> None:
    status = Taps(Nobody(), follow_run_dir="").status  # type: ignore[arg-type]
    assert status == dict.fromkeys(RUN_LOSES, "waiting")


WITHOUT = """
import json, sys
from pathlib import Path
import graphprobe
from graphprobe.internals import taps
from graphprobe.internals.inductor import inductor_taps as inductor
from graphprobe.internals.bus import Patch
lost = json.loads(sys.argv[2])
real = taps._all
def without(observer):
    return [Patch(p.tap, p.module, p.attribute + "_gone", p.make) if p.tap in lost else p for p in real(observer)]
taps._all = without
import torch
with graphprobe.trace(sys.argv[1]) as folder:
    x = torch.ones(4, requires_grad=True)
    y = torch.compile(lambda x: (x.sin() * 3).sum())(x)
    y.backward()
print("RESULT", float(y), x.grad.tolist())
print(folder)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "lost", [["guards", "metrics"], ["lowering"], ["aot_graphs"], ["passes", "post_grad_passes"], ["dynamo_graph"]]
)
def test_a_torch_that_lacks_a_name(lost: list[str], run_warm: Callable[..., Any], tmp_path: Path) -> None:
    done = run_warm("-c", WITHOUT, str(tmp_path), json.dumps(lost))
    assert done.code == 0, done.err[-4000:]
    assert done.out.startswith("RESULT 10.09")
    tool_dir = Path(done.out.splitlines()[1]) / "graphprobe"
    manifest = json.loads((tool_dir / "manifest.json").read_text())
    for tap in lost:
        assert manifest["taps"][tap].startswith("missing: torch.")
        assert any(tap in line and RUN_LOSES[tap] in line for line in manifest["missing"])
    assert not any("failed" in line for line in manifest["missing"]), manifest["missing"]
    assert {status for tap, status in manifest["taps"].items() if tap not in lost} == {"on"}
    left = {str(p.relative_to(tool_dir)) for p in tool_dir.rglob("*")}
    if lost == ["dynamo_graph"]:
        return
    assert "model__0/dynamo_out_graph.txt" in left
    assert ("model__0/forward/output_code.py" in left) == (lost != ["lowering"])
    assert ("model__0/joint" in left) == ("model__0/backward" in left) == (lost != ["aot_graphs"])
