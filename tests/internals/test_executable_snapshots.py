"""A copy of the graph after each of Inductor's passes that changed it, and passes left out on demand."""

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest
import torch
import torch._inductor.compile_fx as compile_fx
import torch._inductor.config
import torch._inductor.pattern_matcher as pattern_matcher
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes import graph_transform_observer

from conftest import Finished
from graphprobe.engine.interpret import Recorder, run_graph
from graphprobe.internals.inductor import executable_snapshots
from graphprobe.internals.inductor.executable_snapshots import PATTERN_ENTRIES, PHASES, PassLog, Snapshots
from graphprobe.internals.inductor.stages import stop_after

CUMSUM = "pattern pointless_cumsum_replacement"
ATEN = torch.ops.aten


def counting(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(4, 3, dtype=torch.bool).cumsum(1, dtype=torch.bfloat16) + x


X = torch.linspace(-2, 2, 12).reshape(4, 3).bfloat16()


def run(
    fn: Callable[..., Any], *args: Any, skip: Collection[tuple[str, str]] = (), backward: bool = False
) -> tuple[list[PassLog], Any]:
    """What the passes did, and what the program gave, run op by op after all of them."""

    def inner(gm: GraphModule, _: Sequence[Any], __: dict[str, Any]) -> Callable[..., Any]:
        def call(args: list[Any]) -> Any:
            return Recorder(gm, keep=False).run(*args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    snapshots = Snapshots(skip)
    torch.compiler.reset()
    with snapshots.active():
        result = torch.compile(fn, backend=lambda gm, inputs: stop_after("post_grad", gm, inputs, inner))(*args)
        if backward:
            result.sum().backward()
    return snapshots.logs, result


def names(logs: list[PassLog], phase: str) -> list[str]:
    return [snapshot.name for log in logs if log.phase == phase for snapshot in log.snapshots]


def has(log: PassLog, number: int, target: Any) -> bool:
    return any(n.target is target for n in log.snapshots[number].graph.graph.nodes)


def patched() -> dict[str, Any]:
    """Everything that is replaced while snapshots are taken."""
    observer = graph_transform_observer.GraphTransformObserver
    found = {name: inspect.getattr_static(compile_fx, name) for name in PHASES}
    for name in ("__enter__", "__exit__", "apply_gm_pass", "apply_graph_pass"):
        found[name] = inspect.getattr_static(observer, name)
    for name in PATTERN_ENTRIES:
        found[name] = inspect.getattr_static(getattr(pattern_matcher, name), "apply")
    return found


def test_the_graph_before_the_first_pass_and_after_each_that_changed_it() -> None:
    logs, result = run(counting, X)
    assert [log.phase for log in logs] == ["pre_grad", "joint", "post_grad"]
    assert torch.equal(result, counting(X))
    assert names(logs, "pre_grad") == [""], "no pass changed it"
    assert names(logs, "post_grad") == ["", CUMSUM]
    assert has(logs[2], 0, ATEN.cumsum.default) and not has(logs[2], 1, ATEN.cumsum.default)
    assert all(log.failed is None and log.unseen == [] for log in logs)
    for log in logs:
        for snapshot in log.snapshots:
            made = run_graph(snapshot.graph, [X])
            assert made.failed is None
            assert torch.equal(made.outputs[0], counting(X)), (log.phase, snapshot.name)


def test_each_graph_has_its_own_log() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    logs, _ = run(lambda x: model(x) * 2, torch.randn(3, 4), backward=True)
    assert [log.phase for log in logs] == ["pre_grad", "joint", "post_grad", "post_grad"]
    assert model[0].weight.grad is not None


def test_a_pattern_that_is_left_out_in_its_phase() -> None:
    logs, result = run(counting, X, skip=[("post_grad", CUMSUM)])
    assert names(logs, "post_grad") == [""] and has(logs[2], 0, ATEN.cumsum.default)
    assert torch.equal(result, counting(X))
    logs, _ = run(counting, X, skip=[("joint", CUMSUM)])
    assert names(logs, "post_grad") == ["", CUMSUM]


def mul_of(graph: Graph) -> Node:
    return next(n for n in graph.nodes if n.target is ATEN.mul.Tensor)


def doubled(graph: Graph) -> None:
    """A wrong pass: 2 becomes 3."""
    mul_of(graph).args = (mul_of(graph).args[0], 3)


def failing(graph: Graph) -> None:
    raise ZeroDivisionError("in the pass")


def torn(graph: Graph) -> None:
    """Leaves a product that depends on itself."""
    mul_of(graph).args = (mul_of(graph), 2)


def mended(graph: Graph) -> None:
    """Makes the product one of the input again."""
    mul_of(graph).args = (next(n for n in graph.nodes if n.op == "placeholder"), 5)


def test_a_wrong_pass_is_named_and_can_be_left_out() -> None:
    with torch._inductor.config.patch(post_grad_custom_pre_pass=doubled):
        logs, result = run(lambda x: x * 2, torch.ones(2))
        assert result.tolist() == [3.0, 3.0]
        found = names(logs, "post_grad")
        assert found == ["", "post_grad_custom_pre_pass"]
        before, after = (run_graph(s.graph, [torch.ones(2)]).outputs[0].tolist() for s in logs[-1].snapshots)
        assert (before, after) == ([2.0, 2.0], [3.0, 3.0])
        logs, result = run(lambda x: x * 2, torch.ones(2), skip=[("post_grad", found[1])])
        assert result.tolist() == [2.0, 2.0]
        assert names(logs, "post_grad") == [""]


def test_a_pass_that_raises_is_named() -> None:
    snapshots = Snapshots()
    backend = lambda gm, inputs: stop_after("post_grad", gm, inputs, lambda *_: gm)  # noqa: E731
    with torch._inductor.config.patch(post_grad_custom_pre_pass=failing), snapshots.active():
        with pytest.raises(Exception, match="in the pass"):
            torch.compile(lambda x: x * 2, backend=backend)(torch.ones(2))
    post = snapshots.logs[-1]
    assert (post.phase, post.failed, [s.name for s in post.snapshots]) == (
        "post_grad",
        "post_grad_custom_pre_pass",
        [""],
    )


@pytest.mark.timeout(120)
def test_a_graph_that_cannot_be_copied_is_noted() -> None:
    def both(graph: Graph) -> None:
        observer = graph_transform_observer.GraphTransformObserver
        for function in (torn, mended):
            with observer(graph.owning_module, function.__name__):
                function(graph)

    with torch._inductor.config.patch(post_grad_custom_pre_pass=both):
        logs, result = run(lambda x: x * 2, torch.ones(2))
    assert result.tolist() == [5.0, 5.0]
    assert names(logs, "post_grad") == ["", "mended"]
    assert logs[-1].unseen[0].startswith("torn: ")
    assert all("mul depends on itself" in text for text in logs[-1].unseen)


def test_what_is_replaced_is_put_back() -> None:
    before = patched()

    def same() -> set[str]:
        now = patched()
        return {name for name in before if now[name] is before[name]}

    snapshots = Snapshots([("joint", "none")])
    with snapshots.active():
        assert same() == set()
    assert same() == before.keys()
    with pytest.raises(ValueError, match="inside"), snapshots.active():
        raise ValueError("inside")
    assert same() == before.keys()
    with Snapshots().active():  # less is replaced when nothing is left out
        assert same() == {"apply_gm_pass", "apply_graph_pass"}


def test_passes_outside_of_a_compilation_are_not_collected() -> None:
    snapshots = Snapshots([("", "mine")])
    gm = torch.fx.symbolic_trace(torch.nn.ReLU())
    ran: list[str] = []
    with snapshots.active():
        graph_transform_observer.GraphTransformObserver(gm, "other").apply_graph_pass(lambda _: ran.append("other"))
    assert snapshots.logs == []
    assert ran == ["other"]


def test_it_works_before_anything_was_compiled(run_warm: Callable[..., Finished]) -> None:
    code = (
        "from graphprobe.internals.inductor.executable_snapshots import Snapshots\n"
        "with Snapshots().active():\n"
        "    import torch._inductor.compile_fx as c\n"
        "    print(c.pre_grad_passes.__code__.co_qualname)"
    )
    done = run_warm("-c", code)
    assert done.code == 0, done.err
    assert "advised" in done.out


def test_a_replaced_pattern_has_the_name_of_the_function_that_is_searched_for() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.add.Tensor(x, x)

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.mul.Tensor(x, 2)

    passes = pattern_matcher.PatternMatcherPass()
    pattern_matcher.register_replacement(twice, doubled, [torch.ones(3)], pattern_matcher.fwd_only, passes)
    [[entry]] = passes.patterns.values()
    assert executable_snapshots._pattern_name(entry) == "twice"
