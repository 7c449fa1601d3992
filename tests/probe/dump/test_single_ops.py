"""`dump_op_switch`: ops outside compiled graphs are dumped, those inside not twice, and the program runs as before."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import graphprobe
from graphprobe.probe.dump.single_ops import MODEL
from probe.dump.conftest import Dumped, Dumping


def switched(dumping: Dumping, name: str = "aot_eager", **keys: Any) -> Any:
    return dumping.backend_of_file(name, **{"dump_op_switch": "on", **keys})


def eager(found: Dumped, **wanted: Any) -> list[Any]:
    return [op.record for op in found.ops(engine="eager", **wanted)]


def names(found: Dumped, **wanted: Any) -> list[str]:
    return found.names(engine="eager", **wanted)


def told(found: Dumped) -> str:
    return "\n".join([*found.manifest.missing, *found.manifest.notes])


def trained(backend: Any, *, steps: int = 3) -> list[torch.Tensor]:
    """Losses and parameters of some steps; sin, the loss and the optimizer run outside the graph."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    compiled = torch.compile(model, backend=backend)
    kept = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (compiled(torch.randn(3, 4)).sin() - 1).square().mean()
        loss.backward()
        optimizer.step()
        kept += [loss.detach(), *(p.detach().clone() for p in model.parameters())]
    return kept


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
def test_forward_backward_and_optimizer(backend: str, dumping: Dumping) -> None:
    plain = trained(backend)
    watched = trained(switched(dumping, backend, dump_step="1"))
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    found = dumping.end()
    assert found.manifest.missing == []
    assert {record.place.step for record in eager(found)} == {1}
    assert names(found, direction="forward")[:4] == ["sin", "sub", "pow", "mean"]
    assert "cos" in names(found, direction="backward")
    forward, every = ({record.op.op_type for record in eager(found, **w)} for w in ({"direction": "forward"}, {}))
    assert forward & {"_foreach_add_", "add_"}, "the optimizer's"
    # With the backend `eager`, autograd's ops of the graph run outside it.
    assert not {"addmm", "relu", "mm", "threshold_backward"} & (forward if backend == "eager" else every)
    assert any(op.record.op.engine != "eager" for op in found.ops()), "the graph is dumped, too"
    (sin,) = found.ops(op_name="sin", engine="eager")
    values = sin.values()
    np.testing.assert_allclose(np.sin(values["input.0"].array()), values["output.0"].array(), rtol=1e-6)
    assert sin.record.op.source == f"{__file__}:{_line('loss = (compiled(torch.randn')}"
    assert sin.record.place.model_name == MODEL and not sin.record.op.perturbs
    assert all(record.op.perturbs for record in eager(found, direction="backward"))
    assert any("other formulas for a few gradients" in note for note in found.manifest.notes)


def _line(text: str) -> int:
    return next(
        n for n, line in enumerate(Path(__file__).read_text("utf-8").splitlines(), 1) if line.strip().startswith(text)
    )


@pytest.mark.parametrize("switch", ["on", "off"])
def test_nothing_is_left_on_the_stack_of_modes(switch: str, dumping: Dumping) -> None:
    backend = switched(dumping, dump_op_switch=switch)
    assert torch._C._len_torch_dispatch_stack() == (switch == "on")
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2)).mul(2)
    assert bool(eager(dumping.end())) == (switch == "on")
    assert torch._C._len_torch_dispatch_stack() == 0


def test_the_plan_selects(dumping: Dumping) -> None:
    layers = f"sub aten.cos test_single_ops.py:{_line('y = y.tan()')}"
    backend = switched(dumping, dump_layer=layers)
    x = torch.ones(2) * 3
    y = torch.compile(lambda x: x.exp(), backend=backend)(x)
    y = y.tan().abs()
    y.cos().add_(1)
    y.sub(1)
    found = dumping.end()
    assert names(found) == ["tan", "abs", "cos", "sub"]
    assert found.names() == names(found)


@pytest.mark.parametrize(("name", "expected"), [("<lambda>", ["exp"]), (MODEL, ["mul", "neg"])])
def test_entries_for_models(name: str, expected: list[str], dumping: Dumping) -> None:
    """Where every entry is for another model, all ops outside are dumped; an entry may also be for them."""
    entry = {"model_name": "function"} if name != MODEL else {"model_name": MODEL, "layer": ["neg"]}
    backend = switched(dumping, dump_list=[entry])
    torch.compile(lambda x: x.exp(), backend=backend)(torch.ones(2)).neg()
    found = dumping.end()
    assert ("exp" in found.names()) == (name != MODEL)
    assert names(found) == (["ones", "neg"] if name != MODEL else ["neg"])


