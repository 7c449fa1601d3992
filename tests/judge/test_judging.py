"""Every way in which a call may differ is found, and nothing is found where it may differ."""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pytest
import torch

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


def results(fn: Callable[..., Any], *calls: Sequence[Any], grad: bool | None = None) -> list[Observation]:
    program = Program(fn, [(fresh(args), {}) for args in calls], grad=grad, effects=False)
    return [read(record) for record in program.run(lambda f: f)]


def reference_of(
    fn: Callable[..., Any], *calls: Sequence[Any], grad: bool | None, wide: bool, runs: int = 3
) -> Reference:
    u = max((torch.finfo(t.dtype).eps / 2 for t in calls[0] if torch.is_tensor(t) and t.is_floating_point()), default=0)
    reference = Reference([results(fn, *calls, grad=grad)], roundoff=u or ROUNDOFF)
    reference.before = [[t.clone() for t in args if isinstance(t, torch.Tensor)] for args in calls]
    if wide:
        made = []
        for seed in (None, *range(runs)):
            program = Program(fn, [(fresh(args), {}) for args in calls], grad=grad)
            made.append([read(r) for r in program.run_wide(seed, reference.roundoff)])
        reference.wide, reference.perturbed = made[0], made[1:]
    return reference


def compared(
    right: Callable[..., Any], other: Callable[..., Any], *args: Any, grad: bool | None = None, wide: bool = True
) -> list[Difference]:
    """What `other` is accused of; `right` must not be accused of anything."""
    reference = reference_of(right, args, grad=grad, wide=wide)
    assert compare(reference, results(right, args, grad=grad)) == []
    return compare(reference, results(other, args, grad=grad))


@pytest.mark.parametrize("wide", [True, False])
def test_where_nothing_rounds_no_bit_may_differ(wide: bool) -> None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    x[:2] = torch.tensor([1e-39, -0.0])
    reference = reference_of(torch.relu, [x], grad=None, wide=wide)
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
    reference = reference_of(torch.relu, [x], grad=None, wide=True)
    reference.eager = [results(lambda v: v.flip(0), [x])]
    reference.rounds = False
    (found,) = compare(reference, results(torch.relu, [x]))
    assert found.weight == "unsure" and found.text.startswith("in float64 it is as compiled, and no rounding explains")


def kinds(found: Sequence[Difference]) -> list[tuple[str, str, bool]]:
    return [(d.kind, d.where, d.certain) for d in found]


X = torch.linspace(-3, 3, 40).reshape(4, 10)


@pytest.mark.parametrize(
    ("right", "same"),
    [
        (lambda x: x.exp() / x.exp().sum(), lambda x: (x.double().exp() / x.double().exp().sum()).float()),
        (lambda x: x @ x.t(), lambda x: (x.double() @ x.double().t()).float()),
        (lambda x: (x.bfloat16() * 3.1 + 1).float(), lambda x: (x * 3.1 + 1).float()),
        (lambda x: x.sum(), lambda x: x.flip(0).t().sum()),
        (lambda x: x * 0.0, lambda x: x * 0.0 + 0.0),
        (lambda x: (x / 0).sqrt(), lambda x: (x / 0).pow(0.5)),
    ],
)
def test_roundings_are_not_differences(right: Callable[..., Any], same: Callable[..., Any]) -> None:
    if torch.bfloat16 in {t.dtype for t in [right(X)]}:
        raise AssertionError("the results are to be float32")
    assert compared(right, same, X.bfloat16() if right(X).isnan().any() else X) == []


def test_a_wrong_value() -> None:
    (found,) = compared(torch.exp, lambda x: torch.exp(x) * 1.01, X)
    assert kinds([found]) == [("wrong_value", "outputs[0]", True)]
    assert 100 < found.z < float("inf")
    assert "limit" in found.text


def test_one_wrong_element_of_one_output() -> None:
    def wrong(x: torch.Tensor) -> list[torch.Tensor]:
        y = x.sin()
        y[2, 3] *= 1.001
        return [x.cos(), y]

    assert kinds(compared(lambda x: [x.cos(), x.sin()], wrong, X)) == [("wrong_value", "outputs[1]", True)]


