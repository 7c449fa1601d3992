"""Which call is paired with which, and by what rule."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare.made import call, chain, replaced, scalar, tensor
from graphprobe.compare.align import align, common_subsequence
from graphprobe.compare.naming import canonical
from graphprobe.compare.outline import outline_from_calls
from graphprobe.compare.slots import pair_slots
from graphprobe.store import Call, CallSlot

ADD, RELU, MUL = "torch.Tensor.add", "torch.nn.functional.relu", "torch.mul"


def partners(a: list[Call], b: list[Call]) -> tuple[list[int], dict[int, str]]:
    found = align(outline_from_calls(a), outline_from_calls(b))
    return list(found.partner), dict(found.rules)


def test_equal_programs_pair_exactly() -> None:
    calls = chain([ADD, RELU, ADD, MUL])
    assert partners(calls, calls) == ([0, 1, 2, 3], dict.fromkeys(range(4), "exact"))


def test_one_extra_call_shifts_nothing() -> None:
    plain, longer = chain([ADD, RELU] * 50), chain([*[ADD, RELU] * 25, MUL, *[ADD, RELU] * 25])
    found, rules = partners(longer, plain)
    assert found == [*range(50), -1, *range(50, 100)]
    assert set(rules.values()) == {"exact"}


def test_an_extra_call_of_the_same_api_shifts_the_index_only() -> None:
    plain, longer = chain([ADD, RELU, ADD, MUL, ADD]), chain([ADD, RELU, ADD, ADD, MUL, ADD])
    found, rules = partners(longer, plain)
    assert sorted(j for j in found if j >= 0) == [0, 1, 2, 3, 4]
    assert found[-1] == 4 and rules[5] == "sequence"


def test_modules_in_another_order_are_moved() -> None:
    calls = [replaced(c, module=f"block.{c.position // 2}") for c in chain([ADD, RELU] * 4)]
    swapped = [*calls[:2], *calls[4:6], *calls[2:4], *calls[6:]]
    found, rules = partners(swapped, calls)
    assert found == [0, 1, 4, 5, 2, 3, 6, 7]
    assert sorted(rules.values()) == ["exact"] * 6 + ["moved"] * 2


@pytest.mark.parametrize(
    ("mine", "theirs", "same"),
    [
        ("torch.mul", "torch.Tensor.__mul__", True),
        ("torch.relu", "torch.nn.functional.relu", True),
        ("torch_npu.npu_gelu", "torch.nn.functional.gelu", True),
        ("aten.add.Tensor", "torch.Tensor.add", True),
        ("torch.Tensor.__iadd__", "torch.Tensor.add_", True),
        ("torch.true_divide", "torch.div", True),
        ("torch.conv2d", "aten.convolution.default", True),
        ("torch.add", "torch.Tensor.add_", False),
        ("torch.add", "torch.addmm", False),
        ("torch.norm", "torch.layer_norm", False),
    ],
)
def test_names_of_operations(mine: str, theirs: str, same: bool) -> None:
    assert (canonical(mine) == canonical(theirs)) is same
    other = [replaced(c, api=theirs) for c in chain([mine])]
    assert partners(chain([mine]), other) == (([0], {0: "renamed"}) if same else ([-1], {}))


def test_other_shapes_pair_by_module() -> None:
    a, b = np.arange(8, dtype=np.float32), np.arange(6, dtype=np.float32)
    mine = [call(0, ADD, tensor("input.0", "input", a), module="net.fc")]
    theirs = [call(0, ADD, tensor("input.0", "input", b), module="net.fc")]
    assert partners(mine, theirs) == ([0], {0: "module"})
    elsewhere = [replaced(theirs[0], module="net.fc2")]
    assert partners(mine, elsewhere)[0] == [-1]


def names_of_pairs(mine: list[CallSlot], theirs: list[CallSlot]) -> list[tuple[str | None, str | None]]:
    return [(x and x.name, y and y.name) for x, y in pair_slots(mine, theirs)]


def test_slots_pair_by_name_then_by_place() -> None:
    a = np.arange(8, dtype=np.float32)
    mine = [tensor("input.0", "input", a), tensor("kwarg.weight", "input", a), tensor("output.0", "output", a)]
    theirs = [tensor("input.0", "input", a), tensor("input.1", "input", a), tensor("output.0", "output", a)]
    found = names_of_pairs(mine, theirs)
    assert found == [("input.0", "input.0"), ("kwarg.weight", "input.1"), ("output.0", "output.0")]
    other = tensor("input.1", "input", np.arange(9, dtype=np.float32))
    found = names_of_pairs(mine[:2], [theirs[0], other])
    assert found == [("input.0", "input.0"), ("kwarg.weight", None), (None, "input.1")]


def test_what_leaves_a_node_is_no_gradient_of_an_argument() -> None:
    a = np.arange(8, dtype=np.float32)
    node, argument = (tensor(f"grad_input.{name}", "grad_input", a) for name in ("node.0", "0"))
    keyword = tensor("grad_kwarg.weight", "grad_input", a)
    assert names_of_pairs([node], [argument]) == [("grad_input.node.0", None), (None, "grad_input.0")]
    assert names_of_pairs([argument], [node]) == [("grad_input.0", None), (None, "grad_input.node.0")]
    assert names_of_pairs([argument], [keyword]) == [("grad_input.0", "grad_kwarg.weight")]


def test_two_keywords_are_two_arguments() -> None:
    dim, axis, eps = (scalar(f"kwarg.{name}", 1) for name in ("dim", "axis", "eps"))
    assert names_of_pairs([dim], [eps]) == [("kwarg.dim", None), (None, "kwarg.eps")]
    assert names_of_pairs([dim], [axis]) == [("kwarg.dim", "kwarg.axis")]
    assert names_of_pairs([dim], [scalar("input.1", 1)]) == [("kwarg.dim", "input.1")]


SEQUENCES = st.lists(st.integers(0, 4), max_size=24)


def longest(a: list[int], b: list[int]) -> int:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in range(len(a) - 1, -1, -1):
        for j in range(len(b) - 1, -1, -1):
            table[i][j] = table[i + 1][j + 1] + 1 if a[i] == b[j] else max(table[i + 1][j], table[i][j + 1])
    return table[0][0]


@given(SEQUENCES, SEQUENCES)
def test_it_is_common_ascending_and_longest(a: list[int], b: list[int]) -> None:
    pairs = common_subsequence(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(x < y and v < w for (x, v), (y, w) in itertools.pairwise(pairs))
    assert len(pairs) == longest(a, b)


def test_one_more_element_in_the_middle_shifts_nothing() -> None:
    a = [i * i % 61 for i in range(20_000)]
    b = [*a[:9_000], 7, *a[9_000:]]
    pairs = common_subsequence(a, b)
    assert pairs[:9_000] == [(i, i) for i in range(9_000)]
    assert len(pairs) == len(a) and pairs[-1] == (19_999, 20_000)


def test_many_differences_without_anchors_end() -> None:
    a, b = [1] * 3000, [1, 2] * 1500
    pairs = common_subsequence(a, b)
    assert 1000 <= len(pairs) <= 1500
    assert all(a[i] == b[j] for i, j in pairs)
