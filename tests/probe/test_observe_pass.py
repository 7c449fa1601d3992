"""Third-party passes: the same tree, only changed graphs as files, every pass as an event, harmless anywhere else."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

import graphprobe
from conftest import damaged
from graphprobe.records import Event
from graphprobe.report import print_run
from graphprobe.store import Run

Graph = torch.fx.GraphModule


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.sin() * 2).sum()


def double(gm: Graph) -> None:
    """A pass that adds a node behind the first operator."""
    node = next(n for n in gm.graph.nodes if n.op == "call_function")
    with gm.graph.inserting_after(node):
        added = gm.graph.call_function(torch.ops.aten.neg.default, (node,))
    added.meta.update(node.meta)
    gm.recompile()


def observed(gm: Graph, name: str, change: Callable[[Graph], object] | None = None, **options: Any) -> None:
    with graphprobe.observe_pass(gm, name, **options):
        if change is not None:
            change(gm)


def compiler(change: Callable[[Graph], object]) -> Callable[[Graph, Any], Any]:
    """What compiles a graph: changes it, and runs it as it is then."""

    def compile_graph(gm: Graph, inputs: Any) -> Any:
        change(gm)
        return gm.forward

    return compile_graph


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    yield
    graphprobe.disable()


def passes(run: Run, *names: str) -> list[Event]:
    return [event for event in run.events() if event.kind in ("pass", "failure") and event.name in names]


def inference(change: Callable[[Graph], object], tmp_path: Path) -> Run:
    with graphprobe.trace(tmp_path) as folder:
        torch.compile(f, backend=aot_autograd(fw_compiler=compiler(change)))(torch.ones(3))
    return Run.open(folder)


def test_phases_and_changes(tmp_path: Path) -> None:
    def passes_of(direction: str) -> Any:
        def change(gm: Graph) -> None:
            for name, changes in (("look", None), ("fuse/rope v2", double), ("look again", None)):
                observed(gm, name, changes, phase=direction, subsystem="mine")

        return compiler(change)

    def joint(gm: Graph, inputs: Any, **kwargs: Any) -> Any:
        observed(gm, "joint_mine", phase="joint")
        return min_cut_rematerialization_partition(gm, inputs, **kwargs)

    compilers = {"fw_compiler": passes_of("forward"), "bw_compiler": passes_of("backward"), "partition_fn": joint}
    with graphprobe.trace(tmp_path) as folder:
        torch.compile(f, backend=aot_autograd(**compilers))(torch.ones(3, requires_grad=True)).backward()
    run = Run.open(folder)
    for direction in ("forward", "backward"):
        mine = [e for e in passes(run, "look", "fuse/rope v2", "look again") if e.where.direction == direction]
        assert [(e.name, e.changed, e.path is not None) for e in mine] == [
            ("look", False, False),
            ("fuse/rope v2", True, True),
            ("look again", False, False),
        ]
        fused = mine[1]
        assert fused.path == f"model__0/{direction}/001_aot_{direction}_graph_after_fuse_rope_v2.txt"
        assert (fused.subsystem, fused.where.phase) == ("mine", direction)
        assert len(fused.added) == 1 and fused.removed == ()
        assert fused.nodes_after == (fused.nodes_before or 0) + 1
        assert fused.elapsed_ns is not None and fused.elapsed_ns > 0
        pair = run.before_and_after("fuse/rope v2", direction=direction)  # type: ignore[arg-type]
        assert "aten.neg" in run.text(pair.after)
        assert run.text(pair.before).count("aten.neg") == run.text(pair.after).count("aten.neg") - 1
    (found,) = passes(run, "joint_mine")
    assert (found.where.direction, found.where.model) == ("joint", 0)
    assert run.manifest.missing == []
    assert damaged(run) == []


@pytest.mark.parametrize("phase", [None, "inference", "forward"])
def test_phase_that_is_left_out_is_the_graph_being_compiled(phase: str | None, tmp_path: Path) -> None:
    run = inference(lambda gm: observed(gm, "mine", double, phase=phase), tmp_path)
    (event,) = passes(run, "mine")
    assert event.where.direction == "forward"


def test_a_backend_without_aot(tmp_path: Path) -> None:
    def change(gm: Graph) -> None:
        observed(gm, "drop_nothing")
        observed(gm, "tidy", lambda gm: gm.graph.eliminate_dead_code(), phase="pre_grad")

    with graphprobe.trace(tmp_path) as folder:
        torch.compile(f, backend=compiler(change))(torch.ones(2))
    events = passes(Run.open(folder), "drop_nothing", "tidy")
    assert [(e.where.direction, e.changed) for e in events] == [("forward", False), ("pre_grad", False)]


def test_a_pass_inside_a_pass(tmp_path: Path) -> None:
    def change(gm: Graph) -> None:
        double(gm)
        observed(gm, "inner", double)

    run = inference(lambda gm: observed(gm, "outer", change), tmp_path)
    inner, outer = passes(run, "inner", "outer")
    assert (inner.name, outer.name) == ("inner", "outer")
    assert (len(inner.added), len(outer.added)) == (1, 2)
    pair = run.before_and_after("outer")
    assert "aten.neg" not in run.text(pair.before)
    assert run.text(pair.after).count("aten.neg") == 2


@pytest.mark.parametrize("collecting", [False, True])
def test_outside_any_compile_it_does_nothing(collecting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if collecting:
        graphprobe.enable(tmp_path / "out")
    gm = torch.fx.symbolic_trace(torch.nn.ReLU())
    before = len(gm.graph.nodes)
    observed(gm, "mine", lambda gm: gm.graph.eliminate_dead_code(), phase="forward")
    with pytest.raises(KeyError, match="mine"), graphprobe.observe_pass(gm, "mine"):
        raise KeyError("mine")
    assert len(gm.graph.nodes) == before
    folder = graphprobe.disable()
    if collecting:
        assert folder is not None
        assert [event.name for event in Run.open(folder).events()] == ["compile", "traced_graph"], "and no pass"
        return
    torch.compile(f, backend=compiler(lambda gm: observed(gm, "mine")))(torch.ones(2))
    assert folder is None and list(tmp_path.iterdir()) == [], "nor inside one while nothing collects"


def test_the_failing_pass_is_named_once_and_the_exception_is_the_same_object(tmp_path: Path) -> None:
    error = ValueError("a rule is missing")

    def change(gm: Graph) -> None:
        double(gm)
        raise error

    with pytest.raises(Exception, match="a rule is missing") as raised:
        inference(lambda gm: observed(gm, "outer", lambda gm: observed(gm, "inner", change)), tmp_path)
    chain = [raised.value, raised.value.__cause__, getattr(raised.value, "inner_exception", None)]
    assert any(one is error for one in chain)
    run = Run.open(tmp_path)
    (failure,) = [event for event in run.events() if event.kind == "failure"]
    assert (failure.name, failure.message) == ("inner", "ValueError: a rule is missing")
    assert failure.path == "model__0/forward/001_aot_forward_FAILED_inner.txt"
    assert "aten.neg" not in run.text(failure).partition("# The graph before it:")[2]


def test_changes_that_nobody_announced_are_counted(tmp_path: Path) -> None:
    def change(gm: Graph) -> None:
        double(gm)
        for node in [n for n in gm.graph.nodes if n.target is torch.ops.aten.mul.Tensor]:
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
        gm.recompile()

    run = inference(change, tmp_path)
    (event,) = passes(run, "unobserved_changes")
    assert (event.added, event.removed) == (("neg_default",), ("mul",))
    assert (event.nodes_before, event.nodes_after) == (6, 6)
    assert "+1 −1 nodes" in text_of(run)


def test_the_files_of_facts_are_listed_once_there_are_any(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    with graphprobe.trace(tmp_path) as folder:
        for size in (3, 4, 5):
            torch.compile(program, backend="eager")(torch.ones(size))
    run = Run.open(folder)
    listed = text_of(run)
    for name in ("graph_breaks", "recompiles"):
        assert listed.count(f"{name}.jsonl") == 1
        assert run.text(run.find(name)).count("\n") >= 2


def text_of(run: Run) -> str:
    file = io.StringIO()
    print_run(run, file=file)
    return file.getvalue()
