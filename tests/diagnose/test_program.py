"""A program's calls: what is kept of each, which modules are its own, and that a child process keeps all of it."""

import functools
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
import torch
import torch._inductor.async_compile  # once here, not in each child

from graphprobe.diagnose.program import Program, tensors_of, weighted_sum
from graphprobe.engine.forked_child import isolated
from graphprobe.judge import Observation, ObservationRecord, read


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.linear(x)

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * 2


U = 2.0**-24


def run(program: Program) -> list[Observation]:
    return [read(record) for record in program.run(lambda fn: fn)]


def one(fn: Callable[..., Any], *args: Any, grad: bool | None = None) -> Observation:
    """What a program of one call shows."""
    (call,) = run(Program(fn, [(args, {})], grad=grad))
    return call


def wide(program: Program, seed: int | None = 0, roundoff: float = U) -> list[Observation]:
    """The calls in float64, in a child."""
    outcome = isolated(lambda: program.run_wide(seed, roundoff))
    return [read(record) for record in msgspec.convert(outcome.value, list[ObservationRecord])]


def test_outputs_inputs_and_gradients() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = torch.tensor([3.0, 4.0])
    (call,) = run(Program(lambda x, y: {"a": x * 3, "b": [y.add_(1), 5]}, [((x,), {"y": y})], grad=True))
    assert call.raised is None
    assert [v.tolist() if isinstance(v, torch.Tensor) else v for v in call.outputs] == [[3.0, 6.0], [4.0, 5.0], 5]
    assert [v.tolist() for v in call.inputs] == [[1.0, 2.0], [4.0, 5.0]]
    assert call.gradients[0].tolist() == [1.5, 4.5]
    assert call.gradients[1] is None


class Kept:
    """A result that torch knows no leaves of."""

    def __init__(self, value: Any) -> None:
        self.value = value


def test_inside_of_an_object() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    call = one(lambda x: [x.sum(), Kept({"k": (x * 2).t()})], x, grad=True)
    assert call.outputs[0].item() == 6.0 and call.outputs[1] == f"{__name__}.Kept"
    inside = call.outputs[2]
    assert inside.shape == (3, 2) and inside.is_contiguous(), "the values count there, not how they lie in memory"
    assert call.gradients[0].unique().tolist() == [0.5], "of the sum, and of nothing inside of the object"
    x = torch.ones(3, requires_grad=True)
    assert one(lambda x: Kept(x * 2), x, grad=True).gradients[0].tolist() == [1.0, 2.0, 3.0], "there is nothing else"
    assert one(Kept, torch.ones(3)).shared == frozenset()