def test_in_place_ops_and_lists(dumping: Dumping) -> None:
    switched(dumping)
    x, out = torch.ones(3), torch.empty(3)
    x.add_(1)
    torch.mul(x, 2, out=out)
    torch._foreach_add_([x, out], 1.0)
    found = dumping.end()
    (add,) = found.ops(op_name="add_")
    assert add.values()["input.0"].array().tolist() == [1.0] * 3
    assert add.values()["output.0"].array().tolist() == [2.0] * 3
    (mul,) = found.ops(op_name="mul")
    assert mul.values()["output.0"].array().tolist() == [4.0] * 3
    (both,) = found.ops(op_type="_foreach_add_")
    values = {slot: value.array().tolist()[0] for slot, value in both.values().items()}
    assert values == {"input.0.0": 2.0, "input.0.1": 4.0, "output.0.0": 3.0, "output.0.1": 5.0}
    assert "output.0 is input.0 as the op has left it" in both.record.notes


def test_steps_are_those_of_the_first_function(dumping: Dumping) -> None:
    backend = switched(dumping)
    first, second = (torch.compile(f, backend=backend) for f in (lambda x: x + 1, lambda x: x - 1))
    x = torch.zeros(2)
    x.neg()
    for _ in range(2):
        y = first(x)
        y.sin()
        second(second(y)).cos()
    found = dumping.end()
    steps = [(record.op.op_name, record.place.step) for record in eager(found)]
    assert steps == [("zeros", 0), ("neg", 0), ("sin", 0), ("cos", 0), ("sin", 1), ("cos", 1)]
    assert {(record.place.step, record.place.data_index) for record in eager(found)} == {(0, 0), (1, 1)}


def test_a_block_selects_ops_outside_graphs(dumping: Dumping) -> None:
    switched(dumping)
    x = torch.ones(2)
    with graphprobe.scope.data_dump():
        y = x.sin()
    y.cos()
    assert names(dumping.end()) == ["ones", "sin"], "from the first mark on, marked ops alone"


def test_what_an_op_raises_reaches_the_program(dumping: Dumping) -> None:
    switched(dumping, dump_scene="exception")
    x = torch.ones(2)
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        x.dot(torch.ones(3))
    assert x.sum().item() == 2.0
    found = dumping.end()
    (document,) = found.path.rglob("exception.json")
    assert json.loads(document.read_text())["op"] == "dot"


def test_higher_order_operators_tracing_and_fakes_pass(dumping: Dumping) -> None:
    switched(dumping)
    with FakeTensorMode():
        torch.ones(2).sin()
    torch.fx.experimental.proxy_tensor.make_fx(lambda x: x.sin())(torch.ones(2))
    assert torch.vmap(lambda x: x.cos())(torch.zeros(2)).tolist() == [1.0, 1.0]
    found = dumping.end()
    assert "sin" not in names(found) and "cos" in names(found)


def test_inside_a_mode_of_the_program_it_is_refused_aloud(dumping: Dumping) -> None:
    with FlopCounterMode(display=False):
        backend = switched(dumping)
        assert torch._C._len_torch_dispatch_stack() == 1
    torch.ones(2).sin()
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    found = dumping.end()
    assert names(found) == []
    assert "inside a dispatch mode" in told(found)


def test_what_cannot_be_watched_is_told_and_the_program_goes_on(
    dumping: Dumping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphprobe.probe.dump.single_ops.program_lines", lambda modules: {}["no lines"])
    torch.compile(lambda x: x + 1, backend=switched(dumping))(torch.ones(2))
    assert torch.ones(2).sin().sum().item() == pytest.approx(2 * 0.84147098)
    found = dumping.end()
    assert found.names() == ["add"]
    assert "no lines" in told(found)


def test_another_thread_and_a_forked_child_are_not_watched(dumping: Dumping) -> None:
    switched(dumping)
    thread = threading.Thread(target=lambda: torch.ones(2).sin())
    thread.start()
    thread.join()
    child = os.fork()
    if child == 0:
        torch.ones(2).cos()
        os._exit(0 if len(os.listdir(dumping.path)) == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    torch.ones(2).tan()
    assert names(dumping.end()) == ["ones", "tan"]
