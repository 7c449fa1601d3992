"""What a file may say, and what it may not: every fault with its kind and its place."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from dump_plan.conftest import Plan
from graphprobe.compiler_config import CompilerConfig
from graphprobe.dump_plan import Blacklisted, ModelEntry, NameRange, OpChooser, Position, plan_from
from graphprobe.dump_plan.document import CONFLICTS, DUMP
from graphprobe.dump_plan.options import OPTIONS
from graphprobe.dump_plan.shapes import Items, TableShape
from graphprobe.errors import EXIT_USAGE, DumpConfigError
from graphprobe.select import OpFacts, layers_from_text

OUT = {"dump_path": "out"}


def entry(**keys: Any) -> dict[str, Any]:
    return {**OUT, "dump_list": [keys]}


ACCEPTED: dict[str, dict[str, Any]] = {
    "the least": OUT,
    "switches off": {**OUT, "dump_debug": "off", "dump_op_switch": "off"},
    "off beside watcher": {**OUT, "dump_scene": "watcher", "dump_debug": "off", "dump_op_switch": "off"},
    "overflow with an empty list": {**OUT, "dump_debug": "on", "dump_list": [], "dump_op_switch": "off"},
    "overflow of some steps": {**OUT, "dump_debug": "on", "dump_step": "0|3-5"},
    "overflow and exception": {**OUT, "dump_debug": "on", "dump_scene": "exception"},
    "exception": {**OUT, "dump_scene": "exception"},
    "exception and models": {**OUT, "dump_scene": "exception", "dump_list": [{"model_name": "a"}]},
    "exception and single ops": {**OUT, "dump_scene": "exception", "dump_op_switch": "on"},
    "models and single ops": {**entry(model_name="a"), "dump_op_switch": "on"},
    "stats": {**OUT, "dump_data": "stats", "dump_stats": ["Max", "Negative Inf", "L2norm"]},
    "watch everything": {**OUT, "dump_scene": "watcher"},
    "watch after some": {**entry(layer=["A"]), "dump_scene": "watcher"},
    "watch some": {**entry(watcher_nodes=["C"]), "dump_scene": "watcher"},
    "watch oneself": {**entry(layer=["C"], watcher_nodes=["C"]), "dump_scene": "watcher", "dump_mode": "output"},
    "layers of every model": entry(layer=["conv1", "blocks.3.mlp", "aten.add", "my code/model.py:3-9", " Add "]),
    "a blacklist": entry(model_name="a", optype_blacklist=[{"name": "conv", "pos": ["input0", "output"]}]),
    "a range": entry(model_name="a", opname_range=[{"begin": "conv1", "end": "relu1"}]),
    "the working directory": {"dump_path": "."},
}

REFUSED: dict[str, tuple[object, str, str]] = {
    # what the file says, the kind of the fault, and its place: `DUMP.` is `$.dump.`, `LIST.` is `$.dump.dump_list[0].`
    # type or missing
    "no object": ("3", "type", "$"),
    "an array": ("[]", "type", "$"),
    "no dump": ("{}", "type", "$.dump"),
    "dump is null": ('{"dump": null}', "type", "$.dump"),
    "dump is text": ('{"dump": "on"}', "type", "$.dump"),
    "empty dump": ({}, "type", "DUMP.dump_path"),
    "no path": ({"dump_debug": "on"}, "type", "DUMP.dump_path"),
    "no path for watching": ({"dump_scene": "watcher"}, "type", "DUMP.dump_path"),
    "no path for exceptions": ({"dump_scene": "exception"}, "type", "DUMP.dump_path"),
    "no path for single ops": ({"dump_op_switch": "on", "dump_list": []}, "type", "DUMP.dump_path"),
    "path is a number": ({"dump_path": 3}, "type", "DUMP.dump_path"),
    "path is empty": ({"dump_path": ""}, "type", "DUMP.dump_path"),
    "path is blank": ({"dump_path": "  "}, "type", "DUMP.dump_path"),
    "mode is empty": ({**OUT, "dump_mode": ""}, "type", "DUMP.dump_mode"),
    "mode is a boolean": ({**OUT, "dump_mode": True}, "type", "DUMP.dump_mode"),
    "step is a number": ({**OUT, "dump_step": 3}, "type", "DUMP.dump_step"),
    "step is empty": ({**OUT, "dump_step": ""}, "type", "DUMP.dump_step"),
    "debug is a boolean": ({**OUT, "dump_debug": True}, "type", "DUMP.dump_debug"),
    "stats is text": ({**OUT, "dump_data": "stats", "dump_stats": "Max"}, "type", "DUMP.dump_stats"),
    "stats is empty": ({**OUT, "dump_data": "stats", "dump_stats": []}, "type", "DUMP.dump_stats"),
    "stats of numbers": ({**OUT, "dump_data": "stats", "dump_stats": ["Max", 1]}, "type", "DUMP.dump_stats[1]"),
    "list is an object": ({**OUT, "dump_list": {}}, "type", "DUMP.dump_list"),
    "entry is text": ({**OUT, "dump_list": ["a"]}, "type", "DUMP.dump_list[0]"),
    "entry is empty": ({**OUT, "dump_list": [{}]}, "type", "DUMP.dump_list[0]"),
    "model name is empty": (entry(model_name=""), "type", "LIST.model_name"),
    "model name is null": (entry(model_name=None), "type", "LIST.model_name"),
    "layer is text": (entry(layer="add"), "type", "LIST.layer"),
    "layer is empty": (entry(layer=[]), "type", "LIST.layer"),
    "layer of numbers": (
        {**OUT, "dump_list": [{"model_name": "a"}, {"layer": [3]}]}, "type", "DUMP.dump_list[1].layer[0]"),
    "layer of nothing": (entry(layer=["add", ""]), "type", "LIST.layer[1]"),
    "watcher nodes are empty": (entry(watcher_nodes=[]), "type", "LIST.watcher_nodes"),
    "blacklist of text": (entry(optype_blacklist=["conv"]), "type", "LIST.optype_blacklist[0]"),
    "blacklist without name": (entry(opname_blacklist=[{"pos": ["input0"]}]), "type", "LIST.opname_blacklist[0].name"),
    "position is a number": (
        entry(opname_blacklist=[{"name": "a", "pos": [0]}]), "type", "LIST.opname_blacklist[0].pos[0]"),
    "range is an object": (entry(model_name="a", opname_range={}), "type", "LIST.opname_range"),
    "range without end": (entry(model_name="a", opname_range=[{"begin": "a"}]), "type", "LIST.opname_range[0].end"),
    "range end is empty": (entry(model_name="a", opname_range=[{"begin": "a", "end": ""}]),
        "type", "LIST.opname_range[0].end"),
    "range end is a number": (entry(model_name="a", opname_range=[{"begin": "a", "end": 3}]),
        "type", "LIST.opname_range[0].end"),
    "range without model": (entry(opname_range=[{"begin": "a", "end": "b"}]), "type", "LIST.model_name"),
    # bad choice, unknown key
    "mode": ({**OUT, "dump_mode": "inputs"}, "choice", "DUMP.dump_mode"),
    "mode in capitals": ({**OUT, "dump_mode": "ALL"}, "choice", "DUMP.dump_mode"),
    "data": ({**OUT, "dump_data": "stat"}, "choice", "DUMP.dump_data"),
    "switch": ({**OUT, "dump_op_switch": "true"}, "choice", "DUMP.dump_op_switch"),
    "debug": ({**OUT, "dump_debug": "ON"}, "choice", "DUMP.dump_debug"),
    "scene": ({**OUT, "dump_scene": "watch"}, "choice", "DUMP.dump_scene"),
    "scene of another device": ({**OUT, "dump_scene": "aic_err_brief_dump"}, "choice", "DUMP.dump_scene"),
    "stat": ({**OUT, "dump_data": "stats", "dump_stats": ["Max", "Mean"]}, "choice", "DUMP.dump_stats[1]"),
    "key beside dump": ('{"dump": {"dump_path": "out"}, "dumps": 1}', "choice", "$.dumps"),
    "key of dump": ({**OUT, "dump_modes": "all"}, "choice", "DUMP.dump_modes"),
    "option in the file": ({**OUT, "dump_layer": "add"}, "choice", "DUMP.dump_layer"),
    "level": ({**OUT, "dump_level": "op"}, "choice", "DUMP.dump_level"),
    "key of an entry": (entry(layers=["a"]), "choice", "LIST.layers"),
    "key of a range": (entry(model_name="a", opname_range=[{"begin": "a", "end": "b", "by": 1}]),
        "choice", "LIST.opname_range[0].by"),
    "key with a space": ({**OUT, "dump mode": "all"}, "choice", '$.dump["dump mode"]'),
    # bad value or path
    "path that is not there": ({"dump_path": "nowhere"}, "value", "DUMP.dump_path"),
    "path with a tilde": ({"dump_path": "~"}, "value", "DUMP.dump_path"),
    "path is a file": ({"dump_path": "c.json"}, "value", "DUMP.dump_path"),
    "path with NUL": ({"dump_path": "a\0b"}, "value", "DUMP.dump_path"),
    "path with half a character": ({"dump_path": "\ud800"}, "value", "DUMP.dump_path"),
    "path that is too long": ({"dump_path": "x" * 9000}, "value", "DUMP.dump_path"),
    "steps backwards": ({**OUT, "dump_step": "0|5-3"}, "value", "DUMP.dump_step"),
    "steps malformed": ({**OUT, "dump_step": "0,5"}, "value", "DUMP.dump_step"),
    "steps without end": ({**OUT, "dump_step": "1|" * 500_000}, "value", "DUMP.dump_step"),
    "layer with a comma": (entry(layer=["add,mul"]), "value", "LIST.layer[0]"),
    "two layers in one": (entry(layer=["add mul"]), "value", "LIST.layer[0]"),
    "layer without line": (entry(layer=["model.py:"]), "value", "LIST.layer[0]"),
    "layer twice": (entry(layer=["add", "mul", "add "]), "value", "LIST.layer[2]"),
    "layer twice in two spellings": (entry(layer=["aten.add", "aten::add"]), "value", "LIST.layer[1]"),
    "stat twice": ({**OUT, "dump_data": "stats", "dump_stats": ["Max", "Max"]}, "value", "DUMP.dump_stats[1]"),
    "position": (entry(opname_blacklist=[{"name": "a", "pos": ["in0"]}]),
        "value", "LIST.opname_blacklist[0].pos[0]"),
    "blacklisted line": (entry(optype_blacklist=[{"name": "a.py:3"}]), "value", "LIST.optype_blacklist[0].name"),
    "range from a glob": (entry(model_name="a", opname_range=[{"begin": "a*", "end": "b"}]),
        "value", "LIST.opname_range[0].begin"),
    # JSON syntax
    "empty": ("", "syntax", "$"),
    "blank": (" \n", "syntax", "$"),
    "torn": ('{"dump": {', "syntax", "$"),
    "a comment": ('{"dump": {"dump_path": "out"}} // all', "syntax", "$"),
    "a trailing comma": ('{"dump": {"dump_path": "out",}}', "syntax", "$"),
    "single quotes": ("{'dump': {}}", "syntax", "$"),
    "not a number": ('{"dump": NaN}', "syntax", "$"),
    "two documents": ("{} {}", "syntax", "$"),
    "deep": ("[" * 200_000, "syntax", "$"),
    "a huge number": ('{"dump": ' + "9" * 6000 + "}", "syntax", "$"),
    "no UTF-8": (b'{"dump": {"dump_path": "\xff"}}', "syntax", "$"),
    "UTF-16": ('{"dump": {}}'.encode("utf-16"), "syntax", "$"),
    "a key twice": ('{"dump": {"dump_path": "out", "dump_path": "out"}}', "syntax", "DUMP.dump_path"),
    "dump twice": ('{"dump": {"dump_path": "out"}, "dump": {"dump_path": "out"}}', "syntax", "$.dump"),
    "a key twice, further in": (
        '{"dump": {"dump_path": "out", "dump_list": [{"layer": ["a"]}, {"layer": ["a"], "layer": ["b"]}]}}',
        "syntax", "DUMP.dump_list[1].layer"),
    # conflict within the list; the others are in test_options
    "a model twice": (
        {**OUT, "dump_list": [{"model_name": "a"}, {"layer": ["x"]}, {"model_name": "a"}]},
        "conflict", "DUMP.dump_list[2].model_name"),
}  # fmt: skip


@pytest.mark.parametrize("dump", ACCEPTED.values(), ids=list(ACCEPTED))
def test_accepted(plan_of: Plan, dump: dict[str, Any]) -> None:
    assert plan_of(dump).enabled


@pytest.mark.parametrize(("content", "kind", "where"), REFUSED.values(), ids=list(REFUSED))
def test_refused(plan_of: Plan, content: object, kind: str, where: str) -> None:
    where = where.replace("LIST.", "DUMP.dump_list[0].").replace("DUMP.", "$.dump.")
    with pytest.raises(DumpConfigError) as caught:
        plan_of(content)
    error = caught.value
    assert (error.kind, error.where, error.slug) == (kind, where, f"dump-config-{kind}")
    assert error.exit_code == EXIT_USAGE
    assert str(error).startswith(f"c.json: {where} ")
    assert len(str(error)) < 500
    error.render().encode()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("a comment", "no comments"),
        ("a trailing comma", "no comma"),
        ("single quotes", "double quotes"),
        ("no UTF-8", "UTF-8"),
        ("key of dump", "did you mean 'dump_mode'?"),
        ("option in the file", "dump_list"),
        ("level", "leave it out"),
        ("mode", "did you mean 'input'?"),
        ("scene of another device", "'exception'"),
        ("steps backwards", "3-5"),
        ("path with a tilde", "not expanded"),
        ("path that is not there", "working directory"),
    ],
)
def test_hints(plan_of: Plan, name: str, hint: str) -> None:
    with pytest.raises(DumpConfigError) as caught:
        plan_of(REFUSED[name][0])
    assert hint in caught.value.hint


def test_a_byte_order_mark_is_let_pass(plan_of: Plan) -> None:
    assert plan_of(b'\xef\xbb\xbf{"dump": {"dump_path": "out"}}').enabled


@pytest.mark.parametrize("make", ["missing", "directory", "fifo", "unreadable"])
def test_files_that_cannot_be_read(tmp_path: Path, make: str) -> None:
    file = tmp_path / "file.json"
    if make == "directory":
        file.mkdir()
    elif make == "fifo":
        os.mkfifo(file)
    elif make == "unreadable":
        file.write_text("{}")
        file.chmod(0)
        if os.access(file, os.R_OK):
            pytest.skip("this user may read everything")
    with pytest.raises(DumpConfigError) as caught:
        plan_from(options={"dump_config_path": file})
    assert (caught.value.kind, caught.value.where) == ("value", "$")
    assert str(file) in str(caught.value)


def test_a_folder_that_cannot_be_written_to(plan_of: Plan, tmp_path: Path) -> None:
    """Root may do anything by its rights; a folder of the kernel lets nobody make a file."""
    (tmp_path / "out").chmod(0o500)
    folder = "/proc/self" if os.access(tmp_path / "out", os.W_OK) else "out"
    with pytest.raises(DumpConfigError, match="written") as caught:
        plan_of({"dump_path": folder})
    assert (caught.value.kind, caught.value.where) == ("value", "$.dump.dump_path")
    (tmp_path / "out").chmod(0o700)
    plan_of(OUT)
    assert list((tmp_path / "out").iterdir()) == [], "trying a folder leaves nothing behind"


def test_entries(plan_of: Plan) -> None:
    plan = plan_of(
        entry(
            model_name="net",
            optype_blacklist=[{"name": "Conv", "pos": ["input0", "output12", "input"]}],
            opname_blacklist=[{"name": "add_*", "pos": []}],
            opname_range=[{"begin": "a", "end": "b"}, {"begin": "c", "end": "c"}],
        )
    )
    positions = (Position("input", 0), Position("output", 12), Position("input"))
    assert plan.models == (
        ModelEntry(
            "net",
            None,
            (Blacklisted("name", "add_*"), Blacklisted("type", "Conv", positions)),
            (NameRange("a", "b"), NameRange("c", "c")),
            "$.dump.dump_list[0]",
        ),
    )
    assert plan.warnings == ("$.dump.dump_list[0]: 'add_*' is blacklisted without pos, so it is left out whole",)


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


def op(name: str, target: str = "") -> OpFacts:
    return OpFacts((name,), (target or f"aten.{name.partition('_')[0]}.default",))


GRAPH = [op("view"), op("mm"), op("add"), op("relu"), op("mm_1"), op("add_1")]


def chosen(*entries: ModelEntry) -> list[str]:
    found = OpChooser(entries).choose(GRAPH)
    return [facts.names[0] for facts, choice in zip(GRAPH, found, strict=True) if choice is not None]


def test_everything_nothing_layers_ranges_and_their_union() -> None:
    assert chosen(ModelEntry()) == [facts.names[0] for facts in GRAPH]
    assert chosen() == []
    assert chosen(ModelEntry(layers=layers_from_text("add_1"))) == ["add_1"]
    assert chosen(ModelEntry("m", ranges=(NameRange("mm", "relu"),))) == ["mm", "add", "relu"]
    assert chosen(ModelEntry("m", layers_from_text("add_1"), ranges=(NameRange("MM", "mm"),))) == ["mm", "add_1"]
    both = ModelEntry(layers=layers_from_text("view")), ModelEntry(layers=layers_from_text("mm"))
    assert chosen(*both) == ["view", "mm"]


def test_blacklists() -> None:
    entry = ModelEntry(
        blacklist=(
            Blacklisted("type", "mm", (Position("input", 1), Position("output"))),
            Blacklisted("name", "mm_1", (Position("input", 0),)),
            Blacklisted("name", "view"),
            Blacklisted("type", "ReLU"),
        )
    )
    assert chosen(entry) == ["mm", "add", "mm_1", "add_1"]
    choices = OpChooser([entry]).choose(GRAPH)
    mm, add, mm_1 = choices[1], choices[2], choices[4]
    assert mm is not None and add is not None and mm_1 is not None
    inputs = ("input", 0), ("input", 1), ("input", None), ("output", 0)
    assert [mm.keeps(side, index) for side, index in inputs] == [True, False, True, False]  # type: ignore[arg-type]
    assert [mm_1.keeps(side, index) for side, index in inputs] == [False, False, True, False]  # type: ignore[arg-type]
    assert all(add.keeps(side, index) for side, index in inputs)  # type: ignore[arg-type]


def test_what_one_entry_leaves_out_another_may_want() -> None:
    black = ModelEntry("m", blacklist=(Blacklisted("name", "mm", (Position("input"),)), Blacklisted("name", "add")))
    choices = OpChooser([black, ModelEntry(layers=layers_from_text("mm add"))]).choose(GRAPH)
    assert choices[1] is not None and choices[1].keeps("input", 0)
    assert choices[2] is not None


def test_complaints() -> None:
    entry = ModelEntry(
        "m",
        layers_from_text("ad_1 mm"),
        ranges=(NameRange("mm", "relu"), NameRange("relu", "mm"), NameRange("mm", "gelu")),
        where="$.dump.dump_list[0]",
    )
    chooser = OpChooser([entry])
    chooser.choose(GRAPH)
    assert chooser.complaints() == [
        "$.dump.dump_list[0]: 'ad_1' matched no op; similar: add_1",
        "$.dump.dump_list[0]: the range from 'relu' to 'mm' runs backwards",
        "$.dump.dump_list[0]: the range from 'mm' to 'gelu' has an end that no graph has",
    ]
    chooser.choose([op("ad_1"), op("relu"), op("mm"), op("gelu")])
    assert chooser.complaints() == []
