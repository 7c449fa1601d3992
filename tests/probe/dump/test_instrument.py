"""The engine `instrument`: every node of the graph that is lowered, as the interpreter has it; nothing else changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import compile_fx
from torch._inductor.utils import run_and_get_code

import graphprobe
import models
from graphprobe.engine.subgraph import showable
from graphprobe.internals.caches import bypassed
from graphprobe.probe.dump import backend as dump_backend
from graphprobe.probe.dump import instrument
from graphprobe.probe.dump.backend import DumpBackend
from graphprobe.probe.dump.facts import ops_of_graph
from graphprobe.store import DumpedOp
from probe.dump.conftest import Dumped


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dump_backend.ENGINES, "instrument", instrument.compile_instrumented)


@pytest.fixture
def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))


def by_name(found: Any) -> dict[tuple[str | None, str], DumpedOp]:
    return {(op.record.op.direction, op.record.op.op_name): op for op in found.ops()}


def assert_same_values(found: dict[Any, DumpedOp], expected: dict[Any, DumpedOp], **tolerance: float) -> None:
    assert found.keys() == expected.keys() and {"forward", "backward"} == {direction for direction, _ in found}
    for key, op in found.items():
        assert (op.record.op.engine, op.record.op.perturbs) == ("instrument", True)
        values, wanted = op.values(), expected[key].values()
        assert list(values) == list(wanted), key
        assert op.record.arguments == expected[key].record.arguments
        for slot in values:
            one, other = tensor(op, slot), tensor(expected[key], slot)
            torch.testing.assert_close(one, other, **tolerance, msg=lambda text, k=key: f"{k}: {text}")


def backend_at(path: Path, **options: Any) -> DumpBackend:
    """Dumps, and collects nothing beside that."""
    config = graphprobe.CompilerConfig().dump_config
    given = {"enable_dump": True, "dump_path": str(path), "engine": "instrument", **options}
    for name, value in given.items():
        setattr(config, name, value)
    return DumpBackend(config.plan(environ={}))


def run(dumping: Any, model: Any, *args: torch.Tensor, engine: str = "instrument", **options: Any) -> Dumped:
    """The dump of one call, with its backward if there is one."""
    path = dumping.path / engine
    path.mkdir()
    torch.compiler.reset()
    backend = backend_at(path, engine=engine, **options)
    out = torch.compile(model, backend=backend, fullgraph=True)(*(a.clone() for a in args))
    if out.requires_grad:
        out.square().mean().backward()
    dumping.end()
    return Dumped(path)


def tensor(op: DumpedOp, slot: str) -> torch.Tensor:
    return torch.from_numpy(op.values()[slot].array())


@pytest.mark.slow
def test_every_node_is_recorded_as_the_interpreter_has_it(dumping: Any, mlp: Any) -> None:
    x = torch.randn(3, 4)
    expected = by_name(run(dumping, mlp, x, engine="interpreter"))
    found = by_name(run(dumping, mlp, x))
    assert_same_values(found, expected, rtol=1e-4, atol=1e-5)
    assert any("output.1" in op.values() for op in found.values()), "no op with two results"


def test_an_op_in_place_shows_its_input_as_before(dumping: Any) -> None:
    x = torch.randn(4, 3)
    found = by_name(run(dumping, lambda x: x.add_(1).sin(), x))
    (copy,) = [op for (_, name), op in found.items() if name.startswith("copy_")]
    torch.testing.assert_close(tensor(copy, "input.0"), x)
    torch.testing.assert_close(tensor(copy, "output.0"), x + 1)


def test_selection_by_name_and_scope(dumping: Any) -> None:
    x = torch.randn(4)

    def f(x: torch.Tensor) -> torch.Tensor:
        with graphprobe.scope.data_dump():
            y = x - 1
        return (y.cos() - 2).sin()

    found = run(dumping, f, x, dump_layer="sin")
    assert sorted(found.names()) == ["sin", "sub"]
    assert found.inputs() == ["arg0_1"]  # feeds the subtraction


@pytest.mark.slow
def test_with_nothing_selected_the_code_is_that_of_a_plain_compile(dumping: Any) -> None:
    def code(backend: Any) -> str:
        torch.compiler.reset()
        with bypassed():
            compiled = torch.compile(lambda x: (x.sin() + 1).sum(0), backend=backend)
            _, (text,) = run_and_get_code(compiled, torch.ones(3, 2))
        return re.sub(r"# AOT ID: .*", "", str(text))

    plain = code("inductor")
    assert code(backend_at(dumping.path, dump_layer="nothing_of_that_name")) == plain
    assert "graphprobe.record" in code(backend_at(dumping.path, dump_layer="sin")), "the comparison cannot fail"


def test_the_programs_own_pass_comes_before_and_stays_in_place(dumping: Any) -> None:
    def swap(graph: torch.fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
            node.target = torch.ops.aten.cos.default

    before = compile_fx._recursive_post_grad_passes
    with torch._inductor.config.patch(post_grad_custom_post_pass=swap):
        found = run(dumping, lambda x: x.sin() * 2, torch.ones(3))
        assert torch._inductor.config.post_grad_custom_post_pass is swap
    assert compile_fx._recursive_post_grad_passes is before
    torch.testing.assert_close(tensor(found.op("sin"), "output.0"), torch.ones(3).cos())


@pytest.mark.slow
def test_sizes_that_change(dumping: Any) -> None:
    function = lambda x: x.split(2, 1)[0].reshape(-1, x.shape[0]) * x.shape[1]  # noqa: E731
    compiled = torch.compile(function, backend=backend_at(dumping.path), dynamic=True)
    for size in (4, 6):
        compiled(torch.ones(size, size))
    products = dumping.end().ops(op_type="mul")
    assert [op.values()["output.0"].array().shape for op in products] == [(2, 4), (2, 6)]
    assert [op.record.arguments[0].text for op in products] == ["4", "6"]


def test_steps_that_are_not_dumped_record_nothing(dumping: Any) -> None:
    compiled = torch.compile(lambda x: x.sin() * 2, backend=backend_at(dumping.path, dump_step="1"))
    for step in range(3):
        compiled(torch.full((2,), float(step)))
    (op,) = dumping.end().ops(op_name="sin")
    assert op.values()["input.0"].array().tolist() == [1.0, 1.0]


def test_a_graph_that_cannot_be_instrumented_is_compiled_without(
    dumping: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(gm: Any, record: Any, *rest: Any) -> Any:
        real(gm, record, *rest)
        raise RuntimeError("planted")

    real = instrument.insert_recorders
    monkeypatch.setattr(instrument, "insert_recorders", broken)
    found = run(dumping, lambda x: x.sin() * 2, torch.ones(3))
    assert "planted" in caplog.text and any("planted" in line for line in found.manifest.missing)


def test_an_insertion_that_fails_leaves_the_graph_as_it_was() -> None:
    gm = torch.fx.symbolic_trace(lambda x: x.sin().cos())
    for node in gm.graph.nodes:
        node.meta["val"] = torch.ones(2)
    ops = ops_of_graph(gm.graph, "forward", engine="instrument", perturbs=True)
    before = gm.code
    calls = []

    class Refusing:
        def __contains__(self, index: object) -> bool:
            calls.append(index)
            if len(calls) == 3:
                raise RuntimeError("planted")
            return True

    with pytest.raises(RuntimeError, match="planted"):
        instrument.insert_recorders(gm, print, ops, Refusing())  # type: ignore[arg-type]
    assert gm.code == before
    instrument.insert_recorders(gm, print, ops, {1, 2})
    assert gm.code.count("print(") == 2


@pytest.mark.cuda
def test_on_a_device(dumping: Any, mlp: Any) -> None:
    mlp, x = mlp.cuda(), torch.randn(3, 4, device="cuda")
    expected = by_name(run(dumping, mlp, x, engine="interpreter"))
    found = by_name(run(dumping, mlp, x))
    assert_same_values(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.heavy
def test_every_node_of_a_transformer(dumping: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through `get_backend`, so that what the compile leaves is collected beside the dump."""
    model = models.gpt2(**models.NO_CACHE).eval()
    x = torch.randint(0, 32, (2, 8))
    found = {}
    for engine in ("interpreter", "instrument"):
        torch.compiler.reset()
        path = dumping.path / engine
        path.mkdir()
        compiled = dumping.compile(model, engine=engine, dump_path=str(path))
        compiled(input_ids=x, labels=x).loss.backward()
        dumping.end()
        assert not Dumped(path).manifest.missing
        found[engine] = by_name(Dumped(path))
    assert_same_values(found["instrument"], found["interpreter"], rtol=1e-3, atol=1e-5)


