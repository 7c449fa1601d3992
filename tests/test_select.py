"""The grammars of steps and layers, and which ops a layer selection means."""

import contextlib
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphprobe.errors import SettingError
from graphprobe.select import (
    MAX_STEP,
    LayerMatcher,
    OpFacts,
    StepSelection,
    layers_from_list,
    layers_from_text,
    name_matches,
    step_ranges,
    steps_from_text,
    type_matches,
)
from graphprobe.select.matching import MAX_TEXT, op_types

ADD = OpFacts(("add",), ("aten.add.Tensor",), ("blocks.3.mlp",), (("/src/app/model.py", 12),))
ADD_1 = OpFacts(("add_1", "buf0"), ("aten.add.Tensor",), ("blocks.30",), (("/src/app/model.py", 20),))
SUB = OpFacts(("sub_2",), ("aten.sub.Tensor",), ("head",), (("/src/app/submodel.py", 12),))
KERNEL = OpFacts(
    ("triton_poi_fused_add_relu_0", "buf3", "add_2", "relu"),
    ("aten.add.Tensor", "aten.relu.default"),
    ("blocks.3.mlp", "blocks.3.act"),
    (("/src/app/model.py", 13), ("/src/app/act.py", 5)),
)
OPS = (ADD, ADD_1, SUB, KERNEL)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([""], "item 1 of the steps is empty"),
        (["0|", "0||2"], "item 2"),
        (["5-3", "0|5-3"], "'5-3' runs backwards"),
        (["-1", "3-", "1-2-3", "0, 5", "0 | 5", "1.5", "٣", "²", "1e3", "a"], "neither a step nor a range"),
        ([str(MAX_STEP + 1), "9" * 5000], "too large"),
    ],
)
def test_steps_that_are_refused(texts: list[str], said: str) -> None:
    for text in texts:
        with pytest.raises(SettingError, match=said) as caught:
            steps_from_text(text)
        assert caught.value.hint and len(str(caught.value)) < 200


RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)).map(lambda at: (at[0], at[0] + at[1])), min_size=1)


@given(RANGES, st.data())
def test_steps_are_those_of_the_text_and_come_back(ranges: list[tuple[int, int]], data: st.DataObject) -> None:
    items = [str(a) if a == b and data.draw(st.booleans()) else f"{a}-{b}" for a, b in ranges]
    selection = steps_from_text("|".join(items))
    wanted = {step for a, b in ranges for step in range(a, b + 1)}
    assert {step for step in range(-2, 80) if step in selection} == wanted
    assert selection.last == max(wanted)
    assert steps_from_text(str(selection)) == selection
    assert len(str(selection)) <= len("|".join(items))


@given(st.text("0123456789|-", max_size=20), st.text(max_size=30))
def test_any_text_is_steps_or_layers_or_an_error(steps: str, layers: str) -> None:
    with contextlib.suppress(SettingError):
        assert steps_from_text(steps).ranges
    with contextlib.suppress(SettingError):
        selection = layers_from_text(layers)
        assert layers_from_text(str(selection)) == selection
        LayerMatcher(selection).choose(OPS)


def test_steps_are_in_order_and_what_is_no_number_is_none() -> None:
    assert steps_from_text("10|3-5").ranges == ((3, 5), (10, 10))
    assert str(steps_from_text("3-5|4-9|10")) == "3-10" and str(steps_from_text("007|7")) == "7"
    assert MAX_STEP in steps_from_text(f"0-{MAX_STEP}")
    assert "0" not in steps_from_text("0")
    assert None not in StepSelection(((0, 1),))


