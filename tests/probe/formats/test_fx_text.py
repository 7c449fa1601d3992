"""The text never fails; the fingerprint sees nested graphs (all else: `test_graph_watch.py`), and is cheap."""

import copy
import time
from collections.abc import Callable

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.probe.formats.fx_text import fingerprint, graph_text


def traced() -> fx.GraphModule:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x[:, 1:3].sin() + y * 2.5).clamp(float("nan")).sum(dim=[0], dtype=torch.float64)

    return make_fx(f, tracing_mode="fake")(torch.ones(3, 4), torch.ones(3, 2))


def node(gm: fx.GraphModule, part: str) -> fx.Node:
    return next(n for n in gm.graph.nodes if part in str(n.target))


def test_text_holds_counts_shapes_and_source() -> None:
    text = graph_text(traced())
    assert text.startswith("# 9 nodes") or " nodes\n" in text.splitlines()[0] + "\n"
    assert "# inputs (2): x_1, y_1" in text
    assert "f32[3, 4][4, 1]cpu" in text
    assert "torch.ops.aten.sin.default" in text


def test_text_of_a_graph_in_the_middle_of_a_pass() -> None:
    gm = traced()
    sin = node(gm, "sin")
    sin.meta["val"] = object()
    gm.graph.output_node().append(sin)  # unsorted: used before it is made
    assert "aten.sin" in graph_text(gm)
    del gm.graph._codegen
    assert "sin" in graph_text(gm)


def test_the_fingerprint_sees_a_nested_graph_and_no_copy() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))

    gm = make_fx(f, tracing_mode="symbolic")(torch.ones(3))
    before = fingerprint(gm)
    assert fingerprint(copy.deepcopy(gm)) == before
    inner = next(m for name, m in gm.named_children() if isinstance(m, fx.GraphModule))
    next(n for n in inner.graph.nodes if n.op == "call_function").target = torch.ops.aten.exp.default
    assert fingerprint(gm) != before


def test_the_fingerprint_is_much_cheaper_than_the_text() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(200):
            x = x.sin() + 1
        return x

    gm = make_fx(f, tracing_mode="fake")(torch.ones(3, 4))

    def best(function: Callable[[fx.GraphModule], object]) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            function(gm)
            times.append(time.perf_counter() - start)
        return min(times)

    assert best(fingerprint) * 2 < best(graph_text)
