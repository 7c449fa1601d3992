"""`scope.data_dump`: marked ops alone are dumped, in the whole dump, unless something else selects ops, too."""

from pathlib import Path

import pytest
import torch

import graphprobe
from probe.dump.conftest import Dumped, Dumping

W = torch.ones(3)


def marked(x: torch.Tensor) -> torch.Tensor:
    with graphprobe.scope.data_dump():
        y = W - x
    return (y.sin() - x).relu()


def unmarked(x: torch.Tensor) -> torch.Tensor:
    return x.cos() * 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_of_two_subtractions_the_one_in_the_block_and_its_gradient(backend: str, dumping: Dumping) -> None:
    x = torch.randn(3, requires_grad=True)
    torch.compile(marked, backend=dumping.backend(backend), fullgraph=True)(x).sum().backward()
    found = dumping.end()
    forward = found.ran(direction="forward")
    if backend == "inductor":  # one kernel computes all of it; it carries the marked node out
        assert any("sub" in op.record.op.fx_nodes for op in forward)
    else:
        inside = str(marked.__code__.co_firstlineno + 2)
        assert [(op.record.op.op_name, op.record.op.source.rpartition(":")[2]) for op in forward] == [("sub", inside)]
        assert [op.record.op.op_type for op in found.ran(direction="backward")] == ["neg"]
    assert len(found.ops(op_type="Data", direction="forward")) >= 1, "the input that it reads comes along"


def test_graphs_without_a_mark_are_not_dumped_whichever_came_first(dumping: Dumping) -> None:
    backend = dumping.backend("aot_eager")
    first, second, third = (torch.compile(f, backend=backend) for f in (unmarked, marked, lambda x: x.tan()))
    x = torch.randn(3)
    for _ in range(2):
        for function in (first, second, third):
            function(x)
    found = dumping.end()
    steps = [(op.record.place.model_name, op.record.place.step) for op in found.ops()]
    assert ("unmarked", 0) in steps, "before the first mark was compiled, nothing was known of it"
    assert set(steps) - {("unmarked", 0)} == {("marked", 0), ("marked", 1)}
    assert set(found.names()) == {"cos", "mul", "sub"}


def test_parts_between_graph_breaks(dumping: Dumping) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with graphprobe.scope.data_dump():
            x = x - 1
        torch._dynamo.graph_break()
        return x.cos()

    dumping.compile(program, "aot_eager")(torch.randn(3))
    assert set(dumping.end().names()) == {"sub"}


def test_a_dump_without_marks_is_whole_though_another_has_some(dumping: Dumping, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    dumping.compile(marked, "aot_eager")(torch.randn(3))
    dumping.compile(unmarked, "aot_eager", dump_path=str(tmp_path / "other"))(torch.randn(3))
    assert dumping.end().names() == ["sub"]
    assert Dumped(tmp_path / "other").names() == ["cos", "mul"]
