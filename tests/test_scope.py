"""`graphprobe.scope.data_dump`: exactly the ops of the block and their gradients are marked, and no graph breaks."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch.fx import GraphModule

import graphprobe
from conftest import Finished
from graphprobe.compat import torchair
from graphprobe.internals.inductor.stages import stop_after
from graphprobe.probe.dump.facts import is_scoped


def marked(gm: GraphModule) -> list[str]:
    return [node.name for node in gm.graph.nodes if is_scoped(node)]


def unmarked(gm: GraphModule) -> list[str]:
    calls = (node for node in gm.graph.nodes if node.op == "call_function")
    return [node.name for node in calls if not is_scoped(node)]


def graphs_of(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> list[GraphModule]:
    """Forward and backward graph after Inductor's last pass."""
    found: list[GraphModule] = []

    def run(gm: GraphModule, inputs: Any, settings: Any) -> Any:
        found.append(gm)
        return make_boxed_func(gm)

    def backend(gm: GraphModule, inputs: Any) -> Any:
        return stop_after("post_grad", gm, inputs, run)

    torch.compile(function, backend=backend, fullgraph=True)(*args).sum().backward()
    return found


@pytest.fixture
def args() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)


@pytest.mark.parametrize("scope", [graphprobe.scope, torchair.scope], ids=["own", "torchair"])
def test_of_two_subtractions_the_one_in_the_block_and_its_gradient(args: Any, scope: Any) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with scope.data_dump():
            inside = a - b
        outside = inside.sin() - b
        return outside * b

    forward, backward = graphs_of(f, *args)
    assert [str(n.target) for n in forward.graph.nodes if is_scoped(n)] == ["aten.sub.Tensor"]
    assert len([n for n in forward.graph.nodes if str(n.target) == "aten.sub.Tensor"]) == 2
    gradients = [n for n in backward.graph.nodes if str(n.target) == "aten.neg.default"]
    assert [is_scoped(n) for n in gradients] == [False, True], backward.code
    inside_again = {"sub"} & set(marked(backward))  # the forward's, computed again
    assert set(marked(backward)) == inside_again | {gradients[1].name}


def test_decomposed_ops_and_equal_ones_stay_marked(args: Any) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with graphprobe.scope.data_dump():
            normed = torch.nn.functional.layer_norm(a, (4,))
            again = torch.nn.functional.layer_norm(a, (4,))  # one with the first after CSE
        return torch.nn.functional.gelu(normed + again) * b

    forward, backward = graphs_of(f, *args)
    assert {"var_mean", "rsqrt"} <= set(marked(forward))
    assert "erf" in unmarked(forward) and len(marked(backward)) > 3


def test_in_eager_code_and_without_a_block_it_is_nothing(args: Any) -> None:
    assert isinstance(graphprobe.scope.data_dump(), nullcontext)
    with graphprobe.scope.data_dump():
        assert torch.ones(1).add(1).item() == 2.0
    assert [marked(graph) for graph in graphs_of(lambda a, b: a - b, *args)] == [[], []]


def test_the_first_use_may_be_inside_a_compiled_model(run_warm: Callable[..., Finished], tmp_path: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, graphprobe\n"
        "def f(x):\n"
        "    with graphprobe.scope.data_dump():\n"
        "        y = x - 1\n"
        "    return graphprobe.ops.save(y, 'y') * 2\n"
        "print(torch.compile(f, backend='eager', fullgraph=True)(torch.ones(1)).item())\n"
    )
    done = run_warm(str(program), cwd=tmp_path)
    assert done.out.strip() == "0.0", done.err
    assert len(list(tmp_path.glob("graphprobe-saved/*/*/0/saved/0/0/save.y.0.*"))) == 1
