"""The engine `interpreter` with Inductor: every node of the graph that would be lowered."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import compile_fx

import graphprobe
from graphprobe.engine.subgraph import showable
from graphprobe.internals.caches import bypassed
from graphprobe.probe.dump.backend import DumpBackend
from graphprobe.store import DumpedOp
from probe.dump.conftest import Dumped


def backend_at(path: Path, **options: Any) -> DumpBackend:
    """Dumps, and collects nothing beside that."""
    config = graphprobe.CompilerConfig().dump_config
    given = {"enable_dump": True, "dump_path": str(path), "engine": "interpreter", **options}
    for name, value in given.items():
        setattr(config, name, value)
    return DumpBackend(config.plan(environ={}))


def run(dumping: Any, model: Any, *args: torch.Tensor, **options: Any) -> Dumped:
    """The dump of one call, with its backward if there is one."""
    path = dumping.path / "dump"
    path.mkdir()
    torch.compiler.reset()
    backend = backend_at(path, **options)
    out = torch.compile(model, backend=backend, fullgraph=True)(*(a.clone() for a in args))
    if out.requires_grad:
        out.square().mean().backward()
    dumping.end()
    return Dumped(path)


def tensor(op: DumpedOp, slot: str) -> torch.Tensor:
    return torch.from_numpy(op.values()[slot].array())


def test_an_op_in_place_shows_its_input_as_before(dumping: Any) -> None:
    x = torch.randn(4, 3)
    found = run(dumping, lambda x: x.add_(1).sin(), x)
    (copy,) = [op for op in found.ops() if op.record.op.op_name.startswith("copy_")]
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


@torch.library.custom_op("interpreted::add_one_", mutates_args=("x",))
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
    assert op.values()[slot].array().shape in ((0,), (3, 3)), "a token, or the values"
    if seen == "add_one_":
        assert not any(name.startswith("output") for name in op.values())
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