def test_enough_wrong_numbers_of_a_part_are_not_added_to() -> None:
    x = torch.linspace(1, 2, 10)

    def right(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * k for k in range(1, 7)]

    def wrong(x: torch.Tensor) -> list[torch.Tensor]:
        return [*(v + 0.1 for v in right(x)[:-1]), right(x)[-1].to(torch.float16)]

    reference = reference_of(right, [x], grad=None, wide=True)
    found, few = (compare(reference, results(wrong, [x]), enough=enough) for enough in (None, 2))
    assert [d.where for d in found] == [f"outputs[{i}]" for i in range(6)] and all(d.certain for d in found)
    assert [(d.where, d.kind) for d in few] == [
        ("outputs[0]", "wrong_value"),
        ("outputs[1]", "wrong_value"),
        ("outputs[5]", "wrong_dtype"),
    ]
    assert [d.worst is None for d in found] == [False, *[True] * 5], "one is enough for a report"


def test_a_few_runs_that_are_near_each_other_by_chance_accuse_nobody() -> None:
    x = torch.randn(16, 4096, generator=torch.Generator().manual_seed(0))
    reference = reference_of(lambda x: x.sum(1), [x], grad=None, wide=True)
    usual, asked = reference.perturbed, []
    assert reference.wide is not None

    def more() -> list[list[Observation]]:
        asked.append(1)
        return usual * 3

    def off_by(roundoffs: float) -> list[Observation]:
        return results(lambda x: x.sum(1) + roundoffs * ROUNDOFF, [x])

    few = replace(reference, perturbed=[reference.wide] * 3)
    assert compare(few, off_by(1000)), "three runs that happen to agree"
    assert compare(replace(few, make_perturbed=[more]), off_by(1000)) == [] and asked == [1]
    assert judged(replace(few, make_perturbed=[more]), off_by(1000)).asks == "perturbed" and asked == [1]
    assert [d.certain for d in compare(replace(few, make_perturbed=[more]), off_by(1e6))] == [True] and asked == [1]
    assert [d.certain for d in compare(replace(few, make_perturbed=[more]), off_by(14_000))] == [True] and asked == [
        1,
        1,
    ]


def by_hand(x: torch.Tensor) -> torch.Tensor:
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return (powers / powers.sum(-1, keepdim=True)).sum(-1)


JUMPS = [torch.floor, lambda one: (4 * one).long(), lambda one: one >= 1, lambda one: one.frac() * 3]


@pytest.mark.parametrize("jump", JUMPS)
def test_which_elements_a_rounding_decides_is_a_matter_of_chance(jump: Callable[..., torch.Tensor]) -> None:
    accused, asked = 0, []
    for seed in range(6):
        x = torch.randn(64, 33, generator=torch.Generator().manual_seed(seed))
        reference = reference_of(lambda x: jump(x.softmax(-1).sum(-1)), [x], grad=None, wide=True, runs=11)
        right = results(lambda x: jump(by_hand(x)), [x])
        few = replace(reference, perturbed=reference.perturbed[:3])

        def more(runs: Sequence[list[Observation]] = reference.perturbed[3:]) -> list[list[Observation]]:
            asked.append(len(runs))
            return [*runs]

        accused += any(d.certain for d in compare(few, right))
        assert compare(replace(few, make_perturbed=[more]), right) == []
        gross = right[0].outputs[0] + 900
        for count in (1, 60) if right[0].outputs[0].dtype != torch.bool else ():
            (found,) = compare(reference, with_first(right, count, gross))
            assert found.certain or not gross.is_floating_point()
    assert accused and len(asked) >= accused, "three runs do not tell"


def with_first(calls: list[Observation], count: int, wrong: torch.Tensor) -> list[Observation]:
    """The only output, with other first elements."""
    value = calls[0].outputs[0].clone()
    value[:count] = wrong[:count]
    return [replace(calls[0], outputs=[value])]


def test_a_wrong_element_where_no_run_jumps() -> None:
    x = torch.randn(64, 33, generator=torch.Generator().manual_seed(0))
    reference = reference_of(lambda x: x.softmax(-1).sum(-1), [x], grad=None, wide=True, runs=11)
    right = results(by_hand, [x])
    assert compare(reference, right) == []
    assert [d.certain for d in compare(reference, with_first(right, 1, right[0].outputs[0] + 1e-3))] == [True]


