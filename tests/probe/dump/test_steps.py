"""Which step a call belongs to, which steps are dumped, and into which folder."""

import functools
from typing import Any

import pytest
import torch

from graphprobe.probe.dump.forwards import Forward, Forwards


def f(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def steps(found: Any, **wanted: Any) -> list[tuple[int, int]]:
    return sorted({(op.record.place.step, op.record.place.data_index) for op in found.ops(**wanted)})


def test_only_the_steps_that_are_asked_for(dumping: Any) -> None:
    compiled = dumping.compile(f, "aot_eager", dump_step="0|3-5|10")
    for number in range(13):
        compiled(torch.full((2,), float(number)))
    found = dumping.end()
    assert steps(found) == [(n, n) for n in (0, 3, 4, 5, 10)]
    for op in found.ops(op_type="Data"):
        assert op.values()["output.0"].array().tolist() == [op.record.place.step] * 2
    folders = {path.name for path in found.folder.time_dir.glob("0/f/0/*")}
    assert folders == {"0", "3", "4", "5", "10"}


def test_recompilations_share_the_count(dumping: Any) -> None:
    compiled = dumping.compile(f, "aot_eager", dynamic=False, dump_step="1|3")
    for size in (2, 3, 2, 3):
        compiled(torch.ones(size))
    found = dumping.end()
    assert {(op.record.place.model_id, op.record.place.model_name) for op in found.ops()} == {(1, "f")}
    assert steps(found) == [(1, 1), (3, 3)]


def test_parts_between_graph_breaks_are_models(dumping: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    compiled = dumping.compile(program, "aot_eager", dump_step="1")
    for _ in range(3):
        compiled(torch.ones(2))
    found = dumping.end()
    assert steps(found) == [(1, 1)]
    ran = [(op.record.place.model_id, op.record.op.op_name) for op in found.ran()]
    assert ran == [(0, "sin"), (1, "cos")]


@pytest.mark.parametrize("due", [None, "1"])
def test_a_backward_belongs_to_its_forward_and_is_dumped_where_that_is_due(dumping: Any, due: str | None) -> None:
    compiled = dumping.compile(f, "aot_eager", **({"dump_step": due} if due else {}))
    inputs = [torch.full((2,), float(n), requires_grad=True) for n in range(3)]
    for loss in [compiled(x).sum() for x in inputs]:
        loss.backward()
    backward = dumping.end().ops(direction="backward", op_type="cos")
    values = {op.record.place.step: op.values()["input.0"].array().tolist() for op in backward}
    assert values == {step: [step, step] for step in ((0, 1, 2) if due is None else (1,))}


def test_forwards_are_told_apart_by_what_they_saved() -> None:
    shared = torch.ones(1)
    saved = [torch.ones(1) for _ in range(3)]
    forwards = Forwards()
    for number, own in enumerate(saved):
        forwards.add(Forward(number), [shared, own, 7])
    assert [forwards.of_backward([shared, own]).step for own in (saved[1], saved[0])] == [1, 0]
    # With nothing of its own, it is the latest that no backward has found.
    assert forwards.of_backward([shared]).step == 2
    assert forwards.of_backward([shared]).step == 2
    assert Forwards().of_backward([shared]) is None


def test_memory_that_was_freed_and_taken_again_is_no_trace_of_a_forward() -> None:
    place = bytearray(16)
    forwards = Forwards()
    returned = torch.frombuffer(place, dtype=torch.float32)
    forwards.add(Forward(0), [returned])
    assert forwards.of_backward([returned]).step == 0
    address = returned.data_ptr()
    del returned
    other = torch.ones(1)
    forwards.add(Forward(1), [other])
    gradient = torch.frombuffer(place, dtype=torch.float32)
    assert gradient.data_ptr() == address
    assert forwards.of_backward([gradient]).step == 1


@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_two_functions_have_steps_of_their_own(dumping: Any, stage: str) -> None:
    backend = dumping.backend("aot_eager", dump_step="1")
    one = torch.compile(f, backend=backend)
    two = torch.compile(lambda x: x.exp(), backend=backend)
    x = torch.ones(2, requires_grad=stage == "backward")
    outputs = [one(x), two(x), one(x), two(x)]
    if stage == "backward":
        sum(out.sum() for out in outputs).backward()
    found = dumping.end()
    assert {(op.record.place.model_id, op.record.place.step) for op in found.ops(direction=stage)} == {(0, 1), (1, 1)}


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Teacher(torch.nn.Module):
    forward = decorated(lambda self, x: x.sin())


class Student(torch.nn.Module):
    forward = decorated(lambda self, x: x.cos())


def test_models_behind_one_decorator_have_steps_and_names_of_their_own(dumping: Any) -> None:
    backend = dumping.backend("aot_eager", dump_step="0")
    x = torch.ones(2)
    for model in (Teacher(), Student()):
        compiled = torch.compile(model, backend=backend)
        compiled(x), compiled(x)
    places = [(op.record.place.model_name, op.record.place.step, op.record.op.op_name) for op in dumping.end().ran()]
    assert places == [("Teacher", 0, "sin"), ("Student", 0, "cos")]


class Broken(torch.nn.Module):
    scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos() * self.scale


def test_what_follows_a_graph_break_and_uses_the_module_has_its_name(dumping: Any) -> None:
    dumping.compile(Broken(), "aot_eager")(torch.ones(2))
    names = {op.record.place.model_name for op in dumping.end().ops()}
    assert names == {"Broken"}
