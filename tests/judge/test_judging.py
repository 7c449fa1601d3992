"""Every way in which a call may differ is found, and nothing is found where it may differ."""

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from torch.nn.functional import group_norm

from graphprobe.diagnose import references
from graphprobe.diagnose.program import Program
from graphprobe.engine.interpret import copied_together
from graphprobe.engine.reference import array_from
from graphprobe.engine.value_file import InFile, ValueFile
from graphprobe.errors import Raised
from graphprobe.judge.judging import Difference, Judged, compare, far_off, identical, judged, not_moved_as_far, strides
from graphprobe.judge.observation import Observation, read
from graphprobe.judge.uncompiled import Reference, Spot

ROUNDOFF = 2.0**-24


def fresh(args: Sequence[Any]) -> list[Any]:
    made = copied_together(args)
    return [
        new.requires_grad_(old.requires_grad) if isinstance(old, torch.Tensor) else new
        for old, new in zip(args, made, strict=True)
    ]


def wants_gradients(calls: Sequence[Sequence[Any]]) -> bool | None:
    return any(t.requires_grad for args in calls for t in args if isinstance(t, torch.Tensor)) or None


def results(fn: Callable[..., Any], *calls: Sequence[Any]) -> list[Observation]:
    program = Program(fn, [(fresh(args), {}) for args in calls], grad=wants_gradients(calls), effects=False)
    return [read(record) for record in program.run(lambda f: f)]


def seen(*values: Any, part: str = "outputs", **more: Any) -> list[Observation]:
    return [Observation(None, **{part: list(values)}, **more)]


def reference_of(fn: Callable[..., Any], *calls: Sequence[Any], wide: bool = True, runs: int = 3) -> Reference:
    u = max((torch.finfo(t.dtype).eps / 2 for t in calls[0] if torch.is_tensor(t) and t.is_floating_point()), default=0)
    reference = Reference([results(fn, *calls)], roundoff=u or ROUNDOFF)
    reference.before = [[t.clone() for t in args if isinstance(t, torch.Tensor)] for args in calls]
    if wide:
        made = []
        for seed in (None, *range(runs)):
            program = Program(fn, [(fresh(args), {}) for args in calls], grad=wants_gradients(calls))
            made.append([read(r) for r in program.run_wide(seed, reference.roundoff)])
        reference.wide, reference.perturbed = made[0], made[1:]
    return reference


def compared(right: Callable[..., Any], other: Callable[..., Any], *args: Any, wide: bool = True) -> list[Difference]:
    """What `other` is accused of; `right` must not be accused of anything."""
    reference = reference_of(right, args, wide=wide)
    assert compare(reference, results(right, args)) == []
    return compare(reference, results(other, args))


def kinds(found: Sequence[Difference]) -> list[tuple[str, str, bool]]:
    return [(d.kind, d.where, d.certain) for d in found]


X = torch.linspace(-3, 3, 40).reshape(4, 10)
GROWN, OTHER = (X.clone().requires_grad_() for _ in range(2))
WHOLE, NAN = torch.arange(5), float("nan")


def cancelling(x: torch.Tensor) -> torch.Tensor:
    return (x + 1e8) - 1e8