def test_one_perturbed_run_convicts_what_is_grossly_wrong_and_acquits_nobody() -> None:
    x = torch.randn(64, 4096, generator=torch.Generator().manual_seed(0))
    reference = reference_of(lambda x: x.sum(1), [x], grad=None, wide=True)
    usual, asked = reference.perturbed, []

    def more() -> list[list[Observation]]:
        asked.append(1)
        return usual[1:]

    def one() -> Reference:
        return replace(reference, perturbed=usual[:1], make_perturbed=[more, list])

    def off_by(roundoffs: float) -> list[Observation]:
        return results(lambda x: x.sum(1) + roundoffs * ROUNDOFF, [x])

    assert one().few and not replace(one(), make_perturbed=[more]).few
    assert judged(one(), off_by(1e6), doubting=True).asks == "" and judged(one(), off_by(1e6)).differences[0].certain
    assert judged(one(), off_by(100), doubting=True).asks == "perturbed", "right, by one run only"
    assert judged(one(), off_by(100)) == Judged() and asked == []
    assert judged(one(), off_by(20_000), doubting=True).asks == "perturbed", "wrong, by less than tells"
    pair = reference_of(lambda x: (x.sum(1), x.sum(0)), [x], grad=None, wide=True)
    twice = results(lambda x: (x.sum(1) + 1e6 * ROUNDOFF, x.sum(0) + 1e6 * ROUNDOFF), [x])
    for batches, wrong in (([more], 2), ([more, more], 1)):
        found = judged(replace(pair, perturbed=pair.perturbed[:1], make_perturbed=batches), twice)
        assert [d.certain for d in found.differences] == [True] * wrong and asked == []


def test_what_moved_inputs_move_as_far_is_right() -> None:
    x = torch.randn(64, 4096, generator=torch.Generator().manual_seed(0))
    fn: Callable[[torch.Tensor], Any] = lambda x: x.sum(1)  # noqa: E731
    reference = reference_of(fn, [x], grad=None, wide=False)
    runs = [[read(c) for c in Program(fn, [((x.clone(),), {})]).run_moved(seed)] for seed in range(3)]
    assert [c.inputs[0].shape for run in runs for c in run] == [(0,)] * 3, "it is left as it is"
    reference.moved_inputs = runs

    def off_by(roundoffs: float) -> list[Observation]:
        return results(lambda x: x.sum(1) + roundoffs * ROUNDOFF, [x])

    for roundoffs, answer in ((0, True), (50, True), (5_000, False), (50_000, False)):
        assert (not_moved_as_far(reference, off_by(roundoffs)) == []) == answer
        without = "without a float64 run 256 roundings of rms are let pass, which explains nothing"
        assert (compare(reference, off_by(roundoffs)) == []) == (roundoffs <= 5_000), without
    (left,) = not_moved_as_far(reference, off_by(5_000))
    elsewhere = msgspec.structs.replace(left, where="outputs[1]")
    assert not left.certain and not_moved_as_far(reference, off_by(5_000), [elsewhere]) == []
    (other,) = not_moved_as_far(reference, results(lambda x: x.sum(1).double(), [x]))
    assert other.certain, "a dtype is no rounding"
    wholly = reference_of(lambda x: x > 0, [x], grad=None, wide=False)
    wholly.moved_inputs = runs
    (whole,) = not_moved_as_far(wholly, results(lambda x: x > 1, [x]))
    assert whole.certain, "a truth value neither"
    assert [far_off(reference, off_by(n)) for n in (0, 50, 50_000, 1e9)] == [False, False, False, True]


def test_with_one_perturbed_run_an_element_learns_from_its_row_and_column() -> None:
    x = torch.randn(32, 48, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 48)
    reference = reference_of(lambda x: x * 3, [x], grad=None, wide=True)
    spot, wide = Spot(reference, 0, "outputs", 0), reference.wide
    assert wide is not None
    moved = [[replace_output(wide[0], wide[0].outputs[0] + x * ROUNDOFF * torch.randn(32, 48))]]
    for few in (False, True):
        made = replace(reference, perturbed=moved, make_perturbed=[list, list] if few else [])
        ratio = replace(spot, reference=made).sigma(array_from(wide[0].outputs[0])) / array_from(x.abs() * ROUNDOFF)
        assert (ratio.min() > 0.05) == few


