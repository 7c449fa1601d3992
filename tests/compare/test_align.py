"""Which call is paired with which, and by what rule."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from compare.made import call, chain, scalar, tensor
from graphprobe.compare.align import align
from graphprobe.compare.naming import canonical
from graphprobe.compare.outline import outline_from_calls
from graphprobe.compare.slots import pair_slots
from graphprobe.store.calls import Call, CallSlot

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
    calls = [msgspec.structs.replace(c, module=f"block.{c.position // 2}") for c in chain([ADD, RELU] * 4)]
    swapped = [*calls[:2], *calls[4:6], *calls[2:4], *calls[6:]]
    found, rules = partners(swapped, calls)
    assert found == [0, 1, 4, 5, 2, 3, 6, 7]
    assert sorted(rules.values()) == ["exact"] * 6 + ["moved"] * 2


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("torch.mul", "torch.Tensor.__mul__"),
        ("torch.relu", "torch.nn.functional.relu"),
        ("torch_npu.npu_gelu", "torch.nn.functional.gelu"),
        ("aten.add.Tensor", "torch.Tensor.add"),
        ("torch.Tensor.__iadd__", "torch.Tensor.add_"),
        ("torch.true_divide", "torch.div"),
        ("torch.conv2d", "aten.convolution.default"),
    ],
)
def test_names_of_one_operation(mine: str, theirs: str) -> None:
    assert canonical(mine) == canonical(theirs)
    other = [msgspec.structs.replace(c, api=theirs) for c in chain([mine])]
    assert partners(chain([mine]), other) == ([0], {0: "renamed"})


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [("torch.add", "torch.Tensor.add_"), ("torch.add", "torch.addmm"), ("torch.norm", "torch.layer_norm")],
)
def test_names_of_different_operations(mine: str, theirs: str) -> None:
    assert canonical(mine) != canonical(theirs)
    assert partners(chain([mine]), chain([theirs]))[0] == [-1]


def test_other_shapes_pair_by_module() -> None:
    a, b = np.arange(8, dtype=np.float32), np.arange(6, dtype=np.float32)
    mine = [call(0, ADD, tensor("input.0", "input", a), module="net.fc")]
    theirs = [call(0, ADD, tensor("input.0", "input", b), module="net.fc")]
    assert partners(mine, theirs) == ([0], {0: "module"})
    elsewhere = [msgspec.structs.replace(theirs[0], module="net.fc2")]
    assert partners(mine, elsewhere)[0] == [-1]


def test_slots_pair_by_name_then_by_place() -> None:
    a = np.arange(8, dtype=np.float32)
    mine = [tensor("input.0", "input", a), tensor("kwarg.weight", "input", a), tensor("output.0", "output", a)]
    theirs = [tensor("input.0", "input", a), tensor("input.1", "input", a), tensor("output.0", "output", a)]
    names = [(x and x.name, y and y.name) for x, y in pair_slots(mine, theirs)]
    assert names == [("input.0", "input.0"), ("kwarg.weight", "input.1"), ("output.0", "output.0")]
    other = tensor("input.1", "input", np.arange(9, dtype=np.float32))
    names = [(x and x.name, y and y.name) for x, y in pair_slots(mine[:2], [theirs[0], other])]
    assert names == [("input.0", "input.0"), ("kwarg.weight", None), (None, "input.1")]


def names_of_pairs(mine: list[CallSlot], theirs: list[CallSlot]) -> list[tuple[str | None, str | None]]:
    return [(x and x.name, y and y.name) for x, y in pair_slots(mine, theirs)]


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