def noisy(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    return torch.tanh(x) + torch.rand_like(x) + torch.randn(10) * torch.empty(10).uniform_(1, 2)


def one_element_off(x: torch.Tensor) -> list[torch.Tensor]:
    y = x.sin()
    y[2, 3] *= 1.001
    return [x.cos(), y]


def shared(x: torch.Tensor) -> list[torch.Tensor]:
    y = x.sin()
    return [y, y.view(-1)]


def laid_out_otherwise(x: torch.Tensor) -> torch.Tensor:
    return x.relu().t().contiguous().t()


def test_what_is_no_difference() -> None:
    for right, same, x in (
        (lambda x: x.exp() / x.exp().sum(), lambda x: (x.double().exp() / x.double().exp().sum()).float(), X),
        (lambda x: x @ x.t(), lambda x: (x.double() @ x.double().t()).float(), X),
        (lambda x: (x.bfloat16() * 3.1 + 1).float(), lambda x: (x * 3.1 + 1).float(), X),
        (lambda x: x.sum(), lambda x: x.flip(0).t().sum(), X),
        (lambda x: x * 0.0, lambda x: x * 0.0 + 0.0, X),
        (lambda x: (x / 0).sqrt(), lambda x: (x / 0).pow(0.5), X.bfloat16()),
        (torch.log, lambda x: torch.log(x) + 0, X),  # both have the same NaN
        (cancelling, lambda x: cancelling(x) * (1 + 1e-7), X),
        (lambda x: x * x, lambda x: x.square(), GROWN),
        (torch.relu, lambda x: x.relu().as_strided((1, 10), (77, 1)), X[:1]),  # a stride that addresses nothing
        (lambda x: (None, 5), lambda x: (None, 5), X),
    ):
        assert compared(right, same, x) == []


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class OtherPair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


DIFFERENT: list[tuple[Any, ...]] = [
    (["wrong_value outputs[1]"], lambda x: [x.cos(), x.sin()], one_element_off, X),
    (["wrong_value outputs[0]"], lambda i: i * 2, lambda i: i * 2 + (i == 3), WHOLE),
    (["wrong_value outputs[0]"], lambda i: i > 2, lambda i: i >= 2, WHOLE),
    (["wrong_value outputs[1]"], lambda x: (x, 5, "a"), lambda x: (x, 6, "a"), X),
    (["wrong_dtype outputs[0]"], torch.relu, lambda x: x.relu().double(), X),
    (["wrong_shape outputs[0]"], torch.relu, lambda x: x.relu()[None], X),
    (["wrong_shape outputs"], torch.relu, lambda x: [x.relu(), x.sin()], X),
    (["wrong_stride outputs[0]: stride (1, 4), uncompiled (10, 1)"], torch.relu, laid_out_otherwise, X),
    (["wrong_stride outputs[0]", "wrong_value outputs[0]"], torch.relu, lambda x: laid_out_otherwise(x + 1), X),
    (["aliasing outputs: outputs that no longer share memory: 1"], lambda x: x[1:], lambda x: x[1:].clone(), X),
    (["aliasing outputs: outputs that now share memory: 1"], lambda x: x[1:].clone(), lambda x: x[1:], X),
    (["aliasing outputs"], shared, lambda x: [x.sin(), x.sin().view(-1)], X),
    (["lost_mutation inputs[0]"], lambda x: x.add_(1).sum(), lambda x: (x + 1).sum(), X),
    (["wrong_value inputs[0]"], lambda x: x.add_(1).sum(), lambda x: x.add_(2).sum() - 40, X),
    (["wrong_value inputs[0]"], lambda x: x.sum(), lambda x: x.add_(1).sum() - 40, X),
    (["wrong_gradient gradients[0]"], lambda x: x * x, lambda x: x * x.detach(), GROWN),
    (["wrong_gradient gradients[1]"], lambda x, y: x * y, lambda x, y: x * y.detach(), GROWN, OTHER),  # it has none
    (["nonfinite outputs[0]"], torch.exp, lambda x: x.exp().masked_fill(x > 2.9, NAN), X),
    (["nonfinite outputs[0]"], torch.log, lambda x: torch.log(x).nan_to_num(0.0), X),
    (["nonfinite outputs[0]"], lambda x: x / 0, lambda x: (x / 0).masked_fill(x > 2.9, NAN), X),  # was infinite
    (["wrong_value outputs[0]"], cancelling, lambda x: x * 0 + 1e6, X),
    (["wrong_value outputs[0]"], noisy, lambda x: noisy(x) + 1e-3, X),
    (["wrong_value outputs: returned "], lambda x: [x, x * 2], lambda x: (x, x * 2), X),
    (["wrong_value outputs: returned "], lambda x: Pair(x, x * 2), lambda x: (x, x * 2), X),
    (["wrong_value outputs: returned "], lambda x: Pair(x, x * 2), lambda x: OtherPair(x, x * 2), X),
    (["wrong_value outputs: returned "], lambda x: {"a": x, "b": x * 2}, lambda x: {"a": x, "c": x * 2}, X),
    (["wrong_value outputs: returned "], lambda x: {"a": x}, lambda x: OrderedDict(a=x), X),
    (["wrong_value outputs: returned "], lambda x: [x, [x * 2]], lambda x: [[x], x * 2], X),
    (["wrong_value outputs: returned "], lambda x: x, lambda x: [x], X),
]


@pytest.mark.parametrize("case", DIFFERENT)
def test_a_difference(case: tuple[Any, ...]) -> None:
    expected, right, wrong, *args = case
    found = compared(right, wrong, *args)
    assert len(found) == len(expected) and all(d.certain for d in found)
    for difference, beginning in zip(found, expected, strict=True):
        assert f"{difference.kind} {difference.where}: {difference.text}".startswith(beginning)
        assert ", uncompiled " in difference.text or "returned" not in beginning


def test_strides_that_address_something() -> None:
    assert strides(torch.empty(3, 1, 2).as_strided((3, 1, 2), (2, 99, 1))) == (2, 0, 1)
    assert strides(torch.empty(0, 4)) == ()


def test_what_no_two_uncompiled_runs_agree_on_is_left_out() -> None:
    def clock(time: float, text: str, part: str, steady: int = 3) -> list[Observation]:
        return seen(torch.tensor(time, dtype=torch.float64), text, steady, part=part)

    for part in ("outputs", "inputs"):
        unsteady = Reference([clock(1.0, "a", part), clock(2.0, "b", part)])
        assert compare(unsteady, clock(3.0, "c", part)) == []
        assert len(compare(unsteady, clock(3.0, "c", part, steady=4))) == 1
        assert len(compare(Reference([clock(1.0, "a", part)] * 2), clock(3.0, "c", part))) == 2
    a_list, a_tuple, bare = (
        seen(X, structure=text) for text in ("PyTreeSpec(list, [*])", "PyTreeSpec(tuple, [*])", "*")
    )
    assert compare(Reference([a_list, a_tuple]), bare) == []
    assert len(compare(Reference([a_list, a_list]), bare)) == 1


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    ("part", "first", "second", "other"),
    [
        ("outputs", [1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [3.0, 3.0, 3.0]),
        ("gradients", [1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [3.0, 3.0, 3.0]),
        ("outputs", [1, 5], [2, 5], [3, 5]),
        ("outputs", [1.0, 2.0], [1.0, NAN], [1.0, float("inf")]),
    ],
)
def test_numbers_of_unsteady_runs_are_no_fault(part: str, first: Any, second: Any, other: Any, wide: bool) -> None:
    """What is read of memory never written, say: the compiled program may give anything there, and so does it."""

    def certain(*runs: list[float]) -> list[bool]:
        eager = [seen(torch.tensor(run), part=part) for run in runs]
        reference = Reference(eager, wide=eager[0], perturbed=[eager[0]] * 3) if wide else Reference(eager)
        return [d.certain for d in compare(reference, seen(torch.tensor(other), part=part))]

    assert not any(certain(first, second))
    if wide or isinstance(first[0], int):
        assert certain(first, first) == [True]


NOTHING, ONCE = ({"n": 0, "seen": 1}, {"n": 0, "seen": 1}), ({"n": 0, "seen": 1}, {"n": 1, "seen": 1})


def test_side_effects() -> None:
    for uncompiled, compiled, told in (
        ([ONCE], ONCE, []),
        ([ONCE], NOTHING, [("n", "0, uncompiled 1")]),
        ([ONCE], ({"n": 0, "seen": 1}, {"n": 1, "seen": 2}), [("seen", "2, uncompiled 1")]),
        ([({"time": 0.5}, {"time": 1.5}), ({"time": 2.5}, {"time": 3.5})], ({"time": 4.5}, {"time": 5.5}), []),
        ([None], ONCE, []),  # not looked at
        ([ONCE], None, []),
    ):
        found = compare(Reference([seen(X, effects=run) for run in uncompiled]), seen(X, effects=compiled))
        assert kinds(found) == [("side_effect", where, True) for where, _ in told]
        assert [d.text for d in found] == [text for _, text in told]


def test_positions_that_hang_on_the_last_bit_may_be_others() -> None:
    near = torch.tensor([3.75, 3.75 + 2.0**-22, 0.0])
    assert near[0] < near[1]
    reference = reference_of(lambda x: x.argmax(), [near])
    reference.perturbed = [seen(torch.tensor(1), inputs=[near])]
    other = results(lambda x: torch.tensor(0), [near])
    assert [d.kind for d in compare(reference, other)] == ["wrong_value"]
    reference.perturbed.append(seen(torch.tensor(0), inputs=[near]))
    assert compare(reference, other) == [], "a run on perturbed inputs gives another index as well"


def with_first(calls: list[Observation], count: int, wrong: torch.Tensor) -> list[Observation]:
    value = calls[0].outputs[0].clone()
    value[:count] = wrong[:count]
    return [replace(calls[0], outputs=[value])]


@pytest.mark.parametrize("wide", [True, False])
def test_where_nothing_rounds_no_bit_may_differ(wide: bool) -> None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    x[:2] = torch.tensor([1e-39, -0.0])
    reference = reference_of(torch.relu, [x], wide=wide)
    near = results(lambda v: torch.relu(torch.nextafter(v, torch.full_like(v, 2.0))), [x])
    assert compare(reference, near) == []  # as far as a rounding
    reference.rounds = False
    (found,) = compare(reference, near)
    assert found.certain and found.kind == "wrong_value" and "no operator of this program rounds" in found.text
    assert found.worst is not None and found.worst.legitimate is None
    flushed = results(lambda v: torch.where(v.abs() < 1e-38, 0.0, torch.relu(v)), [x])
    assert compare(reference, flushed) == []
    reference.draws = True
    assert compare(reference, near) == []


def test_where_nothing_rounds_and_float64_is_as_compiled_nobody_knows_which_is_off() -> None:
    x = torch.tensor([1.0, 2.0])
    reference = reference_of(torch.relu, [x])
    reference.eager = [results(lambda v: v.flip(0), [x])]
    reference.rounds = False
    (found,) = compare(reference, results(torch.relu, [x]))
    assert found.weight == "unsure" and found.text.startswith("in float64 it is as compiled, and no rounding explains")


def test_enough_wrong_numbers_of_a_part_are_not_added_to() -> None:
    x = torch.linspace(1, 2, 10)

    def right(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * k for k in range(1, 7)]

    def wrong(x: torch.Tensor) -> list[torch.Tensor]:
        return [*(v + 0.1 for v in right(x)[:-1]), right(x)[-1].to(torch.float16)]

    reference = reference_of(right, [x])
    found, few = (compare(reference, results(wrong, [x]), enough=enough) for enough in (None, 2))
    assert [d.where for d in found] == [f"outputs[{i}]" for i in range(6)] and all(d.certain for d in found)
    assert [d.where for d in few] == ["outputs[0]", "outputs[1]", "outputs[5]"] and few[2].kind == "wrong_dtype"
    assert [d.worst is None for d in found] == [False, *[True] * 5], "one is enough for a report"


LONG = torch.randn(64, 4096, generator=torch.Generator().manual_seed(0))


def off_by(roundoffs: float) -> list[Observation]:
    return results(lambda x: x.sum(1) + roundoffs * ROUNDOFF, [LONG])


def test_a_few_runs_that_are_near_each_other_by_chance_accuse_nobody() -> None:
    reference, asked = reference_of(lambda x: x.sum(1), [LONG]), []
    assert reference.wide is not None
    few = replace(reference, perturbed=[reference.wide] * 3)

    def more() -> list[list[Observation]]:
        asked.append(1)
        return reference.perturbed * 3

    assert compare(few, off_by(1000)), "three runs that happen to agree"
    assert compare(replace(few, further={"perturbed": [more]}), off_by(1000)) == [] and asked == [1]
    assert judged(replace(few, further={"perturbed": [more]}), off_by(1000)).asks == "perturbed" and asked == [1]
    for roundoffs, times in ((1e6, 1), (14_000, 2)):
        (found,) = compare(replace(few, further={"perturbed": [more]}), off_by(roundoffs))
        assert found.certain and len(asked) == times


def by_hand(x: torch.Tensor) -> torch.Tensor:
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return (powers / powers.sum(-1, keepdim=True)).sum(-1)


JUMPS = [torch.floor, lambda one: (4 * one).long(), lambda one: one >= 1, lambda one: one.frac() * 3]


@pytest.mark.parametrize("jump", JUMPS)
def test_which_elements_a_rounding_decides_is_a_matter_of_chance(jump: Callable[..., torch.Tensor]) -> None:
    accused, asked = 0, []
    for seed in range(6):
        x = torch.randn(64, 33, generator=torch.Generator().manual_seed(seed))
        reference = reference_of(lambda x: jump(x.softmax(-1).sum(-1)), [x], runs=11)
        right = results(lambda x: jump(by_hand(x)), [x])
        few = replace(reference, perturbed=reference.perturbed[:3])

        def more(runs: Sequence[list[Observation]] = reference.perturbed[3:]) -> list[list[Observation]]:
            asked.append(len(runs))
            return [*runs]

        accused += any(d.certain for d in compare(few, right))
        assert compare(replace(few, further={"perturbed": [more]}), right) == []
        gross = right[0].outputs[0] + 900
        for count in (1, 60) if right[0].outputs[0].dtype != torch.bool else ():
            (found,) = compare(reference, with_first(right, count, gross))
            assert found.certain or not gross.is_floating_point()
    assert accused and len(asked) >= accused, "three runs do not tell"
    reference, right = reference_of(lambda x: x.softmax(-1).sum(-1), [x], runs=11), results(by_hand, [x])
    assert compare(reference, right) == []
    (found,) = compare(reference, with_first(right, 1, right[0].outputs[0] + 1e-3))
    assert found.certain, "no run jumps"


def test_one_perturbed_run_convicts_what_is_grossly_wrong_and_acquits_nobody() -> None:
    reference, asked = reference_of(lambda x: x.sum(1), [LONG]), []

    def more() -> list[list[Observation]]:
        asked.append(1)
        return reference.perturbed[1:]

    def one() -> Reference:
        return replace(reference, perturbed=reference.perturbed[:1], further={"perturbed": [more, list]})

    assert one().few and not replace(one(), further={"perturbed": [more]}).few
    assert judged(one(), off_by(1e6), doubting=True).asks == "" and judged(one(), off_by(1e6)).differences[0].certain
    assert judged(one(), off_by(100), doubting=True).asks == "perturbed", "right, by one run only"
    assert judged(one(), off_by(100)) == Judged() and asked == []
    assert judged(one(), off_by(20_000), doubting=True).asks == "perturbed", "wrong, by less than tells"
    pair = reference_of(lambda x: (x.sum(1), x.sum(0)), [LONG])
    twice = results(lambda x: (x.sum(1) + 1e6 * ROUNDOFF, x.sum(0) + 1e6 * ROUNDOFF), [LONG])
    for batches, wrong in (([more], 2), ([more, more], 1)):
        found = judged(replace(pair, perturbed=pair.perturbed[:1], further={"perturbed": batches}), twice)
        assert [d.certain for d in found.differences] == [True] * wrong and asked == []


def test_what_moved_inputs_move_as_far_is_right() -> None:
    fn: Callable[[torch.Tensor], Any] = lambda x: x.sum(1)  # noqa: E731
    reference, wholly = (reference_of(f, [LONG], wide=False) for f in (fn, lambda x: x > 0))
    runs = [[read(c) for c in Program(fn, [((LONG.clone(),), {})]).run_moved(seed)] for seed in range(3)]
    assert [c.inputs[0].shape for run in runs for c in run] == [(0,)] * 3, "it is left as it is"
    reference.moved_inputs = wholly.moved_inputs = runs
    for roundoffs, answer in ((0, True), (50, True), (5_000, False), (50_000, False)):
        assert (not_moved_as_far(reference, off_by(roundoffs)) == []) == answer
        without = "without a float64 run 256 roundings of rms are let pass, which explains nothing"
        assert (compare(reference, off_by(roundoffs)) == []) == (roundoffs <= 5_000), without
    (left,) = not_moved_as_far(reference, off_by(5_000))
    elsewhere = msgspec.structs.replace(left, where="outputs[1]")
    assert not left.certain and not_moved_as_far(reference, off_by(5_000), [elsewhere]) == []
    (other,) = not_moved_as_far(reference, results(lambda x: x.sum(1).double(), [LONG]))
    (whole,) = not_moved_as_far(wholly, results(lambda x: x > 1, [LONG]))
    assert other.certain and whole.certain, "neither a dtype nor a truth value is a rounding"
    assert [far_off(reference, off_by(n)) for n in (0, 50, 50_000, 1e9)] == [False, False, False, True]


def test_with_one_perturbed_run_an_element_learns_from_its_row_and_column() -> None:
    x = torch.randn(32, 48, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 48)
    reference = reference_of(lambda x: x * 3, [x])
    spot, wide = Spot(reference, 0, "outputs", 0), reference.wide
    moved = [[replace(wide[0], outputs=[wide[0].outputs[0] + x * ROUNDOFF * torch.randn(32, 48)])]]
    for few in (False, True):
        made = replace(reference, perturbed=moved, further={"perturbed": [list, list] if few else []})
        ratio = replace(spot, reference=made).sigma(array_from(wide[0].outputs[0])) / array_from(x.abs() * ROUNDOFF)
        assert (ratio.min() > 0.05) == few


def test_without_a_reference_only_classes_are_certain() -> None:
    assert compared(torch.exp, lambda x: torch.exp(x.double()).float(), X, wide=False) == []
    for wide, words in ((True, "limit"), (False, "relative rms difference 0.01")):
        (found,) = compared(torch.exp, lambda x: torch.exp(x) * 1.01, X, wide=wide)
        assert kinds([found]) == [("wrong_value", "outputs[0]", wide)] and words in found.text
        assert not wide or 100 < found.z < float("inf")
    assert kinds(compared(torch.exp, lambda x: torch.exp(x) / 0, X, wide=False)) == [("nonfinite", "outputs[0]", True)]
    assert compared(lambda x: x / 0 * 0, lambda x: x / 0 * 0, X, wide=False) == []


def raising(x: torch.Tensor) -> torch.Tensor:
    raise IndexError("first line\nsecond line\nthird line")


def test_exceptions() -> None:
    (missing,) = compared(raising, torch.relu, X, wide=False)
    assert missing.kind == "missing_exception"
    assert "IndexError: first line second line" in missing.text and "third" not in missing.text
    (extra,) = compared(torch.relu, raising, X)
    assert (extra.kind, extra.text) == ("crash_runtime", "IndexError: first line second line")
    assert compared(raising, raising, X, wide=False) == []
    raised = Raised("torch._dynamo.exc.BackendCompilerFailed", "it failed", "")
    (found,) = compare(reference_of(torch.relu, [X]), [Observation(raised)])
    assert found.kind == "crash_compile"
    assert Raised("KeyError", "", 'File "x/torch/_dynamo/convert_frame.py", line 3, in f').while_compiling
    assert not Raised("KeyError", "", 'File "mine.py", line 3, in f').while_compiling


def test_calls_are_compared_each_with_its_own() -> None:
    state = {"n": 0}

    def wrong_at_the_second(x: torch.Tensor) -> torch.Tensor:
        state["n"] += 1
        return x.sin() * (1.5 if state["n"] == 2 else 1.0)

    calls = [[X], [X * 2], [X * 3]]
    reference = reference_of(torch.sin, *calls)
    found = compare(reference, results(wrong_at_the_second, *calls))
    assert [(d.call, d.where) for d in found] == [(1, "outputs[0]")]
    assert compare(reference, results(torch.sin, *calls)) == []


def test_a_float64_run_that_is_another_program_judges_nothing() -> None:
    """Where random numbers are drawn: it is far from uncompiled, and no rounding of the inputs explains that."""
    reference = reference_of(lambda x: torch.sin(x), (X,))
    reference.draws = True
    reference.wide = results(lambda x: torch.cos(x).double(), (X,))
    reference.perturbed = [reference.wide] * 3
    (found,) = compare(reference, results(lambda x: torch.sin(x) * 1.3, (X,)))
    assert found.kind == "wrong_value" and not found.certain
    assert "no float64 reference" in found.text


@pytest.mark.parametrize(
    ("uncompiled", "compiled", "weight"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 2**-22]), None),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1]), "unsure"),
        (torch.tensor([1.0, torch.inf, torch.nan]), torch.tensor([1.0 + 2**-23, torch.inf, torch.nan]), None),
        (torch.tensor([1.0, torch.inf]), torch.tensor([1.5, torch.inf]), "unsure"),
        (torch.tensor([1.0, torch.inf]), torch.tensor([1.0, -torch.inf]), "certain"),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 2.0]), "certain"),
        (torch.tensor([3e38]), torch.tensor([-3e38]), "unsure"),
        (torch.full((2,), 1e300, dtype=torch.double), torch.full((2,), 1.1e300, dtype=torch.double), "unsure"),
        (torch.tensor([1 + 1j]), torch.tensor([1 + 1.5j]), "unsure"),
        (torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.5], dtype=torch.bfloat16), "unsure"),
    ],
)
def test_without_a_float64_run_classes_are_certain_and_numbers_are_not(
    uncompiled: torch.Tensor, compiled: torch.Tensor, weight: str | None
) -> None:
    found = compare(Reference([seen(uncompiled)], roundoff=2.0**-24), seen(compiled))
    assert [one.weight for one in found] == ([weight] if weight else [])