def replace_output(call: Observation, value: torch.Tensor) -> Observation:
    return Observation(None, [value], call.inputs, [], frozenset())


def test_values_that_are_no_floats_are_exact() -> None:
    i = torch.arange(5)
    assert kinds(compared(lambda i: i * 2, lambda i: i * 2 + (i == 3), i)) == [("wrong_value", "outputs[0]", True)]
    assert kinds(compared(lambda i: i > 2, lambda i: i >= 2, i)) == [("wrong_value", "outputs[0]", True)]


def test_positions_that_hang_on_the_last_bit_may_be_others() -> None:
    near = torch.tensor([3.75, 3.75 + 2.0**-22, 0.0])
    assert near[0] < near[1]
    reference = reference_of(lambda x: x.argmax(), [near], grad=None, wide=True)
    reference.perturbed = [[Observation(None, [torch.tensor(1)], [near], [], frozenset())]]
    other = results(lambda x: torch.tensor(0), [near])
    assert [d.kind for d in compare(reference, other)] == ["wrong_value"]
    reference.perturbed.append([Observation(None, [torch.tensor(0)], [near], [], frozenset())])
    assert compare(reference, other) == [], "a run on perturbed inputs gives another index as well"


def test_values_that_are_no_tensors() -> None:
    assert kinds(compared(lambda x: (x, 5, "a"), lambda x: (x, 6, "a"), X)) == [("wrong_value", "outputs[1]", True)]
    assert compared(lambda x: (None, 5), lambda x: (None, 5), X) == []


def test_dtype_shape_and_number_of_outputs() -> None:
    assert kinds(compared(torch.relu, lambda x: x.relu().double(), X)) == [("wrong_dtype", "outputs[0]", True)]
    assert kinds(compared(torch.relu, lambda x: x.relu()[None], X)) == [("wrong_shape", "outputs[0]", True)]
    assert kinds(compared(torch.relu, lambda x: [x.relu(), x.sin()], X)) == [("wrong_shape", "outputs", True)]


def test_strides() -> None:
    found = compared(torch.relu, lambda x: x.relu().t().contiguous().t(), X)
    assert kinds(found) == [("wrong_stride", "outputs[0]", True)]
    assert "stride (1, 4), uncompiled (10, 1)" in found[0].text
    row = X[:1]
    assert compared(torch.relu, lambda x: x.relu().as_strided((1, 10), (77, 1)), row) == [], "that one means nothing"


def test_strides_that_address_something() -> None:
    assert strides(torch.empty(3, 1, 2).as_strided((3, 1, 2), (2, 99, 1))) == (2, 0, 1)
    assert strides(torch.empty(0, 4)) == ()


def test_a_stride_and_a_value() -> None:
    found = compared(torch.relu, lambda x: (x.relu() + 1).t().contiguous().t(), X)
    assert [d.kind for d in found] == ["wrong_stride", "wrong_value"]


def test_shared_memory() -> None:
    def view(x: torch.Tensor) -> torch.Tensor:
        return x[1:]

    def copy(x: torch.Tensor) -> torch.Tensor:
        return x[1:].clone()

    (lost,) = compared(view, copy, X)
    assert (lost.kind, lost.text) == ("aliasing", "outputs that no longer share memory: 1")
    (new,) = compared(copy, view, X)
    assert (new.kind, new.text) == ("aliasing", "outputs that now share memory: 1")


def test_outputs_that_share_memory() -> None:
    def shared(x: torch.Tensor) -> list[torch.Tensor]:
        y = x.sin()
        return [y, y.view(-1)]

    found = compared(shared, lambda x: [x.sin(), x.sin().view(-1)], X)
    assert [d.kind for d in found] == ["aliasing"]


def test_a_lost_mutation_and_a_wrong_one() -> None:
    def right(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1).sum()

    assert kinds(compared(right, lambda x: (x + 1).sum(), X)) == [("lost_mutation", "inputs[0]", True)]
    assert kinds(compared(right, lambda x: x.add_(2).sum() - 40, X)) == [("wrong_value", "inputs[0]", True)]


def test_a_mutation_that_should_not_be() -> None:
    found = compared(lambda x: x.sum(), lambda x: x.add_(1).sum() - 40, X)
    assert kinds(found) == [("wrong_value", "inputs[0]", True)]


