"""`scripts/sizes.py`: no room is above its ceiling, nothing is there that should not be, and each measure can fail."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, module_at

sizes = module_at("scripts", "sizes.py")
ROWS = (("low",), ("middle",), ("high",))


def package(folder: Path, **files: str) -> list[Any]:
    """The modules of a package `graphprobe` below `folder`; `a__b="…"` is the file a/b.py."""
    for name, text in files.items():
        path = folder / "graphprobe" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    found: list[Any] = sizes.modules_of(folder / "graphprobe")
    return found


@pytest.mark.always
def test_no_room_is_above_its_ceiling_and_nothing_is_there_that_should_not_be() -> None:
    limits, modules = sizes.limits(), sizes.modules_of()
    assert sizes.too_large(sizes.sizes(modules, limits["rooms"]), limits["sum"]) == []
    assert {name: places for name, places in sizes.unwanted(modules).items() if places} == {}


def test_the_sum_is_no_higher_than_the_decision_record_has_it() -> None:
    record = (ROOT / "docs" / "decisions" / "0014-line-budget.md").read_text("utf-8")
    [*_, (lines, modules)] = re.findall(r"^\| [\d-]+ \| ([\d,]+) \| (\d+) \|", record, flags=re.M)
    sums = sizes.limits()["sum"]
    assert sums["lines"] <= int(lines.replace(",", "")) and sums["modules"] <= int(modules)


def rows_of(**ceilings: int) -> dict[str, dict[str, tuple[int, int]]]:
    """Rows whose rooms may have so many lines, and should have 2."""
    return {row: {"lines": (ceiling, 2)} for row, ceiling in ceilings.items()}


def test_a_room_rises_only_by_lowering_another(tmp_path: Path) -> None:
    found = package(tmp_path, low__a="1\n2\n3", middle__b="1\n", high__c="1\n2\n", other="1\n")

    def faults(**ceilings: int) -> list[str]:
        rows = {"low": ceilings["low"], "middle, high": ceilings["both"], "*": ceilings["rest"]}
        faults: list[str] = sizes.too_large(sizes.sizes(found, rows_of(**rows)), {"lines": 8})
        return faults

    assert faults(low=3, both=3, rest=2) == []
    [above] = faults(low=2, both=3, rest=2)
    assert above.startswith("low: 3 lines, and 2 is the ceiling")
    assert faults(low=4, both=3, rest=2) == ["the ceilings of the rooms add up to 9 lines, and 8 is their sum"]
    assert faults(low=4, both=3, rest=1) == []


def test_ceilings_and_their_sum_are_lowered_and_never_raised() -> None:
    sizes_of = [sizes.Size(room, "lines", 101, ceiling, 70) for room, ceiling in (("a", 500), ("b", 110), ("c", 90))]
    sizes_of += [sizes.Size("a", "lines", 10, 500, 70), sizes.Size("a", "modules", 7, 9, 5)]
    assert [size.lowered for size in sizes_of] == [120, 110, 90, 70, 7]
    limits = sizes.lowered(sizes_of[1:])
    assert limits["sum"] == {"lines": 270, "modules": 7}
    assert json.loads(sizes.text_of(limits)) == json.loads(json.dumps(limits))


def test_classes_and_files_of_one_name(tmp_path: Path) -> None:
    found = package(
        tmp_path,
        low__steps="class Line: ...\nclass Only: ...",
        middle__steps="class Line: ...",
        high__steps="def f():\n class Only: ...",
        high__other="",
    )
    assert sizes.doubled_classes(found) == ["Line: low.steps, middle.steps"]
    assert sizes.common_file_names(found) == ["steps.py: high, low, middle"]
    assert sizes.common_file_names([module for module in found if module.folder != "low"]) == []


def test_full_folders(tmp_path: Path) -> None:
    found = package(tmp_path, **{f"low__m{number}": "" for number in range(26)}, high__one="")
    assert sizes.full_folders(found) == ["low: 26 files"]
    assert sizes.full_folders(found[:-1]) == []


@pytest.mark.parametrize(
    "back",
    [
        "from graphprobe.low import a",
        "from ..low.a import Name",
        "def f():\n import graphprobe.low.a",
        "if TYPE_CHECKING:\n from graphprobe.low.a import Name",
        "import importlib\nNAME = 'graphprobe.low.a'\nimportlib.import_module(NAME)",
    ],
)
def test_circles(tmp_path: Path, back: str) -> None:
    found = package(tmp_path, low__a="from graphprobe.low import b", low__b="import graphprobe.low.c", low__c=back)
    assert sizes.import_circles(found) == ["low.a ↔ low.b ↔ low.c"]


def test_what_is_no_circle(tmp_path: Path) -> None:
    found = package(tmp_path, low__a="from . import b, c", low__b="from . import c", low__c="from graphprobe import x")
    assert sizes.import_circles(found) == []
    assert sizes.circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    assert sizes.circles({"a": {"b"}, "b": set()}) == []


@pytest.mark.parametrize(
    ("text", "upwards"),
    [
        ("from graphprobe.high import x", 1),
        ("def f():\n from ..high.x import y", 1),
        ("from graphprobe.low import x\nfrom . import y", 0),
        ("NAME = 'graphprobe.high.x'\ndef f():\n importlib.import_module(NAME)", 1),
        ("NAME: str = 'graphprobe.high.x'\nimport_module(NAME)", 1),
        ("NAME = 'graphprobe.high.x'\nNAME = other()\nimport_module(NAME)", 0),
    ],
)
def test_imports_upwards(tmp_path: Path, text: str, upwards: int) -> None:
    found = sizes.imports_upwards(package(tmp_path, middle__a=text), ROWS)
    assert len(found) == upwards
    assert all("graphprobe.middle.a:" in place and "imports graphprobe.high.x" in place for place in found)


def test_long_and_complex_functions(tmp_path: Path) -> None:
    def branches(number: int) -> str:
        return "".join(f"    if x == {k}:\n        return {k}\n" for k in range(number))

    found = package(
        tmp_path,
        low__lines="def long(x):\n" + "    x += 1\n" * 60 + "def short(x):\n" + "    x += 1\n" * 59,
        low__paths=f"def many(x):\n{branches(15)}def few(x):\n{branches(14)}",
    )
    assert sizes.long_functions(found) == ["graphprobe.low.lines:1 long: 61 lines"]
    assert sizes.complex_functions(tmp_path / "graphprobe") == [
        "graphprobe.low.paths:1 `many` is too complex (16 > 15)"
    ]


def test_rooms_of_the_table() -> None:
    text = "| row | rooms |\n|---|---|\n| 1 | `a`, `b` | numpy; `x` | words |\n| 2 | `c` | - | more |\n| `d` | e |\n"
    assert sizes.layers_in(text) == (("a", "b"), ("c",))


def test_architecture_is_short_and_names_what_is_there() -> None:
    lines = sizes.ARCHITECTURE.read_text("utf-8").splitlines()
    assert len(lines) <= 250
    paths = re.findall(r"`((?:[a-z_]+/)+[a-z_]+)(?:\.py)?`", "\n".join(lines))
    named = [path for path in paths if path.split("/")[0] not in ("src", "tests", "graphprobe")]
    there = [module.path.relative_to(sizes.PACKAGE).with_suffix("").as_posix() for module in sizes.modules_of()]
    assert len(named) > 10
    assert [name for name in named if not any(f"/{path}/".find(f"/{name}/") >= 0 for path in there)] == []