def test_where_uncompiled_is_further_off() -> None:
    def narrow(x: torch.Tensor) -> torch.Tensor:
        return sum((x.bfloat16() * i for i in range(30)), start=x.bfloat16()).float()

    reference = reference_of(narrow, [X])
    reference.roundoff = ROUNDOFF
    better: list[Difference] = []
    assert compare(reference, results(lambda x: x.bfloat16().float() * 436, [X]), better=better) == []
    assert {d.weight for d in better} <= {"better"}
    worse = compare(reference, results(lambda x: x * 400, [X]))
    assert [d.certain for d in worse] == [True]


def test_elements_that_torch_leaves_undefined_or_rounding_decides() -> None:
    better: list[Difference] = []
    three, four = (seen(torch.tensor([value])) for value in (3, 4))
    assert compare(Reference([three], wide=four), four, better=better) == []
    assert [(d.weight, d.certain) for d in better] == [("better", False)]

    def result(*values: float) -> list[Observation]:
        return seen(torch.tensor(values))

    reference = Reference([result(1.0, 2.0), result(1.0, 2.0)], left_open=["some words"])
    reference.undefined = [result(1.0, 2.0), result(1.0, 9.0), result(1.0, NAN)]
    better: list[Difference] = []
    assert compare(reference, result(1.0, 5.0), better=better) == []
    assert [(d.weight, d.text, d.worst) for d in better] == [("undefined", "some words", None)]
    assert [d.certain for d in compare(reference, result(NAN, 5.0))] == [True]
    reference.undefined = [result(1.0, 9.0), result(1.0, 9.0)]  # other than the program only for being watched
    assert [d.certain for d in compare(reference, result(1.0, float("inf")))] == [True]