class Counting(torch.nn.Module):
    """State in plain attributes, as in many modules of users."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.calls, self._scratch, self._last = torch.zeros(2), 0, "any", torch.zeros(1)

    def forward(self, x: torch.Tensor, kept: Kept) -> torch.Tensor:
        self.hidden = self.hidden + x
        self.calls += 1
        kept.value = [x * 3, float(x.sum())]
        return x.sum()


def test_what_objects_and_modules_hold_after_a_call() -> None:
    call = one(Counting(), torch.ones(2), Kept(None))
    held = [v.tolist() if isinstance(v, torch.Tensor) else v for v in call.inputs]
    assert held[0] == [1.0, 1.0], "the argument itself comes first"
    for value in ([3.0, 3.0], 2.0, [1.0, 1.0], [0.0]):
        assert value in held[1:], value
    assert "any" not in held
    assert call.effects is not None
    before, after = call.effects
    assert {after[label] - before[label] for label in after if label.endswith("calls")} == {1}


class Marked(torch.Tensor):
    pass


def test_tensors_of_a_subclass() -> None:
    x = torch.ones(3).as_subclass(Marked)
    call = one(lambda x: x.mul_(2) + 1, x)
    assert call.outputs[0] == f"{__name__}.Marked" and call.outputs[1].tolist() == [3.0, 3.0, 3.0]
    assert call.inputs[0].tolist() == [2.0, 2.0, 2.0] and type(call.inputs[0]) is torch.Tensor


def test_gradients_are_those_of_a_weighted_sum() -> None:
    seen: list[bool] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_grad_enabled())
        return x * 2

    x = torch.ones(3, requires_grad=True)
    gradients = [one(fn, x, grad=grad).gradients for grad in (None, True, False)]
    assert gradients[1][0].tolist() == [1.0, 2.0, 3.0], "weights 0.5, 1 and 1.5: a swap of elements shows"
    assert gradients[0] == gradients[2] == [] and seen == [True, True, False]
    call = one(lambda x: (x.detach() * 2, 3), x, grad=True)
    assert call.raised is None and call.gradients == [None], "the outputs need none"
    model = Model()
    x = torch.ones(1, 3)
    first, second = run(Program(model, [((x,), {}), ((x,), {})], grad=True))
    assert [g is None for g in first.gradients] == [True, False, False, True]
    assert torch.equal(first.gradients[1], second.gradients[1])
    assert (first.inputs[3].item(), second.inputs[3].item()) == (1.0, 2.0), "state goes on from call to call"
    x = torch.ones(2, dtype=torch.complex64, requires_grad=True)
    y = torch.ones(0, requires_grad=True)
    weighted_sum([x * 2, y * 1, torch.arange(3)])
    assert x.grad is not None and x.grad.abs().sum() > 0
    assert y.grad is not None and y.grad.shape == (0,)
    weighted_sum([])


def test_an_exception_ends_its_call_only() -> None:
    def fn(x: torch.Tensor, fail: bool) -> torch.Tensor:
        if fail:
            raise IndexError("no")
        return x + 1

    x = torch.ones(1)
    found = run(Program(fn, [((x, True), {}), ((x, False), {})]))
    assert found[0].raised is not None and found[0].raised.type == "IndexError"
    assert (found[0].outputs, found[0].inputs) == ([], [])
    assert found[1].raised is None and found[1].outputs[0].tolist() == [2.0]
    steps = list(Program(fn, [((x, True), {}), ((x, False), {})]).steps(lambda fn: fn))
    assert [type(error) for _, error in steps] == [IndexError, type(None)]


def test_what_happens_between_calls_and_memory_that_is_shared() -> None:
    seen: list[int] = []
    model = Model()

    def between(fn: Any, i: int) -> None:
        seen.append(i)
        fn.count.fill_(10.0 * i)

    calls = [((torch.ones(1, 3),), {})] * 3
    found = run(Program(model, calls, between))
    assert seen == [1, 2]
    assert [call.inputs[-1].item() for call in found] == [1.0, 11.0, 21.0]
    x = torch.ones(4)
    assert one(lambda x: (x[1:], x * 2, x[:2]), x).shared == {(0, 2), (0, 3), (2, 3)}
    assert one(lambda x: (x + 1, x * 2), x).shared == frozenset()


def test_modules_and_gradients() -> None:
    closed = Model()
    fn = lambda x: closed(x).sum()  # noqa: E731
    assert Program(fn, []).modules() == [closed]
    assert Program(closed, []).modules() == [closed]
    assert Program(closed.other, []).modules() == [closed]
    assert Program(functools.wraps(closed)(lambda x: x), []).modules() == [closed]
    assert Program(torch.neg, [((closed,), {"b": [closed]})]).modules() == [closed]
    assert Program(torch.neg, [((1,), {})]).modules() == []
    assert len(Program(fn, []).state()) == 3
    shared = torch.nn.Sequential(closed.linear, closed.linear)
    assert len(Program(shared, []).state()) == 2, "each once"
    a, b = torch.ones(1), torch.zeros(2)
    assert [id(t) for t in tensors_of({"x": [a, 3], "y": (b, None)})] == [id(a), id(b)]

    def unset() -> Any:
        return later  # an empty cell

    assert Program(unset, []).modules() == []
    later = 1
    closed = Model()
    fn = lambda x: closed(x).sum()  # noqa: E731
    x = torch.ones(1, 3)
    grown = x.clone().requires_grad_()
    assert Program(fn, [((x,), {})]).wants_gradients()
    assert Program(closed.other, [((x,), {})]).wants_gradients()
    assert Program(torch.neg, [((x,), {}), ((), {"x": [grown]})]).wants_gradients()
    assert not Program(torch.neg, [((x,), {})]).wants_gradients()
    closed.requires_grad_(False)
    assert not Program(fn, [((x,), {})]).wants_gradients()
    assert Program(fn, [((grown,), {})]).wants_gradients()


def test_in_float64() -> None:
    model, x = Model(), torch.randn(2, 3, requires_grad=True)
    program = Program(lambda x: (model(x).half().float(), x * 1), [((x,), {})], grad=True)
    call, first, again, other = (wide(program, seed)[0] for seed in (None, 0, 0, 1))
    assert {t.dtype for t in call.outputs} == {torch.float64}
    exact = torch.nn.functional.linear(x.double(), model.linear.weight.double(), model.linear.bias.double())
    torch.testing.assert_close(call.outputs[0], exact.detach(), rtol=1e-14, atol=0)
    assert call.gradients[0].dtype is torch.float64
    assert torch.equal(first.outputs[0], again.outputs[0])
    assert not torch.equal(first.outputs[0], other.outputs[0])
    assert torch.equal(first.inputs[0], x) and first.inputs[0].dtype == x.dtype, "it is as the call found it"
    steps = (first.outputs[1] / x.detach().double() - 1) / U
    assert sorted({round(float(s), 3) for s in steps.flatten()}) == [-1.0, 1.0]
    program = Program(lambda i, x, s: (i, x, s), [((torch.arange(3), torch.ones(1), "a"), {})])
    whole, number, text = wide(program, roundoff=2.0**-8)[0].outputs
    assert whole.tolist() == [0, 1, 2] and whole.dtype is torch.int64
    assert number.dtype is torch.float64 and abs(number.item() - 1) == 2.0**-8
    assert text == "a"


@pytest.mark.parametrize("seed", [None, 3])
def test_memory_that_is_shared_is_shared_in_float64(seed: int | None) -> None:
    """Two arguments that overlap, and a buffer that is a part of a weight: what changes one changes the other."""

    class Halves(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(6))
            self.register_buffer("part", self.weight.detach()[:3])

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            cast("torch.Tensor", self.part).add_(1)
            return x + y + self.weight[:4]

    base = torch.arange(8.0)
    program = Program(Halves(), [((base[:4], base[2:6]), {}), ((torch.ones(4), torch.ones(4)), {})])
    exact, eager = ([call.outputs[0] for call in calls] for calls in (wide(program, seed), run(program)))
    assert eager[0].tolist() == [6, 10, 10, 12]
    assert all(torch.allclose(a.float(), b) for a, b in zip(exact, eager, strict=True))


@pytest.mark.parametrize(
    "given",
    [torch.arange(12.0)[1::2], torch.arange(4.0).expand(3, 4), torch.arange(12.0).view(3, 4).t(), torch.ones(3)],
)
def test_strides_stay_in_float64(given: torch.Tensor) -> None:
    """Gaps and repeated elements, too: a program may count in strides."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.as_strided_copy(x, (2,), (2,)), torch.tensor(x.stride())

    exact = wide(Program(program, [((given,), {})]), None)[0].outputs
    assert exact[0].dtype == torch.float64
    assert all(torch.equal(a.to(b.dtype), b) for a, b in zip(exact, program(given), strict=True))