@torch.library.custom_op("instrumented::add_one_", mutates_args=("x",))
def add_one_(x: torch.Tensor) -> None:
    x.add_(1)


@add_one_.register_fake
def _(x: torch.Tensor) -> None:
    return None


@pytest.mark.parametrize(
    ("function", "seen"),
    [
        (lambda x: torch.linalg.inv(x) + 1, "with_effects"),
        (lambda x: torch.linalg.cholesky(x) * 2, "with_effects"),
        (lambda x: (add_one_(y := x * 2), y + 1)[1], "add_one_"),
    ],
)
def test_ops_that_give_nothing_are_recorded_and_break_no_compile(dumping: Any, function: Any, seen: str) -> None:
    if seen == "with_effects" and torch.__version__ < (2, 13):
        pytest.skip("this torch makes no effect of a check for errors")
    found = run(dumping, function, torch.eye(3) + 1)
    ops = {op.record.op.op_type: op for op in found.ops()}
    op = ops[seen]
    (slot, *_) = (name for name in op.values() if name.startswith("input"))
    assert op.values()[slot].array().shape in ((), (3, 3))
    assert not any(name.startswith("output") for name in op.values())
    if seen == "add_one_":
        expected = (torch.eye(3) + 1) * 2
        assert torch.equal(tensor(op, slot), expected), "its input as it was before"
        (after,) = (name for name in ops["add"].values() if name.startswith("input"))
        assert torch.equal(tensor(ops["add"], after), expected + 1)
    assert found.ops()[-1].record.op.op_type in ("add", "mul")


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="this torch makes no effect of a check for errors")
def test_values_that_no_code_has_are_not_shown() -> None:
    shown: list[str] = []

    def look(graph: torch.fx.Graph) -> None:
        shown.extend(node.name for node in showable(graph.owning_module))

    with bypassed(), torch._inductor.config.patch(post_grad_custom_post_pass=look):
        torch.compile(lambda x: torch.linalg.inv(x) + 1)(torch.eye(3))
    assert "getitem_1" in shown, "the numbers that are checked for errors"
    assert not {"_make_token_default", "with_effects", "getitem_2", "_sink_tokens_default"} & set(shown)