def at_edges(fn: Callable[..., Any], *args: Any) -> Reference:
    """A reference that can be asked for runs at the edges of functions."""
    reference = reference_of(fn, args)

    def run(step: Callable[[Program], Any], kind: type) -> Any:
        return step(Program(fn, [(fresh(args), {})], effects=False))

    reference.further = {"edges": [lambda: references._at_edges(run, reference)]}
    return reference


def squashed(x: torch.Tensor, off: float = 0.0) -> torch.Tensor:
    return torch.log1p(-(x.tanh() + off))


def normed(x: torch.Tensor) -> torch.Tensor:
    return group_norm(x, 10, torch.ones(10), torch.zeros(10))


CONSTANT = torch.full((1, 10, 2), 0.999995)
UNITS = 2.0**-24
EDGES: list[tuple[Callable[..., Any], Callable[..., Any], torch.Tensor]] = [
    (squashed, lambda x: squashed(x, UNITS), torch.linspace(7, 10, 8)),
    (lambda x: squashed(x).isinf(), lambda x: squashed(x, UNITS).isinf(), torch.linspace(7, 10, 8)),
    (lambda x: normed(x).abs().log(), lambda x: torch.full_like(x, -torch.inf), CONSTANT),
    (lambda x: x.tanh().atanh(), lambda x: (x.tanh() + UNITS * (x.frac() < 0.5)).atanh(), torch.linspace(8, 10, 64)),
]