def test_gradients() -> None:
    x = X.clone().requires_grad_()
    found = compared(lambda x: x * x, lambda x: x * x.detach(), x, grad=True)
    assert kinds(found) == [("wrong_gradient", "gradients[0]", True)]
    assert compared(lambda x: x * x, lambda x: x.square(), x, grad=True) == []


def test_a_missing_gradient() -> None:
    x, y = (X.clone().requires_grad_() for _ in range(2))
    found = compared(lambda x, y: x * y, lambda x, y: x * y.detach(), x, y, grad=True)
    assert kinds(found) == [("wrong_gradient", "gradients[1]", True)]


def test_classes_of_numbers() -> None:
    assert kinds(compared(torch.exp, lambda x: torch.exp(x).masked_fill(x > 2.9, float("nan")), X)) == [
        ("nonfinite", "outputs[0]", True)
    ]
    logs = compared(torch.log, lambda x: torch.log(x).nan_to_num(0.0), X)
    assert kinds(logs) == [("nonfinite", "outputs[0]", True)]
    infinite = compared(lambda x: x / 0, lambda x: (x / 0).masked_fill(x > 2.9, float("nan")), X)
    assert kinds(infinite) == [("nonfinite", "outputs[0]", True)], "NaN in place of infinity"
    assert compared(torch.log, lambda x: torch.log(x) + 0, X) == [], "both have the same"


def test_without_a_reference_only_classes_are_certain() -> None:
    assert compared(torch.exp, lambda x: torch.exp(x.double()).float(), X, wide=False) == []
    (found,) = compared(torch.exp, lambda x: torch.exp(x) * 1.01, X, wide=False)
    assert kinds([found]) == [("wrong_value", "outputs[0]", False)]
    assert "relative rms difference 0.01" in found.text
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


def test_exceptions_of_a_compilation() -> None:
    reference = reference_of(torch.relu, [X], grad=None, wide=True)
    raised = Raised("torch._dynamo.exc.BackendCompilerFailed", "it failed", "")
    (found,) = compare(reference, [Observation(raised, [], [], [], frozenset())])
    assert found.kind == "crash_compile"
    assert Raised("KeyError", "", 'File "x/torch/_dynamo/convert_frame.py", line 3, in f').while_compiling
    assert not Raised("KeyError", "", 'File "mine.py", line 3, in f').while_compiling


def test_calls_are_compared_each_with_its_own() -> None:
    state = {"n": 0}

    def wrong_at_the_second(x: torch.Tensor) -> torch.Tensor:
        state["n"] += 1
        return x.sin() * (1.5 if state["n"] == 2 else 1.0)

    calls = [[X], [X * 2], [X * 3]]
    reference = reference_of(torch.sin, *calls, grad=None, wide=True)
    found = compare(reference, results(wrong_at_the_second, *calls))
    assert [(d.call, d.where) for d in found] == [(1, "outputs[0]")]
    assert compare(reference, results(torch.sin, *calls)) == []


def test_a_float64_run_that_is_another_program_judges_nothing() -> None:
    """Where random numbers are drawn: it is far from uncompiled, and no rounding of the inputs explains that."""
    reference = reference_of(lambda x: torch.sin(x), (X,), grad=None, wide=True)
    reference.draws = True
    reference.wide = results(lambda x: torch.cos(x).double(), (X,))
    reference.perturbed = [reference.wide] * 3
    (found,) = compare(reference, results(lambda x: torch.sin(x) * 1.3, (X,)))
    assert found.kind == "wrong_value" and not found.certain
    assert "no float64 reference" in found.text


def test_an_uncompiled_program_that_rounding_explains_keeps_its_reference() -> None:
    def cancelling(x: torch.Tensor) -> torch.Tensor:
        return (x + 1e8) - 1e8

    assert compared(cancelling, lambda x: cancelling(x) * (1 + 1e-7), X) == []
    assert kinds(compared(cancelling, lambda x: x * 0 + 1e6, X)) == [("wrong_value", "outputs[0]", True)]