def lines_run(text: str) -> int:
    """How many lines of `steps` are executed for a text, errors included."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != step_ranges.__file__:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        steps_from_text(text)
    except SettingError:
        pass
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("item", ["7", "0-9223372036854775807", "1-2", "3-4"])
def test_steps_take_linear_work(item: str) -> None:
    few, many = (lines_run("|".join([item] * count)) for count in (400, 1600))
    assert 400 < few < many <= 4.01 * few


def test_a_long_text_is_refused_before_it_is_read_or_read_to_its_first_fault() -> None:
    for text in ("9" * 10**6, "|" * 10**6, "0|" * 500_000, "0-1|" * 250_000, "-" * 10**6):
        assert lines_run(text) < 10
        with pytest.raises(SettingError, match="too many"):
            steps_from_text(text)
    for character in "9-|x0":
        assert lines_run(character * step_ranges.MAX_TEXT) < 100


@pytest.mark.parametrize(
    ("chosen", "texts"),
    [
        ("add", ["model.py:12", "app/model.py:12", "/src/app/model.py:12"]),
        ("add_1", ["add_1"]),
        ("add_1 sub_2", [" add_1   sub_2 "]),
        ("sub_2", ["aten::sub"]),
        ("add sub_2", ["*model.py:12"]),
        ("triton", ["buf3", "triton_*"]),
        ("add_1 triton", ["add_[12]"]),
        ("add triton", ["blocks.3", "blocks.3.mlp", "blocks.*.mlp", "model.py:12-13"]),
        ("add add_1 triton", ["aten.add", "aten.add.Tensor", "torch.ops.aten.add.Tensor", "blocks", "model.py"]),
        ("add add_1 sub_2 triton", ["aten.*"]),
        ("", ["aten.add.Scalar", "aten", "blocks.3.m", "/model.py:12", "Add1_in_0"]),
        # TorchAir's names: the same name in another case, and only then the type.
        ("add", [" Add "]),
        ("add_1", ["Add_1"]),
        ("sub_2", ["Sub", "sub"]),
        ("triton", ["ReLU"]),
    ],
)
def test_layers(chosen: str, texts: list[str]) -> None:
    for layers in texts:
        found = LayerMatcher(layers_from_text(layers)).choose(OPS)
        names = [op.names[0] for op, matches in zip(OPS, found, strict=True) if matches]
        assert [name.partition("_poi")[0] for name in names] == chosen.split(), layers


def test_a_type_is_meant_only_where_no_op_has_the_name() -> None:
    matcher = LayerMatcher(layers_from_text("add"))
    assert matcher.choose([ADD, ADD_1]) == [{"add": "name"}, {}]
    assert matcher.choose([ADD_1, SUB]) == [{"add": "type"}, {}]
    assert matcher.choose([ADD_1]) == [{"add": "type"}]


def test_every_token_that_selects_an_op_is_named_with_its_way() -> None:
    matcher = LayerMatcher(layers_from_text("sub_2 head aten.sub *_2 submodel.py:12 none"))
    ways = {"sub_2": "name", "head": "module", "aten.sub": "target", "*_2": "glob", "submodel.py:12": "source"}
    assert [list(found.items()) for found in matcher.choose([SUB])] == [list(ways.items())]
    assert [left.token for left in matcher.unmatched()] == ["none"]


def test_tokens_that_match_nothing_come_with_similar_names() -> None:
    matcher = LayerMatcher(layers_from_text("add_1 sub_1 Add_1Mul_1 blocks.3.mpl"))
    assert [left.token for left in matcher.unmatched()] == ["add_1", "sub_1", "Add_1Mul_1", "blocks.3.mpl"]
    matcher.choose(OPS)
    left = {found.token: found.near for found in matcher.unmatched()}
    assert left.keys() == {"sub_1", "Add_1Mul_1", "blocks.3.mpl"}
    assert left["sub_1"][0] == "sub_2"
    assert "blocks.3.mlp" in left["blocks.3.mpl"]


@pytest.mark.parametrize(
    "text", ["", "   ", "a,b", "a;b", "a|b", "m.py:", "m.py:x", "m.py:0", "m.py:9-3", "m.txt:3", "a\\b", "a\0b"]
)
def test_layers_that_are_refused(text: str) -> None:
    with pytest.raises(SettingError) as caught:
        layers_from_text(text)
    assert caught.value.hint


def test_a_list_takes_paths_with_spaces_and_no_entry_twice() -> None:
    selection = layers_from_list(["my code/model.py:3", " add "])
    assert [token.text for token in selection.tokens] == ["my code/model.py:3", "add"]
    assert str(selection) == "my code/model.py:3 add"
    for wrong in ([], ["add", "add "], ["aten::add", "aten.add"], ["add mul"], [""]):
        with pytest.raises(SettingError):
            layers_from_list(wrong)
    assert len(layers_from_text("add add").tokens) == 1


def test_a_hostile_list_of_ops_is_refused_or_read() -> None:
    with pytest.raises(SettingError, match="too many"):
        layers_from_text("a " * MAX_TEXT)
    selection = layers_from_text(" ".join(f"op_{number}" for number in range(50_000)))
    matcher = LayerMatcher(selection)
    assert matcher.choose([OpFacts(("op_49999",))]) == [{"op_49999": "name"}]
    assert len(matcher.unmatched()) == 49_999


def test_names_and_types_of_a_blacklist() -> None:
    assert name_matches("Add_1", ADD_1.names) and name_matches("add_*", ADD_1.names)
    assert not name_matches("add", ADD_1.names)
    for pattern in ("Add", "aten.add", "aten::add.Tensor", "aten.*", "a?d"):
        assert type_matches(pattern, ADD_1.targets), pattern
    for pattern in ("add_1", "aten", "aten.add.Scalar"):
        assert not type_matches(pattern, ADD_1.targets), pattern


def test_types_of_targets() -> None:
    for target in ("aten.add.Tensor", "aten.add", "torch.ops.aten.add.Tensor", "torch.add"):
        assert op_types(target) == ("add",)
    assert op_types("aten.add_.Tensor") == ("add_", "add")
    for target in ("torch.nn.functional.linear", "flex_attention", "_operator.getitem"):
        assert op_types(target) == (target.rpartition(".")[2],)


MM = OpFacts(("mm",), ("aten.mm.default",))
MM_2 = OpFacts(("mm_2",), ("aten.mm.default",))
ACT = OpFacts(("cos",), ("aten.cos.default",), ("relu",))
RELU_9 = OpFacts(("relu_9",), ("aten.relu.default",))


@pytest.mark.parametrize(
    ("token", "first", "second", "told"),
    [
        ("mm", MM, MM_2, "aten.mm means the type in each graph, m[m] the name"),
        ("mm", MM_2, MM, "aten.mm means the type"),
        ("MM", MM, MM_2, "m[m] the name"),
        ("relu", ACT, RELU_9, "aten.relu means the type"),
        ("mm", MM, ADD, None),
        ("mm", MM_2, MM_2, None),
        ("aten.mm", MM, MM_2, None),
        ("m[m]", MM, MM_2, None),
    ],
)
def test_a_name_that_is_a_type_in_another_graph_is_told(
    token: str, first: OpFacts, second: OpFacts, told: str | None
) -> None:
    matcher = LayerMatcher(layers_from_text(token))
    matcher.choose([first])
    matcher.choose([second, ADD])
    assert token != "m[m]" or not any(matcher.choose([MM_2])), "the glob of one name is that name alone"
    found = matcher.complaints()
    assert not found if told is None else len(found) == 1 and told in found[0], found