@pytest.mark.parametrize(("right", "other", "x"), EDGES)
def test_infinity_that_a_rounding_decides(
    right: Callable[..., Any], other: Callable[..., Any], x: torch.Tensor
) -> None:
    reference, got = at_edges(right, x), results(other, [x])
    assert judged(reference, got).asks == "edges"
    assert compare(reference, got) == []


FAULTS: list[tuple[Callable[..., Any], Callable[..., Any], torch.Tensor]] = [
    (squashed, lambda x: squashed(x, 1e-5), torch.linspace(5, 10, 8)),
    (torch.acosh, lambda x: (x + (x * x - 1).sqrt()).log(), torch.tensor([1e20, 2.0])),
    (lambda x: (x * 0).exp(), lambda x: torch.ones_like(x), torch.tensor([torch.inf, 1.0])),
    (torch.log, lambda x: x.clamp_min(1e-30).log(), torch.tensor([0.0, 1.0])),
    (lambda x: 1 / x, lambda x: 1 / (x + 1e-3), torch.tensor([1e-4, 1.0])),
    (squashed, lambda x: squashed(x).nan_to_num(neginf=0.0), torch.tensor([20.0, 1.0])),
]


@pytest.mark.parametrize(("right", "other", "x"), FAULTS)
def test_infinity_that_no_rounding_decides(
    right: Callable[..., Any], other: Callable[..., Any], x: torch.Tensor
) -> None:
    assert [d.certain for d in compare(at_edges(right, x), results(other, [x]))] == [True]