def test_programs_that_draw_random_numbers_have_a_float64_reference() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return torch.tanh(x) + torch.rand_like(x) + torch.randn(10) * torch.empty(10).uniform_(1, 2)

    assert kinds(compared(noisy, lambda x: noisy(x) + 1e-3, X)) == [("wrong_value", "outputs[0]", True)]


@pytest.mark.parametrize("part", ["outputs", "inputs"])
def test_what_no_two_uncompiled_runs_agree_on_is_left_out(part: str) -> None:
    def result(clock: float, text: str, steady: int = 3) -> Observation:
        values = {"outputs": [], "inputs": [], part: [torch.tensor(clock, dtype=torch.float64), text, steady]}
        return Observation(None, values["outputs"], values["inputs"], [], frozenset())

    reference = Reference([[result(1.0, "a")], [result(2.0, "b")]])
    assert compare(reference, [result(3.0, "c")]) == []
    assert len(compare(reference, [result(3.0, "c", steady=4)])) == 1
    alike = Reference([[result(1.0, "a")], [result(1.0, "a")]])
    assert len(compare(alike, [result(3.0, "c")])) == 2


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class OtherPair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@pytest.mark.parametrize(
    ("right", "other"),
    [
        (lambda x: [x, x * 2], lambda x: (x, x * 2)),
        (lambda x: Pair(x, x * 2), lambda x: (x, x * 2)),
        (lambda x: Pair(x, x * 2), lambda x: OtherPair(x, x * 2)),
        (lambda x: {"a": x, "b": x * 2}, lambda x: {"a": x, "c": x * 2}),
        (lambda x: {"a": x}, lambda x: OrderedDict(a=x)),
        (lambda x: [x, [x * 2]], lambda x: [[x], x * 2]),
        (lambda x: x, lambda x: [x]),
    ],
)
def test_containers_of_another_type(right: Callable[..., Any], other: Callable[..., Any]) -> None:
    (found,) = compared(right, other, X)
    assert kinds([found]) == [("wrong_value", "outputs", True)]
    assert found.text.startswith("returned ") and ", uncompiled " in found.text


def test_containers_that_no_two_uncompiled_runs_agree_on() -> None:
    values = [torch.ones(2)]
    runs = [Observation(None, values, structure=text) for text in ("PyTreeSpec(list, [*])", "PyTreeSpec(tuple, [*])")]
    other = Observation(None, values, structure="*")
    assert compare(Reference([[runs[0]], [runs[1]]]), [other]) == []
    assert len(compare(Reference([[runs[0]], [runs[0]]]), [other])) == 1


def with_effects(before: dict[str, Any], after: dict[str, Any]) -> Observation:
    return Observation(None, [torch.ones(2)], effects=(before, after))


def test_side_effects() -> None:
    reference = Reference([[with_effects({"n": 0, "seen": 1}, {"n": 1, "seen": 1})]])
    assert compare(reference, [with_effects({"n": 0, "seen": 1}, {"n": 1, "seen": 1})]) == []
    (lost,) = compare(reference, [with_effects({"n": 0, "seen": 1}, {"n": 0, "seen": 1})])
    assert (lost.kind, lost.where, lost.text, lost.certain) == ("side_effect", "n", "0, uncompiled 1", True)
    (new,) = compare(reference, [with_effects({"n": 0, "seen": 1}, {"n": 1, "seen": 2})])
    assert (new.kind, new.where) == ("side_effect", "seen")


def test_side_effects_that_no_two_uncompiled_runs_agree_on() -> None:
    first, second = with_effects({"time": 0.5}, {"time": 1.5}), with_effects({"time": 2.5}, {"time": 3.5})
    assert compare(Reference([[first], [second]]), [with_effects({"time": 4.5}, {"time": 5.5})]) == []


def test_side_effects_that_were_not_looked_at() -> None:
    blind = Observation(None, [torch.ones(2)])
    seen = with_effects({"n": 0}, {"n": 1})
    assert compare(Reference([[blind]]), [seen]) == []
    assert compare(Reference([[seen]]), [blind]) == []


COUNTED: list[int] = []


