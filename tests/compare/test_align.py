"""Which call is paired with which, and by what rule."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare.made import MemoryDump, call, chain, replaced, scalar, tensor
from graphprobe.cli.commands.merge import _tell
from graphprobe.compare import compare_dumps
from graphprobe.compare.align import align, common_subsequence
from graphprobe.compare.judge import UNEVEN, is_part, parts_between
from graphprobe.compare.naming import canonical
from graphprobe.compare.outline import outline_from_calls
from graphprobe.compare.ranks import Shared
from graphprobe.compare.result import Summary
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


def dump(rows: int, world: int, *, view: int | None = None, scale: float = 1.0) -> MemoryDump:
    x = np.linspace(-1, 1, rows * 4, dtype=np.float32).reshape(rows, 4)
    weight = np.arange(4, dtype=np.float32) * np.float32(scale)
    given = (x * weight).astype(np.float32)
    total = np.asarray(given.mean(axis=0), dtype=np.float32)
    made = MemoryDump(
        [
            call(0, "torch.Tensor.view", tensor("input.0", "input", x), scalar("input.1", view or rows)),
            call(1, "Mul", tensor("input.0", "input", x), tensor("parameter.w", "parameter", weight),
                 tensor("output.0", "output", given), kind="module", module="m"),
            call(2, "torch.mean", tensor("input.0", "input", given), tensor("output.0", "output", total)),
        ]
    )  # fmt: skip
    made.facts = {"world_size": str(world)}
    return made


def compared(candidate: MemoryDump, reference: MemoryDump) -> Summary:
    with compare_dumps(candidate, reference) as comparison:
        return comparison.summary


def test_a_part_of_the_batch_is_told_and_not_accused() -> None:
    summary = compared(dump(4, 2), dump(8, 1))
    assert (summary.outcome, summary.findings) == ("same", [])
    assert summary.counts.by_basis == {"part": 5, "digest": 1}
    assert any("5 values are parts" in note for note in summary.notes)


@pytest.mark.parametrize(
    ("candidate", "kind"),
    [(dump(4, 1), "shape"), (dump(3, 2), "shape"), (dump(4, 2, view=5), "scalar"), (dump(4, 2, scale=1.1), "state")],
    ids=["as many ranks", "no such part", "another argument", "a weight"],
)
def test_what_is_no_part_is_accused(candidate: MemoryDump, kind: str) -> None:
    first = compared(candidate, dump(8, 1)).first
    assert first is not None and first.kind == kind


@pytest.mark.parametrize(
    ("mine", "theirs", "parts", "found"),
    [
        ((4, 8), (8, 8), 2, True),
        ((8, 8), (4, 8), 2, True),
        ((4, 4), (8, 8), 2, True),
        ((2, 2, 2), (4, 4, 4), 2, False),
        ((1, 8), (3, 8), 2, True),
        ((2, 8), (3, 8), 2, True),
        ((3, 8), (8, 8), 2, False),
        ((8,), (8, 8), 2, False),
        ((8, 8), (8, 8), 2, False),
        ((1, 8), (2, 8), UNEVEN, True),
    ],
)
def test_parts(mine: tuple[int, ...], theirs: tuple[int, ...], parts: int, found: bool) -> None:
    assert is_part(mine, theirs, parts) is found


def on_rank(rank: int, *, shard: bool = True, seen: bool = False, unseen: bool = False) -> MemoryDump:
    """Two steps on a rank's shard, and a question after its number; `seen`, `unseen`: something changed it between."""
    grid, mine = np.arange(4, dtype=np.int64), np.arange(8, dtype=np.float32) + rank + 1
    asked = tensor("input.0", "input", grid), scalar("input.1", rank), tensor("output.0", "output", grid == rank)
    calls = [call(0, "torch.Tensor.__eq__", *asked, rank=rank)]
    for step in (0, 1):
        given = tensor("parameter.w", "parameter", mine), tensor("output.w", "output", mine * 2)
        notes = ("a DTensor of 2 ranks (S(0))",) * shard
        calls.append(call(10 * step + 1, "SGD", *given, kind="optimizer", step=step, rank=rank, notes=notes))
        mine = mine * 3 if seen or unseen else mine * 2
        if seen and step == 0:
            before = tensor("input.0", "input", mine / 3 * 2), tensor("output.0", "output", mine)
            calls.append(call(5, "torch.Tensor.mul_", *before, step=1, rank=rank))
    return MemoryDump(sorted(calls, key=lambda one: one.step))


