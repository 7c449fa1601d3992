"""The rebuilt graph is the same graph, and what cannot be rebuilt is said."""

from __future__ import annotations

import importlib.util
import operator
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from graphprobe.engine.values import same_bits
from graphprobe.probe.formats import Script
from graphprobe.probe.formats.fx_py import fx_py_source

from .compiled import PROGRAMS, Stages, run_script, train


def rebuild(script: Script, folder: Path) -> fx.GraphModule:
    path = folder / "graph.py"
    path.write_text(script.source)
    if script.constants is not None:
        (folder / script.constants_name.format(stem="graph")).write_bytes(script.constants)
    spec = importlib.util.spec_from_file_location("graph", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.pop("graph", None)
    spec.loader.exec_module(module)
    return module.build()


def shape_of(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return ("node", value.name)
    if isinstance(value, (list, tuple)):
        return (type(value).__name__.removeprefix("immutable_"), [shape_of(v) for v in value])
    if isinstance(value, dict):
        return {k: shape_of(v) for k, v in value.items()}
    if isinstance(value, slice):
        return ("slice", shape_of([value.start, value.stop, value.step]))
    return repr(value) if isinstance(value, (float, complex)) else value


def assert_same_graph(a: fx.GraphModule, b: fx.GraphModule) -> None:
    rows = [[(n.op, n.name, n.target, shape_of(n.args), shape_of(n.kwargs)) for n in g.graph.nodes] for g in (a, b)]
    assert rows[0] == rows[1]
    for node in a.graph.nodes:
        if node.op == "get_attr":
            one, two = operator.attrgetter(node.target)(a), operator.attrgetter(node.target)(b)
            if isinstance(one, fx.GraphModule):
                assert_same_graph(one, two)
            else:
                assert same_bits(one, two, stride=True) == []


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_the_rebuilt_graph_has_the_same_nodes(name: str, dynamic: bool, tmp_path: Path) -> None:
    if dynamic and name in ("conv_batch_norm", "mutation_and_alias"):
        pytest.skip("one static run of this is enough")
    stages = Stages(tmp_path)
    train(PROGRAMS[name], aot_autograd(fw_compiler=stages.aot, bw_compiler=stages.aot), dynamic=dynamic)
    train(PROGRAMS[name], stages.dynamo, dynamic=dynamic)
    assert len(stages.graphs) >= 2
    for gm in stages.graphs:
        script = fx_py_source(gm, title=name)
        assert script.problems == ()
        assert_same_graph(gm, rebuild(script, tmp_path))


def odd_graph() -> fx.GraphModule:
    root = torch.nn.Module()
    root.conv = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 2, padding=1), torch.nn.BatchNorm1d(3)).eval()
    base = torch.arange(6.0)
    root.register_buffer("whole", base)
    root.register_buffer("part", base[::2])
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_module("conv", (x,))
    z = graph.call_function(operator.getitem, (y, (slice(None), Ellipsis, slice(None, -1, 1))))
    z = graph.call_method("clamp", (z,), {"min": float("-inf"), "max": float("inf")})
    nan = graph.call_function(torch.ops.aten.full.default, ([2], float("nan")), {"dtype": torch.float64})
    whole, part = graph.get_attr("whole"), graph.get_attr("part")
    both = graph.call_function(torch.cat, ([whole, part],), {"dim": -1})
    soft = graph.call_function(torch.nn.functional.softmax, (both,), {"dim": 0, "dtype": torch.float32})
    keyword = graph.create_node("call_function", torch.ops.aten.neg.default, (soft,), {}, "lambda_")
    keyword.name = "class"
    contiguous = torch.contiguous_format
    last = graph.call_function(torch.ops.aten.clone.default, (keyword,), {"memory_format": contiguous})
    device = graph.call_function(torch.zeros, (1,), {"device": torch.device("cpu"), "dtype": torch.bool})
    graph.output((z, nan, {"last": last}, device))
    return fx.GraphModule(root, graph)


def test_odd_arguments_names_and_leaf_modules(tmp_path: Path) -> None:
    gm = odd_graph()
    script = fx_py_source(gm, title="odd", inputs=[torch.zeros(1, 2, 4)])
    assert script.problems == ()
    back = rebuild(script, tmp_path)
    assert_same_graph(gm, back)
    x = torch.randn(1, 2, 4)
    assert same_bits(fx.Interpreter(gm).run(x), fx.Interpreter(back).run(x)) == []
    assert back.part.untyped_storage().data_ptr() == back.whole.untyped_storage().data_ptr()
    done = run_script(tmp_path / "graph.py")
    assert done.returncode == 0, done.stdout + done.stderr


def only_here(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_what_exists_in_this_process_only_is_said_and_exits_125(tmp_path: Path) -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(lambda x: x, (graph.placeholder("x"),)))
    script = fx_py_source(fx.GraphModule({}, graph), title="lost")
    (problem,) = script.problems
    assert "exists only in the process that compiled it" in problem
    path = tmp_path / "lost.py"
    path.write_text(script.source)
    done = run_script(path)
    assert done.returncode == 125
    assert problem in done.stdout and f"# {problem}" in script.source


def test_an_operator_of_another_library_needs_its_import(tmp_path: Path) -> None:
    library = torch.library.Library("graphprobe_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    graph = fx.Graph()
    graph.output(graph.call_function(torch.ops.graphprobe_test.twice.default, (graph.placeholder("x"),)))
    script = fx_py_source(fx.GraphModule({}, graph), title="other library", inputs=[torch.ones(2)])
    assert script.problems == ()
    assert "graphprobe_test::twice" in script.source.split("\n\n")[0]
    path = tmp_path / "other.py"
    path.write_text(script.source)
    done = run_script(path)
    assert done.returncode == 125
    assert "--import" in done.stdout