def test_a_lost_side_effect_of_a_program() -> None:
    def counting(x: torch.Tensor) -> torch.Tensor:
        COUNTED.append(1)
        return x + 1

    def run(made: Callable[..., Any]) -> list[Observation]:
        COUNTED.clear()
        return [read(record) for record in Program(counting, [([X.clone()], {})]).run(lambda _: made)]

    reference = Reference([run(counting), run(counting)])
    assert compare(reference, run(counting)) == []
    found = compare(reference, run(lambda x: x + 1))
    assert {(d.kind, d.certain) for d in found} == {("side_effect", True)}
    assert "COUNTED" in found[0].where


@pytest.mark.parametrize("part", ["outputs", "gradients"])
def test_numbers_that_no_two_uncompiled_runs_agree_on_are_no_fault(part: str) -> None:
    """What is read of memory never written, say: the compiled program may give anything there, and so does it."""

    def result(value: float) -> Observation:
        return Observation(None, **{part: [torch.full((3,), value)]})  # type: ignore[arg-type]

    reference = Reference([[result(1.0)], [result(2.0)]])
    assert not any(d.certain for d in compare(reference, [result(3.0)]))
    reference.wide, reference.perturbed = [result(1.0)], [[result(1.0)]] * 3
    assert not any(d.certain for d in compare(reference, [result(3.0)]))
    steady = Reference([[result(1.0)], [result(1.0)]], wide=[result(1.0)], perturbed=[[result(1.0)]] * 3)
    assert [d.certain for d in compare(steady, [result(3.0)])] == [True]


def test_whole_numbers_that_no_two_uncompiled_runs_agree_on_are_no_fault() -> None:
    def result(*values: int) -> Observation:
        return Observation(None, [torch.tensor(values)])

    unsteady = Reference([[result(1, 5)], [result(2, 5)]])
    assert not any(d.certain for d in compare(unsteady, [result(3, 5)]))
    assert [d.certain for d in compare(Reference([[result(1, 5)], [result(1, 5)]]), [result(3, 5)])] == [True]


def test_nan_that_only_some_uncompiled_runs_have_is_no_fault() -> None:
    runs = [Observation(None, [torch.tensor([1.0, value])]) for value in (2.0, float("nan"))]
    other = Observation(None, [torch.tensor([1.0, float("inf")])])
    assert not any(d.certain for d in compare(Reference([[run] for run in runs]), [other]))


def test_where_uncompiled_is_further_off() -> None:
    def narrow(x: torch.Tensor) -> torch.Tensor:
        return sum((x.bfloat16() * i for i in range(30)), start=x.bfloat16()).float()

    reference = reference_of(narrow, [X], grad=None, wide=True)
    reference.roundoff = ROUNDOFF
    better: list[Difference] = []
    assert compare(reference, results(lambda x: x.bfloat16().float() * 436, [X]), better=better) == []
    assert {d.weight for d in better} <= {"better"}
    worse = compare(reference, results(lambda x: x * 400, [X]))
    assert [d.certain for d in worse] == [True]


def test_a_whole_number_that_is_right_without_roundings_is_better() -> None:
    def result(value: int) -> Observation:
        return Observation(None, [torch.tensor([value])])

    better: list[Difference] = []
    reference = Reference([[result(3)]], wide=[result(4)])
    assert compare(reference, [result(4)], better=better) == []
    assert [(d.weight, d.certain) for d in better] == [("better", False)]


def test_only_elements_that_torch_leaves_undefined_may_differ() -> None:
    def result(*values: float) -> list[Observation]:
        return [Observation(None, [torch.tensor(values)])]

    reference = Reference([result(1.0, 2.0), result(1.0, 2.0)], left_open=["some words"])
    reference.undefined = [result(1.0, 2.0), result(1.0, 9.0), result(1.0, float("nan"))]
    better: list[Difference] = []
    assert compare(reference, result(1.0, 5.0), better=better) == []
    assert [(d.weight, d.text, d.worst) for d in better] == [("undefined", "some words", None)]
    assert [d.certain for d in compare(reference, result(float("nan"), 5.0))] == [True]
    reference.undefined = [result(1.0, 9.0), result(1.0, 9.0)]  # other than the program only for being watched
    assert [d.certain for d in compare(reference, result(1.0, float("inf")))] == [True]


def mixed(x: torch.Tensor) -> torch.Tensor:
    """float32 outside, bfloat16 inside: the dtypes that show say nothing of the roundings."""
    h = x.bfloat16()
    for _ in range(4):
        h = (h * 1.37).sin() + 0.1
    return h.float()


