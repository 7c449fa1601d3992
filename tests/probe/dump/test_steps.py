"""Which step a call belongs to, which steps are dumped, and into which folder."""

import functools
from typing import Any

import pytest
import torch

from graphprobe.backends.wrap import get_backend
from graphprobe.compiler_config import CompilerConfig
from graphprobe.errors import SettingError
from graphprobe.probe.dump.running import Forward, Forwards
from graphprobe.probe.dump.sessions import open_sessions


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


def notes(found: Any) -> str:
    assert found.ops() == []
    return "\n".join(found.manifest.notes)


BLACKLIST = {"model_name": "f", "layer": ["sin"], "opname_blacklist": [{"name": "sin"}]}
SINGLE_OPS = {"dump_list": [], "dump_op_switch": "on", "dump_step": "7"}
NO_OP, NO_MODEL, STEPS = "no op is selected in any graph", ("no model was compiled", "no model is named"), "dump_step"
REASONS: list[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = [
    ({"dump_step": "5-7"}, ("dump_step selects none of the steps 0 to 1",), ()),
    ({"dump_layer": "sinus", "dump_step": "0|1"}, (NO_OP, "'sinus' matched no op; similar: sin"), (STEPS,)),
    ({"dump_list": [BLACKLIST]}, ("blacklists leave out every op that is selected",), (NO_OP,)),
    (SINGLE_OPS, ("outside compiled graphs was dumped: dump_step selects none of the steps 0 to 1",), NO_MODEL),
    ({"dump_debug": "on"}, ("nothing was dumped: no op overflowed in 2 calls of graphs",), ()),
    ({"dump_scene": "exception"}, ("nothing was dumped: no op raised in 2 calls of graphs",), ()),
    ({"dump_scene": "watcher"}, ("no value was overwritten in",), ()),
]


@pytest.mark.parametrize(("keys", "said", "unsaid"), REASONS, ids=[str(keys) for keys, *_ in REASONS])
def test_the_reason_that_holds_is_named(dumping: Any, keys: Any, said: Any, unsaid: Any) -> None:
    compiled = torch.compile(f, backend=dumping.backend_of_file(**keys))
    for _ in range(2):
        compiled(torch.ones(2)).sum()
    found = notes(dumping.end())
    assert all(text in found for text in said), found
    assert not any(text in found for text in unsaid), found


def test_nothing_was_compiled(dumping: Any, caplog: pytest.LogCaptureFixture) -> None:
    dumping.compile(f, "aot_eager")
    dumping.end()
    assert "no model was compiled with this backend" in caplog.text
    assert list(dumping.path.iterdir()) == []


def test_what_is_not_asked_for_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    get_backend(compiler_config=CompilerConfig())
    assert open_sessions() == []


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_what_cannot_be_is_refused(dumping: Any, backend: str) -> None:
    with pytest.raises(SettingError, match="launches no kernels of Inductor"):
        dumping.backend(backend, engine="kernel")


def test_steps_are_told_of_the_models_that_hold_what_is_selected(dumping: Any) -> None:
    backend = dumping.backend("aot_eager", dump_layer="sin", dump_step="1")
    other = torch.compile(lambda x: x.exp(), backend=backend)
    for _ in range(3):
        other(torch.ones(2))
    torch.compile(f, backend=backend)(torch.ones(2))
    assert "dump_step selects none of the steps 0 to 0, which were all" in notes(dumping.end())


def test_a_backward_that_never_runs_is_told(dumping: Any) -> None:
    compiled = dumping.compile(f, "aot_eager", dump_layer="cos", dump_step="0")
    compiled(torch.ones(2, requires_grad=True))
    compiled(torch.ones(2, requires_grad=True)).sum().backward()
    assert "were not called in a step that is dumped" in notes(dumping.end())


@pytest.mark.parametrize(("layer", "nodes", "lacking"), [("sin", "sinus", "watcher_nodes"), ("sinus", "sin", "layer")])
def test_a_watch_that_watches_nothing_does_not_say_that_all_is_well(
    dumping: Any, layer: str, nodes: str, lacking: str
) -> None:
    entry = {"layer": [layer], "watcher_nodes": [nodes]}
    backend = dumping.backend_of_file(dump_list=[entry], dump_scene="watcher", dump_mode="output")
    torch.compile(f, backend=backend)(torch.ones(2))
    found = "\n".join(dumping.end().manifest.notes)
    assert f"nothing was watched: no op of any graph is in {lacking}" in found
    assert "'sinus' matched no op; similar: sin" in found and "no value was overwritten" not in found
