"""docs/dump_config.md: its examples run, and its tables are complete."""

import re

import pytest

from conftest import ROOT
from dump_plan.conftest import Plan
from graphprobe.compiler_config import CompilerConfig
from graphprobe.dump_plan.document import CONFLICTS, DUMP
from graphprobe.dump_plan.options import OPTIONS
from graphprobe.dump_plan.shapes import Items, TableShape
from graphprobe.errors import DumpConfigError

PAGE = (ROOT / "docs" / "dump_config.md").read_text(encoding="utf-8")
FILES = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


def test_there_are_files_on_the_page() -> None:
    assert len(FILES) == 6


@pytest.mark.parametrize("text", FILES)
def test_files(plan_of: Plan, text: str) -> None:
    assert plan_of(text).warnings == ()


def test_python() -> None:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {"CompilerConfig": CompilerConfig}
    exec(text, names)
    plan = names["plan"]
    assert str(getattr(plan, "steps")) == "0|3-5|10"  # noqa: B009
    assert getattr(plan, "warnings") == ()  # noqa: B009


def test_tables_are_complete() -> None:
    for row in OPTIONS:
        assert f"| `{row.name}` |" in PAGE and f"`{row.env}`" in PAGE
        assert all(f"`{value}`" in PAGE for value in row.allowed)
    entries = DUMP.keys["dump_list"].shape
    assert isinstance(entries, Items) and isinstance(entries.item, TableShape)
    for key in (*DUMP.keys, *entries.item.keys):
        assert f"`{key}`" in PAGE
    for conflict in CONFLICTS:
        assert f"`{conflict.other.key}" in PAGE or conflict.other.key == "dump_list"


@pytest.mark.parametrize(
    ("kind", "dump"),
    [
        ("type", {"dump_path": ".", "dump_list": [{"model_name": "a"}, {"layer": [3]}]}),
        ("choice", {"dump_path": ".", "dump_mode": "inputs"}),
        ("value", {"dump_path": ".", "dump_step": "0|5-3"}),
        ("syntax", '{"dump": {"dump_path": "/tmp",}}'),
        ("conflict", {"dump_path": ".", "dump_debug": "on", "dump_op_switch": "on"}),
    ],
)
def test_messages_are_as_on_their_pages(plan_of: Plan, kind: str, dump: object) -> None:
    with pytest.raises(DumpConfigError) as caught:
        plan_of(dump)
    page = (ROOT / "docs" / "messages" / f"dump-config-{kind}.md").read_text(encoding="utf-8")
    assert caught.value.render().replace("c.json", "dump.json") in page