def mixed_reference() -> Reference:
    reference = reference_of(mixed, [X], grad=None, wide=True)
    for seed in range(6):
        program = Program(mixed, [([X.clone()], {})], effects=False)
        run = program.run_rounded(seed)
        reference.rounded.append([read(r) for r in run.calls])
        reference.narrowest = run.narrowest
    return reference


def test_roundings_inside_of_a_program_are_noise() -> None:
    def kept_wide(x: torch.Tensor) -> torch.Tensor:
        h = x.bfloat16().float()
        for _ in range(4):
            h = (h * 1.37).sin() + 0.1
        return h.bfloat16().float()

    reference = mixed_reference()
    assert all(reference.rounded)
    assert compare(reference, results(mixed, [X])) == []
    assert compare(reference, results(kept_wide, [X])) == []
    (found,) = compare(reference, results(lambda x: mixed(x) * 1.2, [X]))
    assert kinds([found]) == [("wrong_value", "outputs[0]", True)]
    (found,) = compare(reference, results(lambda x: mixed(x) + (torch.arange(10) == 3) * 0.5, [X]))
    assert found.certain, "one column is off"


def test_without_float64_the_runs_rounded_anew_judge() -> None:
    reference = mixed_reference()
    reference.wide, reference.perturbed = None, []
    assert compare(reference, results(mixed, [X])) == []
    assert [d.certain for d in compare(reference, results(lambda x: mixed(x) * 3, [X]))] == [True]


def with_own(fn: Callable[..., Any], *args: Any) -> Reference:
    """A reference that can be asked for runs in the program's own precision."""
    reference = reference_of(fn, args, grad=None, wide=True)

    def own() -> list[list[Observation]]:
        programs = [Program(fn, [(fresh(args), {})], effects=False) for _ in range(24)]
        return [[read(r) for r in p.run_rounded(seed, least=0.0).calls] for seed, p in enumerate(programs)]

    reference.make_own = own
    return reference


def other_in_float64(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * (2 if x.dtype is torch.float32 else 3)


def test_a_float64_run_of_something_else_explains_nothing() -> None:
    reference = with_own(other_in_float64, X)
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


def test_a_judge_asks_for_runs_in_the_own_precision() -> None:
    reference = with_own(other_in_float64, X)
    wrong = results(lambda x: x.sin() * 2.5, [X])
    assert judged(reference, wrong).asks == "own"
    reference.in_own_precision()
    answer = judged(reference, wrong)
    assert answer.asks == "" and [d.certain for d in answer.differences] == [True]


def test_nothing_is_rounded_anew_where_nothing_is_narrow() -> None:
    assert Program(torch.sin, [([X.clone()], {})], effects=False).run_rounded(0).calls == []


def test_what_is_identical_needs_no_judge() -> None:
    reference = reference_of(lambda x: [x.sin(), x.add_(1)], [X], grad=None, wide=False)
    (same,) = results(lambda x: [x.sin(), x.add_(1)], [X])
    assert identical(reference, [same])
    assert not identical(reference, []), "a call is missing"
    assert not identical(reference, [same, same])
    assert not identical(reference, [replace(same, outputs=[same.outputs[0] + 1e-7, *same.outputs[1:]])])
    assert not identical(reference, [replace(same, inputs=[X])])
    assert not identical(reference, [replace(same, shared=frozenset())])
    assert not identical(reference, [replace(same, structure="*")])
    laid_out = same.outputs[0].t().contiguous().t()
    assert not identical(reference, [replace(same, outputs=[laid_out, *same.outputs[1:]])])
    assert not identical(reference, [Observation(Raised("ValueError", "", ""))])


def test_exceptions_are_identical_to_exceptions() -> None:
    raised = Observation(Raised("ValueError", "no", ""))
    assert identical(Reference([[raised]]), [Observation(Raised("ValueError", "no", "elsewhere"))])
    assert not identical(Reference([[raised]]), [Observation(None, [X])])


def test_side_effects_are_looked_at_before_anything_is_identical() -> None:
    reference = Reference([[with_effects({"n": 0}, {"n": 1})]])
    assert identical(reference, [with_effects({"n": 0}, {"n": 1})])
    assert not identical(reference, [with_effects({"n": 0}, {"n": 0})])


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
