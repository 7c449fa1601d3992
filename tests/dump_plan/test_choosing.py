"""Which ops of a graph the entries of a plan choose, and without which inputs and outputs."""

from graphprobe.dump_plan import Blacklisted, ModelEntry, NameRange, OpChooser, Position
from graphprobe.select import Match, OpFacts, layers_from_text


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


def test_an_entry_tells_what_selected_an_op() -> None:
    chooser = OpChooser([ModelEntry(layers=layers_from_text("mm")), ModelEntry(layers=layers_from_text("m*"))])
    choices = chooser.choose(GRAPH)
    assert choices[1] is not None and choices[1].matches == (Match("mm", "name"), Match("m*", "glob"))
    assert choices[4] is not None and choices[4].matches == (Match("m*", "glob"),)
    assert choices[0] is None


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