def test_tied_weights_and_changes_in_float64() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    x, before = torch.ones(1, 3), model[0].weight.detach().double()
    program = Program(lambda x: (model(x), model[0].weight * 1, model[1].weight * 1), [((x,), {})] * 2, grad=True)
    eager = run(program)
    moved = wide(program, 7, 1e-3)
    assert len(moved[0].inputs) == len(eager[0].inputs) == 2
    weights = [call.outputs[i] for call in moved for i in (1, 2)]
    assert all(torch.equal(weights[0], w) for w in weights) and not torch.equal(weights[0], before), "perturbed once"
    assert torch.allclose(moved[0].gradients[1].float(), eager[0].gradients[1], rtol=0.05, atol=0.05)

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.full((3,), 0.1))
            self.register_buffer("left", torch.full((3,), 0.1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.data.mul_(3)  # which moves no version
            return x * self.left

    given, seen, left = wide(Program(Counting(), [((torch.ones(3),), {})]))[0].inputs
    assert [t.dtype for t in (given, seen, left)] == [torch.float32, torch.float64, torch.float32]
    assert torch.equal(left, torch.full((3,), 0.1)) and torch.allclose(seen, torch.full((3,), 0.3).double(), rtol=1e-6)


@pytest.mark.parametrize(
    "given",
    [torch.randn(3, 2, dtype=torch.complex64), torch.eye(3).to_sparse(), torch.tensor([torch.nan, torch.inf, 1e-42])],
    ids=["complex", "sparse", "nonfinite"],
)
def test_inputs_of_every_kind_can_be_left_as_they_are(given: torch.Tensor) -> None:
    (call,) = wide(Program(lambda x: (x * 1).to_dense(), [((given,), {})]))
    assert call.raised is None and call.inputs
    assert call.outputs[0].dtype in (torch.float64, torch.complex128)


def test_runs_in_pairs_are_off_to_both_sides() -> None:
    x = torch.linspace(1, 2, 50)
    program = Program(lambda x: (x.sum(), x * 1), [((x,), {})])
    exact, *runs = (wide(program, seed)[0].outputs for seed in (None, 0, 1, 2))
    for part in (0, 1):
        up, down, other = (run[part] - exact[part] for run in runs)
        assert up.abs().max() > 0 and not torch.equal(up, other)
        torch.testing.assert_close(up, -down, rtol=1e-5, atol=0)
