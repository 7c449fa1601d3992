"""Lines, modules and ops named from graphs that Dynamo and AOTAutograd really make."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.fx import Graph, GraphModule, Node

from graphprobe.engine.naming import aten_behind, module_in_words, module_of, op_of, program_line_of, source_of


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


def node_of(target: Any, *, op: str = "call_function") -> Node:
    graph = Graph()
    return graph.create_node(op, target, (graph.placeholder("x"),), {})


def closing_over(model: Model) -> Callable[..., torch.Tensor]:
    return lambda x: model(x) + 1


@pytest.mark.parametrize(
    ("fn", "outermost"),
    [(Model(), 1), (closing_over(Model()), 2), (lambda x: MODEL(x), 1), (Model().forward, 1)],
    ids=["module", "closed over", "at the top of a file", "method"],
)
def test_modules_in_lists_sequences_and_dicts_are_named_by_their_index(fn: Any, outermost: int) -> None:
    """What belongs to the outermost module, such as the sin, has no name."""
    found = [module_of(n) for n in calls(dynamo_graph(fn, torch.ones(2, 4)).graph)]
    assert found == [*PATHS, *[None] * outermost]


def test_graphs_of_aot_autograd_name_the_same_modules_forward_and_backward() -> None:
    forward, backward = aot_graphs(Model(), torch.ones(2, 4))
    named = {op_of(n): module_of(n) for n in calls(forward.graph)}
    assert named["aten.tanh.default"] == "seq.1"
    assert named["aten.addmm.default"] == "named.a.fc"
    gradients = [(op_of(n), module_of(n)) for n in calls(backward.graph)]
    assert ("aten.tanh_backward.default", "seq.1") in gradients
    assert ("aten.threshold_backward.default", "blocks.0") in gradients
    assert ("aten.mm.default", "blocks.1.fc") in gradients


def test_lines_and_modules_in_words() -> None:
    gm = dynamo_graph(Model(), torch.ones(2, 4))
    lines = {op_of(n): source_of(n) for n in calls(gm.graph)}
    assert lines["torch.relu"] == f"{__file__}:{Block.forward.__code__.co_firstlineno + 1}"
    assert lines["torch.Tensor.sin"] == f"{__file__}:{Model.forward.__code__.co_firstlineno + 3}"
    inside = [n for n in calls(dynamo_graph(padded, torch.ones(1, 2, 4)).graph) if "torch/nn/" in (n.stack_trace or "")]
    assert inside, "torch's function, which is written in Python, is traced into"
    assert {source_of(n) for n in inside} == {f"{__file__}:{padded.__code__.co_firstlineno + 1}"}
    told = {op_of(n): module_in_words(n) for n in calls(dynamo_graph(closing_over(Model()), torch.ones(2, 4)).graph)}
    assert told["torch.tanh"] == "seq.1 (Tanh) of Model"
    assert told["torch.relu"] == "named.a (Block) of Model"
    assert told["torch.Tensor.sin"] is None
    assert module_in_words(node_of(torch.relu)) is None
    node = node_of(torch.relu)
    assert source_of(node) is None and module_of(node) is None, "nothing is known of a bare node"
    node.meta["stack_trace"] = '  File "a b.py", line 3, in f\n    g()\n  File "/x/c.py", line 40, in g\n    x.relu()'
    assert source_of(node) == "/x/c.py:40"


LIBRARY_LINE = "/home/a/.venv/lib/python3.11/site-packages/transformers/pytorch_utils.py"


def test_lines_and_paths() -> None:
    for files, line in (
        (["/home/a/train.py", LIBRARY_LINE], "/home/a/train.py:1"),
        (["/home/a/train.py", "/home/a/model.py", LIBRARY_LINE, torch.nn.__file__], "/home/a/model.py:2"),
        ([LIBRARY_LINE, "/home/a/hook.py"], None),
        (["/home/a/train.py", torch.nn.__file__], None),
        ([LIBRARY_LINE], None),
        ([], None),
    ):
        node = node_of(torch.relu)
        frames = [f'  File "{file}", line {number}, in f\n    g()' for number, file in enumerate(files, 1)]
        node.meta["stack_trace"] = "\n".join(frames)
        assert program_line_of(node) == line
    for path, name in (
        ("L['self'].blocks.3.mlp", "blocks.3.mlp"),
        ("L['self']._modules['blocks']._modules['3'].mlp", "blocks.3.mlp"),
        ("G['model'].layers[0].selfattention", "layers.0.selfattention"),
        ("L['x'].y", "y"),
        ("self.selfish", "selfish"),
        ("L['self']", None),
        ("", None),
    ):
        for key in ("nn_module_stack", "fwd_nn_module_stack"):
            node = node_of(torch.relu)
            node.meta[key] = {"0": ("L['self'].a", Block), "1": (path, Block)} if name else {"0": (path, Block)}
            assert module_of(node) == name


OPS = {
    "aten.relu.default": node_of(torch.ops.aten.relu.default),
    "aten.relu": node_of(torch.ops.aten.relu),
    "torch.relu": node_of(torch.relu),
    "torch.nn.functional.silu": node_of(torch.nn.functional.silu),
    "operator.getitem": node_of(operator.getitem),
    "higher_order.cond": node_of(torch.ops.higher_order.cond),
    "torch.Tensor.sin": node_of("sin", op="call_method"),
    "inner": node_of("inner", op="call_module"),
}


def test_ops_and_what_they_are_in_aten() -> None:
    assert {name: op_of(node) for name, node in OPS.items()} == {name: name for name in OPS}
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
