"""Which text belongs to a function, and whose module is the program's."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from graphprobe.program_text.sources import (
    NotRecordable,
    SourceFile,
    defining_names,
    global_names,
    imported_modules,
    is_own,
)
from graphprobe.program_text.text import program_text

TEXT = '''from __future__ import annotations
import os

TABLE = 1
a, b = (lambda x: x + TABLE), (lambda x: x - TABLE)


@staticmethod
def first(x):
    """Two
    lines."""
    return second(x)


def second(x):
    import os.path
    from . import sibling
    return [lambda: TABLE for _ in x]


class Outer(dict, metaclass=type):
    limit: int = TABLE

    class Inner:
        def method(self, y=os.sep):
            return self.limit
'''


OPERATOR = """
import torch


@torch.library.custom_op("graphprobe_text::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@halve.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("graphprobe_text::quarter", mutates_args=())
def quarter(x: torch.Tensor) -> torch.Tensor:
    return x / 4


def program(x):
    return torch.ops.graphprobe_text.halve(x) + 1
"""


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / "text.py"
    path.write_text(TEXT, "utf-8")
    spec = importlib.util.spec_from_file_location("pkg_of_test.text", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_a_definition_keeps_its_lines_and_says_where_they_were(module: ModuleType) -> None:
    source = SourceFile(str(module.__file__), vars(module))
    assert source.place_of(vars(module)["first"].__func__.__code__) == 0
    first = source.tree.body[4]
    text = '@staticmethod\ndef first(x):\n    """Two\n    lines."""\n    return second(x)'
    assert source.plain_text(first, placed=True) == f"#@ {module.__file__}:8\n{text}"
    assert source.plain_text(first, decorated=False) == text.partition("\n")[2]
    lines = source.plain_text(first, indent="  ").split("\n")
    assert lines[2:] == ['      """Two', '    lines."""', "      return second(x)"], "a text is not moved"
    node = source.class_node("Outer.Inner")
    moved = source.plain_text(node, placed=True)
    assert moved.startswith(f"#@ {module.__file__}:24\nclass Inner:\n    def method(") and ast.parse(moved)


def test_lambdas_on_one_line_are_told_apart(module: ModuleType) -> None:
    source = SourceFile(str(module.__file__), vars(module))
    assert [source.place_of(vars(module)[name].__code__) for name in "ab"] == [0, 1]


def test_a_text_that_has_changed_since_is_refused(module: ModuleType) -> None:
    Path(str(module.__file__)).write_text(TEXT.replace("return second(x)", "return second(x, x)"), "utf-8")
    source = SourceFile(str(module.__file__), vars(module))
    with pytest.raises(NotRecordable, match="as it was loaded"):
        source.place_of(vars(module)["first"].__func__.__code__)
    with pytest.raises(NotRecordable, match="no class statement for Other"):
        source.class_node("Other")
    with pytest.raises(NotRecordable, match="there is no text of nowhere"):
        SourceFile("nowhere", {})


def test_names(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    second = vars(module)["second"].__code__
    assert global_names(second) == {"TABLE"}
    assert imported_modules(second, {"__package__": "pkg"}) == {"os", "os.path"}
    monkeypatch.setitem(sys.modules, "pkg", ModuleType("pkg"))
    assert imported_modules(second, {"__package__": "pkg"}) == {"os", "os.path", "pkg"}, "a relative import"
    node = SourceFile(str(module.__file__), vars(module)).class_node("Outer")
    assert isinstance(node, ast.ClassDef)
    assert defining_names(node) == {"dict", "type", "TABLE", "os"}


def test_whose_module_it_is(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "beside", module)
    assert is_own("__main__") and is_own("beside") and is_own("no_such_module_here")
    assert not any(map(is_own, ("torch.nn", "numpy", "os", "sys", "graphprobe.store", "pytest")))
    monkeypatch.setattr(module, "__file__", "/somewhere/lib/site-packages/beside.py", raising=False)
    assert not is_own("beside"), "a package of another environment"


def test_an_operator_that_is_called_by_its_name_comes_with_what_registers_it(tmp_path: Path) -> None:
    file = tmp_path / "with_operator.py"
    file.write_text(OPERATOR, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("with_operator", file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    text = program_text({"fn": made.program}, reserved={}).text
    assert '@torch.library.custom_op("graphprobe_text::halve", mutates_args=())' in text
    assert "@halve.register_fake" in text
    assert "quarter" not in text
