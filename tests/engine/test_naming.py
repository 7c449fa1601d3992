"""Lines, modules and ops named from graphs that Dynamo and AOTAutograd really make."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.fx import Graph, GraphModule, Node

from graphprobe.engine.naming import aten_behind, module_of, op_of, source_of


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.fc(x))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.seq = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        self.named = torch.nn.ModuleDict({"a": Block()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.named["a"](self.seq(x)).sin()


MODEL = Model()
PATHS = ["blocks.0.fc", "blocks.0", "blocks.1.fc", "blocks.1", "seq.0", "seq.1", "named.a.fc", "named.a"]


def calls(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op.startswith("call_")]


def dynamo_graph(fn: Callable[..., Any], *args: Any) -> GraphModule:
    found: list[GraphModule] = []

    def backend(gm: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        found.append(gm)
        return gm.forward

    torch.compile(fn, backend=backend)(*args)
    return found[0]


def aot_graphs(fn: Callable[..., Any], *args: Any) -> list[GraphModule]:
    found: list[GraphModule] = []

    def compiler(gm: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        found.append(gm)
        return make_boxed_func(gm.forward)

    torch.compile(fn, backend=aot_autograd(fw_compiler=compiler, bw_compiler=compiler))(*args).sum().backward()
    return found


def padded(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x, (1, 1), mode="circular")


def test_the_line_of_a_function_of_torch_written_in_python_is_its_caller() -> None:
    inside = [n for n in calls(dynamo_graph(padded, torch.ones(1, 2, 4)).graph) if "torch/nn/" in (n.stack_trace or "")]
    assert inside, "torch's function is traced into"
    line = padded.__code__.co_firstlineno + 1
    assert {source_of(n) for n in inside} == {f"{__file__}:{line}"}


def node_of(target: Any, *, op: str = "call_function") -> Node:
    graph = Graph()
    return graph.create_node(op, target, (graph.placeholder("x"),), {})


def test_modules_in_lists_sequences_and_dicts_are_named_by_their_index() -> None:
    found = [module_of(n) for n in calls(dynamo_graph(Model(), torch.ones(2, 4)).graph)]
    assert found == [*PATHS, None], "the sin belongs to the outermost module, which has no name"


def test_a_module_that_is_closed_over() -> None:
    model = Model()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return model(x) + 1

    found = [module_of(n) for n in calls(dynamo_graph(fn, torch.ones(2, 4)).graph)]
    assert found == [*PATHS, None, None]


def test_a_module_at_the_top_of_a_file() -> None:
    found = [module_of(n) for n in calls(dynamo_graph(lambda x: MODEL(x), torch.ones(2, 4)).graph)]
    assert found == [*PATHS, None]


def test_a_method_of_a_module() -> None:
    model = Model()
    found = [module_of(n) for n in calls(dynamo_graph(model.forward, torch.ones(2, 4)).graph)]
    assert found == [*PATHS, None]


def test_graphs_of_aot_autograd_name_the_same_modules_forward_and_backward() -> None:
    forward, backward = aot_graphs(Model(), torch.ones(2, 4))
    named = {op_of(n): module_of(n) for n in calls(forward.graph)}
    assert named["aten.tanh.default"] == "seq.1"
    assert named["aten.addmm.default"] == "named.a.fc"
    gradients = [(op_of(n), module_of(n)) for n in calls(backward.graph)]
    assert ("aten.tanh_backward.default", "seq.1") in gradients
    assert ("aten.threshold_backward.default", "blocks.0") in gradients
    assert ("aten.mm.default", "blocks.1.fc") in gradients


def test_the_line_is_the_innermost_of_the_program() -> None:
    gm = dynamo_graph(Model(), torch.ones(2, 4))
    lines = {op_of(n): source_of(n) for n in calls(gm.graph)}
    relu = Block.forward.__code__.co_firstlineno + 1
    assert lines["torch.relu"] == f"{__file__}:{relu}"
    assert lines["torch.Tensor.sin"] == f"{__file__}:{Model.forward.__code__.co_firstlineno + 3}"


def test_nothing_is_known_of_a_bare_node() -> None:
    node = node_of(torch.relu)
    assert source_of(node) is None
    assert module_of(node) is None


def test_the_line_of_the_last_frame() -> None:
    node = node_of(torch.relu)
    node.meta["stack_trace"] = '  File "a b.py", line 3, in f\n    g()\n  File "/x/c.py", line 40, in g\n    x.relu()'
    assert source_of(node) == "/x/c.py:40"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("L['self'].blocks.3.mlp", "blocks.3.mlp"),
        ("L['self']._modules['blocks']._modules['3'].mlp", "blocks.3.mlp"),
        ("G['model'].layers[0].selfattention", "layers.0.selfattention"),
        ("L['x'].y", "y"),
        ("self.selfish", "selfish"),
        ("L['self']", None),
        ("", None),
    ],
)
def test_paths(path: str, name: str | None) -> None:
    node = node_of(torch.relu)
    node.meta["nn_module_stack"] = {"0": (path, Block)}
    assert module_of(node) == name


def test_the_modules_of_the_forward_serve_for_the_backward() -> None:
    node = node_of(torch.relu)
    node.meta["fwd_nn_module_stack"] = {"0": ("L['self'].a", Block), "1": ("L['self'].a.b", Block)}
    assert module_of(node) == "a.b"


@pytest.mark.parametrize(
    ("node", "name"),
    [
        (node_of(torch.ops.aten.relu.default), "aten.relu.default"),
        (node_of(torch.ops.aten.relu), "aten.relu"),
        (node_of(torch.relu), "torch.relu"),
        (node_of(torch.nn.functional.silu), "torch.nn.functional.silu"),
        (node_of(operator.getitem), "operator.getitem"),
        (node_of(torch.ops.higher_order.cond), "higher_order.cond"),
        (node_of("sin", op="call_method"), "torch.Tensor.sin"),
        (node_of("inner", op="call_module"), "inner"),
    ],
    ids=str,
)
def test_ops(node: Node, name: str) -> None:
    assert op_of(node) == name


def test_what_other_ops_are_in_aten() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    pooled = graph.call_function(torch.ops.prims.sin.default, (x,))
    pooled.meta["original_aten"] = torch.ops.aten.max_pool2d_with_indices.default
    assert aten_behind(pooled) == ["aten.max_pool2d_with_indices.default"]
    assert aten_behind(graph.call_method("add_", (x, x))) == ["aten.add_"]
    assert aten_behind(graph.call_function(torch.relu, (x,))) == ["aten.relu"]
    assert aten_behind(graph.call_function(torch.ops.aten.relu.default, (x,))) == [], "it is one"
    assert aten_behind(graph.call_function(torch.nn.functional.interpolate, (x,))) == [], "it may be several"
    assert aten_behind(graph.call_function(len, (x,))) == []
