"""Modes, steps, filters, optimizers, compiled code, and arguments that cannot be."""

import inspect
import json
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import graphprobe
from conftest import ROOT
from graphprobe.dump_plan.options import API_CONFIG, API_OPTIONS
from graphprobe.errors import GraphprobeError, SettingError, UsageError
from graphprobe.internals.operators.api_calls import global_hooks
from graphprobe.probe.api import call, value_slots
from graphprobe.probe.api.plan import ApiPlan, plan_from_arguments
from graphprobe.store import open_api_dump


def train(steps: int, *, model: nn.Module | None = None, **options: Any) -> None:
    model = model or nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
    for _ in range(steps):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def program() -> None:
    x = torch.ones(2, requires_grad=True)
    x.mul(2).add(1).mul(3).add(2).sum().backward()


class Counting:
    """A backend that runs each graph as it is, and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return graph.forward


def test_list(dumped: Callable[..., Any]) -> None:
    read = dumped(program, mode="list", scope=["Tensor.mul.1", "Tensor.add.0.forward"])
    forward, backward = (
        ["Tensor.add.0.forward", "Tensor.mul.1.forward"],
        ["Tensor.mul.1.backward", "Tensor.add.0.backward"],
    )
    assert read.labels == forward + backward
    read = dumped(program, mode="list", scope=["torch.Tensor.sum", "Tensor.nothing.3"])
    assert read.labels == ["Tensor.sum.0.forward", "Tensor.sum.0.backward"]
    assert "no call was Tensor.nothing.3" in read.notes


def test_range(dumped: Callable[..., Any]) -> None:
    read = dumped(program, mode="range", scope=["Tensor.add.0", "Tensor.add.1.forward"], stack=True)
    assert read.forward == ["Tensor.add.0.forward", "Tensor.mul.1.forward", "Tensor.add.1.forward"]
    assert read.calls[0].stack
    read = dumped(program, mode="range", scope=["Tensor.add.7", "Tensor.add.1"])
    assert "the first call of the range, Tensor.add.7, never came" in read.notes


def test_stack_only(dumped: Callable[..., Any]) -> None:
    read = dumped(program, data=None, mode="stack")
    assert all(c.stack and not c.slots for c in read.calls)
    assert all(c.direction == "forward" for c in read.calls)


def test_apis_by_name_and_glob(dumped: Callable[..., Any]) -> None:
    read = dumped(program, apis=["add", "torch.Tensor.s*"])
    assert {c.api for c in read.calls} == {"torch.Tensor.add", "torch.Tensor.sum"}
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    read = dumped(lambda: model(torch.ones(1, 2)), level="module", apis="Linear")
    assert {c.api for c in read.calls} == {"Linear"}


def test_every_call_inside_a_step_on_request(dumped: Callable[..., Any]) -> None:
    """What a tool that patches names records of AdamW: seven operations of arithmetic a parameter."""

    def program() -> None:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    read = dumped(program, optimizer="calls")
    count = Counter(call.api.rpartition(".")[2] for call in read.calls if call.direction == "forward")
    inside = {"mul_": 4, "lerp_": 2, "addcmul_": 2, "sqrt": 2, "add_": 4, "addcdiv_": 2, "div": 2}
    assert {api: count[api] for api in inside} == inside, count
    outside = Counter(call.api.rpartition(".")[2] for call in dumped(program).calls)
    assert outside["AdamW"] == 1 and not any(outside[api] for api in inside)


def test_steps_at_optimizers(dumped: Callable[..., Any]) -> None:
    read = dumped(lambda: train(4), steps="0|2-3")
    assert read.dump.steps(0) == (0, 2, 3)
    second, third = ([c.label for c in read.by_step[step]] for step in (2, 3))
    assert second == third and "nn.functional.linear.0.forward" in second


@pytest.mark.parametrize("level", ["api", "module", "mix"])
def test_a_step_that_is_not_selected_has_no_mode_and_no_hook(level: str, tmp_path: Path) -> None:
    seen = []

    class Looks(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((torch.overrides._get_current_function_mode() is None, global_hooks()))
            return super().forward(x)

    with graphprobe.dump(tmp_path / "d", steps="1|3", level=level):
        train(5, model=Looks(3, 1))
    outside = torch.overrides._get_current_function_mode() is None, global_hooks()
    assert outside == (True, 0)
    assert [one == outside for one in seen] == [True, False, True, False, True]
    assert open_api_dump(tmp_path / "d").steps(0) == (1, 3)


def test_steps_have_one_number_whichever_are_selected(dumped: Callable[..., Any]) -> None:
    def gan() -> None:
        torch.manual_seed(0)
        one, two = nn.Linear(3, 3), nn.Linear(3, 1)
        first = torch.optim.SGD(one.parameters(), lr=0.1)
        second = torch.optim.SGD(two.parameters(), lr=0.1)
        for _ in range(3):
            two(one(torch.randn(2, 3))).sum().backward()
            first.step()
            second.step()
            first.zero_grad()

    def texts(read: Any, step: int) -> list[tuple[str, str]]:
        calls = (call for call in read.by_step.get(step, []) if not call.label.startswith(("nn.init", "empty")))
        return [(call.label, call.slots[0].digest if call.slots else "") for call in calls]

    whole = dumped(gan)
    assert len(whole.dump.steps(0)) == 6
    for step in whole.dump.steps(0):
        assert texts(dumped(gan, steps=step), step) == texts(whole, step), step


def test_steps_by_hand(tmp_path: Path) -> None:
    with graphprobe.dump(tmp_path / "d", steps=1) as d:
        for number in range(3):
            train(1)
            assert d.steps == number
            d.step()
    assert open_api_dump(tmp_path / "d").steps(0) == (1,)
    with graphprobe.dump(tmp_path / "e", step_at="hand"):
        train(3)
    assert open_api_dump(tmp_path / "e").steps(0) == (0,)


def test_one_record_a_step_of_an_optimizer(dumped: Callable[..., Any]) -> None:
    model = nn.Linear(3, 1)
    before = model.weight.detach().clone()
    read = dumped(lambda: train(1, model=model))
    (call,) = [c for c in read.calls if c.kind == "optimizer"]
    assert call.label == "Optimizer.AdamW.0.forward"
    scalars = {s.name: s.scalar.text for s in call.slots if s.scalar is not None}
    assert scalars.pop("kwarg.lr") == "0.1" and scalars.pop("kwarg.betas") == "(0.9, 0.999)"
    assert not {"kwarg.foreach", "kwarg.fused", "kwarg.params"} & set(scalars), "how a step is computed"
    before_step = [f"{role}.{name}" for name in ("weight", "bias") for role in ("parameter", "grad_parameter")]
    assert [s.name for s in call.slots if s.scalar is None] == [*before_step, "output.weight", "output.bias"]
    np.testing.assert_array_equal(read.value(call.label, "parameter.weight"), before.numpy())
    np.testing.assert_array_equal(read.value(call.label, "output.weight"), model.weight.detach().numpy())
    assert read.value(call.label, "grad_parameter.weight").tolist() == [[2.0] * 3]
    assert not any("lerp" in label or "addcdiv" in label for label in read.labels)
    state = dumped(lambda: train(1), optimizer="state")
    assert "output.state.weight.exp_avg" in state.slots("Optimizer.AdamW.0.forward")
    calls = dumped(lambda: train(1, foreach=True), optimizer="calls")
    assert any("_foreach_" in label for label in calls.labels)
    off = dumped(lambda: train(1), optimizer="off")
    assert not any(c.kind == "optimizer" for c in off.calls)


def test_a_step_that_raises_does_not_end_the_dump(dumped: Callable[..., Any]) -> None:
    model = nn.Linear(3, 1)

    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise ArithmeticError("no step")

    optimizer = Failing(model.parameters(), lr=0.1)

    def program() -> None:
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            with pytest.raises(ArithmeticError):
                optimizer.step()
        torch.ones(1).add(1)

    read = dumped(program)
    assert "nn.functional.linear.1.backward" in read.labels
    assert read["Optimizer.Failing.0.forward"].notes == ("raised",)


def test_an_optimizer_without_defaults_is_recorded(dumped: Callable[..., Any]) -> None:
    model = nn.Linear(3, 1)

    class Wrapper(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            with torch.no_grad():
                model.weight.sub_(1)

    optimizer = Wrapper(model.parameters(), {"lr": 0.1})
    named = dumped(optimizer.step).slots("Optimizer.Wrapper.0.forward")
    del optimizer.defaults
    assert set(named) - {"kwarg.lr"} == set(dumped(optimizer.step).slots("Optimizer.Wrapper.0.forward")) < set(named)


def test_a_closure_is_watched(dumped: Callable[..., Any]) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).pow(2).sum()
        loss.backward()
        return loss

    read = dumped(lambda: optimizer.step(closure))
    assert "nn.functional.linear.0.backward" in read.labels
    assert "Optimizer.LBFGS.0.forward" in read.labels


@pytest.mark.skipif(torch.__version__ < (2, 12), reason="lost with torch 2.11: docs/versions.md, `api_regions`")
def test_compiled_code_is_one_record_and_is_not_compiled_again(dumped: Callable[..., Any]) -> None:
    backend = Counting()
    model = torch.compile(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), backend=backend)
    function = torch.compile(lambda x: x.sin().cos(), backend=backend)
    x = torch.ones(2, 3)

    def program() -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Using `torch.compile")
            function(model(x).neg()).sum().backward()

    program()
    assert backend.graphs == 2
    read = dumped(program, level="mix")
    program()
    assert backend.graphs == 2
    module, neg, compiled, total = read.forward
    assert (module, neg, total) == ("Module.Sequential.0.forward", "Tensor.neg.0.forward", "Tensor.sum.0.forward")
    assert compiled.startswith("compiled.")
    assert read["Module.Sequential.0.forward"].notes[0].startswith("compiled")
    slots = read.slots("Module.Sequential.0.backward")
    assert {"grad_output.0", "grad_parameter.0.weight", "grad_parameter.0.bias"} <= set(slots)
    assert any("compiled" in c.label and c.direction == "backward" for c in read.calls)


def test_compiled_code_with_everything_that_is_watched(dumped: Callable[..., Any]) -> None:
    """A custom function and an optimizer inside: Dynamo finds torch as it is without a dump."""
    backend = Counting()

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    function = torch.compile(lambda x: Double.apply(x).sin(), backend=backend, fullgraph=True)
    step = torch.compile(optimizer.step, backend=backend)

    def program() -> None:
        function(model(torch.ones(2, 3))).sum().backward()
        step()
        torch.ones(1).add(1)

    program()
    program()
    count = backend.graphs
    read = dumped(program)
    program()
    assert backend.graphs == count
    assert "Tensor.add.0.forward" in read.labels
    assert not any("Double" in label for label in read.labels)


def test_compiling_while_a_dump_is_open(dumped: Callable[..., Any]) -> None:
    backend = Counting()
    function = torch.compile(lambda x: torch.sin(x).add(1), backend=backend, fullgraph=True)
    x = torch.ones(2)
    dumped(lambda: (function(x), function(x)))
    function(x)
    assert backend.graphs == 1


def test_a_value_that_cannot_be_looked_at_is_missing_and_the_dump_goes_on(
    dumped: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = value_slots.Values.slot

    def fails_once(self: Any, name: str, role: Any, tensor: torch.Tensor) -> Any:
        if name == "input.0":
            raise LookupError("planted")
        return found(self, name, role, tensor)

    def program() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(value_slots.Values, "slot", fails_once)
            torch.ones(2).add(1)
        torch.ones(2).add(1)

    read = dumped(program, clean=False)
    assert {"Tensor.add.0.forward", "Tensor.add.1.forward"} <= set(read.labels)
    assert "planted" in read.slots("Tensor.add.0.forward")["input.0"].missing


def test_a_failing_observer_is_detached_and_told(
    dumped: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*args: Any) -> None:
        raise LookupError("planted")

    results = []

    def program() -> None:
        results.append(torch.ones(2).add(1).tolist())
        monkeypatch.setattr(call.OpenCall, "take_inputs", fails)
        for _ in range(20):
            results.append(torch.ones(2).add(1).tolist())

    read = dumped(program, clean=False)
    assert results == [[2.0, 2.0]] * 21
    assert "Tensor.add.0.forward" in read.labels and "Tensor.add.1.forward" not in read.labels
    problems = "\n".join(read.dump.problems())
    assert "planted" in problems and "detached" in problems and "ended early" in problems
    assert "planted" in caplog.text


BAD: list[tuple[dict[str, Any], str]] = [
    ({"data": "everything"}, "'everything'"),
    ({"level": "L1"}, "'L1'"),
    ({"mode": 3}, "3"),
    ({"mode": "list"}, "scope"),
    ({"mode": "range", "scope": ["a"]}, "two labels"),
    ({"scope": ["a"]}, "mode='all'"),
    ({"mode": "stack", "data": "tensor"}, "stack"),
    ({"mode": "list", "scope": [3]}, "[3]"),
    ({"sample": 4}, "keeps no values"),
    ({"data": "tensor", "sample": 0}, "sample=0"),
    ({"data": "tensor", "sample": True}, "sample=True"),
    ({"steps": "3-1"}, "3-1"),
    ({"steps": 1.5}, "1.5"),
    ({"steps": ""}, ""),
    ({"apis": [""]}, "apis"),
    ({"stack": "yes"}, "'yes'"),
    ({"optimizer": "all"}, "'all'"),
    ({"step_at": "never"}, "'never'"),
    ({"budget_bytes": "much"}, "'much'"),
    ({"budget_bytes": 0}, "0"),
    ({"model": 3}, "int"),
]


@pytest.mark.parametrize(("options", "said"), BAD, ids=[str(options) for options, _ in BAD])
def test_bad_arguments_are_refused_before_anything_is_made(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises((UsageError, SettingError)) as raised:
        graphprobe.dump(tmp_path / "d", **options)
    assert said in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_bad_places_and_a_second_dump(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="path is missing"):
        graphprobe.dump()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError):
        graphprobe.dump(tmp_path / "file" / "d").start()
    with graphprobe.dump(tmp_path / "d"), pytest.raises(UsageError, match="is running"):
        graphprobe.dump(tmp_path / "e").start()
    assert not (tmp_path / "e").exists()
    with pytest.raises(UsageError, match="exists already"):
        graphprobe.dump(tmp_path / "d").start()
    with pytest.raises(UsageError, match="has not begun"):
        graphprobe.dump(tmp_path / "f").step()


def test_json_file(tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"api_dump": {"path": str(tmp_path / "d"), "level": "module", "steps": "1"}}))
    assert graphprobe.dump(config=file).plan.level == "module"
    assert graphprobe.dump(config=file, level="mix").plan.level == "mix"
    for text, said in {
        "{": "not valid JSON",
        "[]": "api_dump",
        '{"api_dump": {"pth": 1}}': "api_dump.pth is unknown",
        '{"api_dumps": {}}': "no key 'api_dump'",
        '{"api_dump": {"path": "a", "path": "b"}}': "'path' stands twice",
        '{"api_dump": {"path": 3}}': "path=3",
    }.items():
        file.write_text(text)
        with pytest.raises(GraphprobeError, match=said):
            graphprobe.dump(config=file)
    with pytest.raises(UsageError, match="cannot be read"):
        graphprobe.dump(config=tmp_path / "none")


def test_every_argument_is_in_the_plan() -> None:
    arguments = set(inspect.signature(graphprobe.dump).parameters)
    assert arguments == {*ApiPlan.__struct_fields__, "model", "config"}
    assert set(ApiPlan.__struct_fields__) == {row.name for row in API_OPTIONS}
    page = (ROOT / "docs" / "api_dump.md").read_text(encoding="utf-8")
    for row in (*API_OPTIONS, API_CONFIG):
        assert f"| `{row.name}` | `{row.spelled}` |" in page if row.spelled else f"`{row.name}`" in page
    plan = plan_from_arguments({"path": "x"})
    expected = {row.name: row.default or None for row in API_OPTIONS} | {"path": "x"}
    assert {name: getattr(plan, name) or None for name in expected} == expected