@pytest.mark.parametrize(
    ("changed", "kinds"),
    [({}, []), ({"seen": True}, ["extra_call"]), ({"unseen": True}, ["changed_unseen"]), ({"shard": False}, ["state"])],
)
def test_a_shard_of_each_rank_is_no_cause_and_what_changes_one_is(changed: dict[str, bool], kinds: list[str]) -> None:
    summary = compared(on_rank(1, **changed), on_rank(0, shard=changed.get("shard", True)))
    assert [finding.kind for finding in summary.findings] == kinds
    assert any("shards of each rank" in note for note in summary.notes)


def gathered(*left: float, wrong: float = 1.0) -> MemoryDump:
    """FSDP gathers a weight some times, in memory that has held this much; what is made of it last is `wrong` times."""
    own, full = np.arange(4, dtype=np.float32) + 1, np.arange(8, dtype=np.float32) + 1
    calls = list[Call]()
    for number, filled in enumerate(left):
        # The memory may be that of the weight as it was gathered the last time, or zeros.
        memory = full if filled == 1 else np.linspace(0, filled, 8, dtype=np.float32)
        buffer = np.concatenate([own, memory[4:]])
        factor = np.float32(2 * wrong if number == len(left) - 1 else 2)
        parts = tensor("input.0.0", "input", own), tensor("input.1", "input", memory)
        copied = tensor("output.0", "output", own), tensor("output.1", "output", buffer)
        filling = tensor("input.0", "input", buffer), tensor("output.input.0", "output", full)
        read = tensor("input.1", "input", full), tensor("output.0", "output", full * factor)
        calls += [
            call(4 * number, "torch.empty", tensor("output.0", "output", memory), index=number),
            call(4 * number + 1, "torch.ops.fsdp.all_gather_copy_in", *parts, *copied, index=number),
            call(4 * number + 2, "torch.distributed.distributed_c10d.all_gather_single", *filling, index=number),
            call(4 * number + 3, "torch.nn.functional.linear", *read, index=number),
        ]
    return MemoryDump(calls)


@pytest.mark.parametrize("left", [(0, 1), (5, 1), (1, 5), (5, 0)])
def test_memory_as_it_was_in_a_buffer_of_fsdp_is_no_evidence(left: tuple[float, ...]) -> None:
    outline = outline_from_calls(gathered(*left).list)
    assert [outline.producers_of(at)[0] for at in (3, 7)] == [2, 6], "what is read is what was gathered"
    for other in ((0, 0), (7, 0), (0, 7)):
        summary = compared(gathered(*left), gathered(*other))
        assert (summary.outcome, summary.findings) == ("same", [])
        assert not any("uninitialized" in note for note in summary.notes)
        first = compared(gathered(*left, wrong=3.0), gathered(*other)).first
        assert first is not None and (first.kind, first.candidate.label) == ("wrong_value", "linear.1.forward")


def test_the_number_of_parts() -> None:
    assert parts_between(dump(4, 8), dump(4, 2)) == 4
    assert parts_between(dump(4, 2), dump(4, 2)) == 1
    assert parts_between(dump(4, 3), dump(4, 2)) == 1  # neither has the other's parts


def test_what_begins_to_differ_first_is_listed_and_what_may_follow_is_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = Shared(what="norm.mean", relation="differs", ranks=((0, 2), (1,)), step=0, odd=(1,))
    later = [Shared(what=f"w{n}", relation="differs", ranks=((0, 2), (1,)), step=1, odd=(1,)) for n in range(3)]
    _tell([*later, first], {"0": "a", "1": "b", "2": "c"})
    told = capsys.readouterr().out.splitlines()
    assert told[2:] == [
        "  norm.mean: began at step 0 on rank 1, changed by something that was not recorded; ranks that agree: 0,2 | 1",
        "  3 values from a later step on, which may follow: w0, …",
    ]
    _tell([first], {"0": "a", "1": "b", "2": "c"})
    assert "later step" not in capsys.readouterr().out