def four_steps(h: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        h = (h * 1.37).sin() + 0.1
    return h


def mixed(x: torch.Tensor) -> torch.Tensor:
    """float32 outside, bfloat16 inside: the dtypes that show say nothing of the roundings."""
    return four_steps(x.bfloat16()).float()


def mixed_reference() -> Reference:
    reference = reference_of(mixed, [X])
    for seed in range(6):
        run = Program(mixed, [([X.clone()], {})], effects=False).run_rounded(seed)
        reference.rounded.append([read(r) for r in run.calls])
        reference.narrowest = run.narrowest
    return reference


def test_roundings_inside_of_a_program_are_noise() -> None:
    reference = mixed_reference()
    assert all(reference.rounded)
    assert compare(reference, results(mixed, [X])) == []
    kept_wide = results(lambda x: four_steps(x.bfloat16().float()).bfloat16().float(), [X])
    assert compare(reference, kept_wide) == []
    (found,) = compare(reference, results(lambda x: mixed(x) * 1.2, [X]))
    assert kinds([found]) == [("wrong_value", "outputs[0]", True)]
    (found,) = compare(reference, results(lambda x: mixed(x) + (torch.arange(10) == 3) * 0.5, [X]))
    assert found.certain, "one column is off"
    reference = mixed_reference()
    reference.wide, reference.perturbed = None, []
    assert compare(reference, results(mixed, [X])) == []
    assert [d.certain for d in compare(reference, results(lambda x: mixed(x) * 3, [X]))] == [True]
    assert Program(torch.sin, [([X.clone()], {})], effects=False).run_rounded(0).calls == []


def with_own(fn: Callable[..., Any], *args: Any) -> Reference:
    """A reference that can be asked for runs in the program's own precision."""
    reference = reference_of(fn, args)

    def own() -> list[list[Observation]]:
        programs = [Program(fn, [(fresh(args), {})], effects=False) for _ in range(24)]
        return [[read(r) for r in p.run_rounded(seed, least=0.0).calls] for seed, p in enumerate(programs)]

    reference.further = {"own": [own]}
    return reference


def other_in_float64(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * (2 if x.dtype is torch.float32 else 3)


def test_a_float64_run_of_something_else_explains_nothing() -> None:
    reference, wrong = with_own(other_in_float64, X), results(lambda x: x.sin() * 2.5, [X])
    assert judged(reference, wrong).asks == "own"
    reference.in_own_precision()
    assert judged(reference, wrong) == Judged(compare(reference, wrong))
    assert compare(reference, results(lambda x: x.sin() * 4 / 2, [X])) == []
    assert compare(reference, results(lambda x: (x.double().sin() * 2).float(), [X])) == []
    for factor, certain in ((2.5, True), (3, False)):
        (found,) = compare(reference, results(lambda x, by=factor: x.sin() * by, [X]))
        assert found.certain == certain, found.text
        assert certain or "in float64 it is as compiled" in found.text
    whole = with_own(lambda x: (100 * other_in_float64(x)).long(), X)
    (found,) = compare(whole, results(lambda x: (300 * x.sin()).long(), [X]))
    assert found.weight == "unsure" and "no rounding explains" in found.text


def test_what_roundings_explain_is_not_something_else() -> None:
    better: list[Difference] = []
    reference = with_own(lambda x: (x + 1e8) - 1e8, X)
    assert compare(reference, results(lambda x: x.clone(), [X]), better=better) == []
    assert [d.weight for d in better] == ["better"]
    assert len(reference.own) == 24, "the runs were asked for"
    rounded = with_own(lambda x: ((x + 1e8) - 1e8).long(), X)
    assert compare(rounded, results(lambda x: x.long(), [X])) == []


def test_what_is_identical_needs_no_judge() -> None:
    reference = reference_of(lambda x: [x.sin(), x.add_(1)], [X], wide=False)
    (same,) = results(lambda x: [x.sin(), x.add_(1)], [X])
    sin, *others = same.outputs
    raised = Observation(Raised("ValueError", "no", ""))
    assert identical(reference, [same])
    for other in (
        [],  # a call is missing
        [same, same],
        [replace(same, outputs=[sin + 1e-7, *others])],
        [replace(same, outputs=[sin.t().contiguous().t(), *others])],
        [replace(same, inputs=[X])],
        [replace(same, shared=frozenset())],
        [replace(same, structure="*")],
        [raised],
    ):
        assert not identical(reference, other)
    assert identical(Reference([[raised]]), [Observation(Raised("ValueError", "no", "elsewhere"))])
    assert not identical(Reference([[raised]]), seen(X))
    assert identical(Reference([seen(X, effects=ONCE)]), seen(X, effects=ONCE))
    assert not identical(Reference([seen(X, effects=ONCE)]), seen(X, effects=NOTHING))


def seen_in_file(model: torch.nn.Module, x: torch.Tensor, file: ValueFile | None, factor: float) -> tuple[Any, Any]:
    """A reference with float64 runs, and the calls of a model whose gradients are too large by a factor."""

    def wrong(fn: Callable[..., Any]) -> Callable[..., Any]:
        for weight in model.parameters():
            weight.register_hook(lambda gradient: gradient * factor)
        return fn

    def calls(step: Callable[[Program], list[Any]]) -> list[Observation]:
        return [read(record) for record in step(Program(copy.deepcopy(model), [([x], {})], grad=True, file=file))]

    reference = Reference([calls(lambda program: program.run(lambda fn: fn)) for _ in range(2)])
    wide = [calls(lambda p, seed=seed: p.run_wide(seed, ROUNDOFF)) for seed in (None, 0, 1, 2)]  # type: ignore[misc]
    reference.wide, reference.perturbed = wide[0], wide[1:]
    program = Program(model, [([x], {})], grad=True, file=file)
    return reference, [read(record) for record in program.run(wrong)]


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_values_in_a_file_are_judged_as_those_in_memory(factor: float) -> None:
    found = []
    for file in (None, ValueFile()):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(300, 100), torch.nn.Tanh(), torch.nn.Linear(100, 200))
        reference, got = seen_in_file(model, torch.randn(60, 300), file, factor)
        found.append((compare(reference, got), identical(reference, got), got[0].shared))
        runs = Spot(reference, 0, "gradients", 1).eager_runs()
        assert len(runs) == (2 if file is None else 1), "the same bits in the file count once"
    assert found[0] == found[1]
    assert [d.where for d in found[0][0]] == ([] if factor == 1.0 else [f"gradients[{i}]" for i in range(1, 5)])


def test_one_value_after_the_other_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, those that are in memory at a time are the runs of one."""
    file, most = ValueFile(), 0
    layers = [torch.nn.Linear(256, 256, bias=False) for _ in range(12)]
    reference, got = seen_in_file(torch.nn.Sequential(*layers), torch.randn(2, 256), file, 1.5)
    size, alive, load = layers[0].weight.nbytes, [0], InFile.load

    def counted(self: InFile) -> Any:
        nonlocal most
        value = load(self)
        alive[0] += value.nbytes
        most = max(most, alive[0])
        weakref.finalize(value.untyped_storage(), lambda n=value.nbytes: alive.__setitem__(0, alive[0] - n))
        return value

    monkeypatch.setattr(InFile, "load", counted)
    assert len(compare(reference, got)) == len(layers)
    assert size < most <= 10 * size
