"""Sizes get smaller, in the inputs and in the graph."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reduction.edits.edit_driver import captured, check_edit, reduce_case, refused, run, shapes, targets
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.diagnose.reduction.edits import dims
from graphprobe.diagnose.reduction.edits.dims import Resize, ladder
from graphprobe.diagnose.reduction.edits.sizes import viewed

aten = torch.ops.aten


def batch(x: Any, w: Any) -> Any:
    y = aten.mm.default(aten.view.default(x, [64 * 8, 32]), w)
    y = aten.view.default(y, [64, 8, 4, 4])
    return aten.expand.default(aten.sum.dim_IntList(y, [0], True), [64, 8, 4, 4]) + y


def heads(x: Any) -> Any:
    return aten.transpose.int(aten.view.default(x, [4, 16, 8, 64]), 1, 2)


def methods_and_slices(x: Any, w: Any) -> Any:
    y = x.view(64, -1)[:, : 128 * 2].reshape(64, 2, 128)
    z = torch.zeros(64, 2, 128) + y.expand(64, 2, 128)
    return torch.nn.functional.layer_norm(z, (128,)) @ w


def factories_split_pad_and_strides(x: Any) -> Any:
    a, b = aten.split_with_sizes.default(x, [16, 16], 1)
    y = a * b + aten.full.default([64, 16], 2.0)
    y = aten.constant_pad_nd.default(y, [0, 1])
    y = aten.as_strided.default(aten.clone.default(y), [64, 17], [17, 1])
    return y + aten.unsqueeze.default(aten.arange.start_step(0, 64, 1), 1) + x.new_zeros([64, 17])


BATCH, HEADS, METHODS = [(64, 8, 32), (32, 16)], [(4, 16, 512)], [(64, 16, 16), (128, 5)]


def test_a_graph_follows_the_size_of_its_inputs() -> None:
    for fn, of, size, left, result in (
        (batch, BATCH, (64, 1), [(1, 8, 32), (32, 16)], (1, 8, 4, 4)),
        (batch, BATCH, (8, 3), [(64, 3, 32), (32, 16)], (64, 3, 4, 4)),
        (batch, BATCH, (16, 8), [(64, 8, 32), (32, 8)], (64, 8, 2, 4)),
        (heads, HEADS, (512, 256), [(4, 16, 256)], (4, 4, 16, 64)),
        (heads, HEADS, (512, 6), [(4, 16, 6)], (4, 2, 16, 3)),
        (methods_and_slices, METHODS, (64, 1), [(1, 16, 16), (128, 5)], (1, 2, 5)),
        (factories_split_pad_and_strides, [(64, 32)], (64, 2), [(2, 32)], (2, 17)),
    ):
        inputs = [torch.randn(shape) for shape in of]
        graph = captured(fn, *inputs)[0] if fn is methods_and_slices else make_fx(fn)(*inputs)
        made, values = check_edit(Resize((size,)), graph, inputs)
        assert shapes(values) == left
        assert all(torch.equal(v, x[tuple(map(slice, v.shape))]) for v, x in zip(values, inputs, strict=True))
        out = run(made, values)
        assert (out[0] if isinstance(out, tuple) else out).shape == result


def test_indices_stay_in_range() -> None:
    inputs = [torch.randn(1000, 4), torch.tensor([[3, 999], [512, 0]])]
    graph = make_fx(lambda table, at: aten.embedding.default(table, at))(*inputs)
    made, values = check_edit(Resize(((1000, 10),)), graph, inputs)
    assert values[1].tolist() == [[3, 9], [2, 0]]
    assert run(made, values).shape == (2, 2, 4)
    unrelated = [torch.randn(1000, 4), torch.tensor([[999, 3]])]
    graph = make_fx(lambda x, y: x.sum() + y)(*unrelated)
    assert check_edit(Resize(((1000, 10),)), graph, unrelated)[1][1].tolist() == [[999, 3]]


def test_one_dim_or_all_at_a_position() -> None:
    inputs = [torch.randn(8, 8)]
    graph = make_fx(lambda x: aten.view.default(x, [8, 2, 4]).sum(1))(*inputs)
    for edit, left, result in (
        (Resize(((8, 3),), dims=((0, 0),)), (3, 8), (3, 4)),
        (Resize(((8, 3),)), (3, 3), (3, 3)),
    ):
        made, values = check_edit(edit, graph, inputs)
        assert (shapes(values), run(made, values).shape) == ([left], result)
    refused(Resize(((8, 3),)), make_fx(lambda x: aten.mm.default(x, torch.ones(8, 8)))(*inputs), [torch.ones(8, 4)])
    refused(Resize(((8, 9),)), graph, inputs, why="grow")
    kept = check_edit(Resize(((8, 2),), last=True), make_fx(lambda x: x.sin())(*inputs), inputs)[1][0]
    assert torch.equal(kept, inputs[0][-2:, -2:])
    inputs = [torch.randn(8, 8), torch.randn(8, 8), torch.randn(16, 2)]
    graph = make_fx(lambda x, y, z: aten.view.default(aten.cat.default([x, y], 1) @ z, [8, 2]))(*inputs)
    done = reduce_case(graph, inputs, lambda g, v: v[0].shape[1] == v[1].shape[1] == 8, passes=[dims.DIMS])
    assert shapes(done.inputs) == [(1, 8), (1, 8), (16, 1)]


def test_layout_sharing_and_flags_stay() -> None:
    base = torch.randn(8, 6)
    inputs = [torch.randn(6, 8).t(), torch.randn(6).expand(8, 6), torch.randn(8, requires_grad=True), base, base[:, 1:]]
    graph = make_fx(lambda a, b, c, d, e: (a + b + c[:, None] + d).sum() + e.sum())(*inputs)
    _, values = check_edit(Resize(((8, 3),)), graph, inputs)
    assert [v.stride() for v in values] == [(1, 3), (0, 1), (1,), (6, 1), (6, 1)]
    assert values[2].requires_grad
    assert values[3].untyped_storage().data_ptr() == values[4].untyped_storage().data_ptr()
    assert torch.equal(values[4], base[:3, 1:])


def test_numbers_and_attributes_follow() -> None:
    graph, inputs = captured(lambda x: x.view(x.shape[0] * x.shape[1]) + 1, torch.randn(12, 7), dynamic=True)
    assert 12 in inputs
    made, values = check_edit(Resize(((12, 2),)), graph, inputs)
    assert run(made, values)[0].shape == (14,)

    root = torch.nn.Module()
    root.weight = torch.nn.Parameter(torch.randn(9, 5))
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.matmul, (graph.placeholder("x"), graph.get_attr("weight"))))
    module = torch.fx.GraphModule(root, graph)
    made, _ = check_edit(Resize(((9, 2),)), module, [torch.randn(3, 9)])
    assert isinstance(made.weight, torch.nn.Parameter)
    assert (made.weight.shape, module.weight.shape) == ((2, 5), (9, 5))


def test_viewed() -> None:
    for old, new, wanted, sizes, result in (
        ([64, 512], [1, 512], [32768], {64: 1}, [512]),
        ([64, 512, 8], [1, 512, 8], [32768, 8], {64: 1}, [512, 8]),
        ([32768, 8], [512, 8], [64, 512, 8], {64: 1}, [1, 512, 8]),
        ([64, 512], [64, 256], [64, 8, 64], {512: 256}, [64, 4, 64]),
        ([64, 512], [1, 512], [64, -1], {64: 1}, [1, -1]),
        ([4], [2], [4, 1], {4: 2}, [2, 1]),
        ([4, 1], [2, 1], [4], {4: 2}, [2]),
        ([6], [5], [2, 3], {6: 5}, [1, 5]),
        ([6], [6], [4, 2], {}, None),
        ([0], [0], [0, 2], {}, None),
    ):
        assert viewed(old, new, wanted, sizes) == result


@given(st.integers(2, 5000))
def test_ladder_is_short_and_below(old: int) -> None:
    found = ladder(old)
    assert found[0] == 1 and all(0 < size < old for size in found) and old - 1 in found
    assert len(found) == len(set(found)) <= 40


@pytest.mark.parametrize(
    ("fails", "expected"),
    [
        (lambda n, m: n % 16 != 0 and n > 16, (17, 1)),
        (lambda n, m: n % 8 == 7, (7, 1)),
        (lambda n, m: n > 100, (101, 1)),
        (lambda n, m: n > 30 and m % 4 == 3, (31, 3)),
        (lambda n, m: m >= 13, (1, 13)),
        (lambda n, m: n % 16 == 0, (16, 1)),
        (lambda n, m: True, (1, 1)),
    ],
)
def test_smallest_size_that_fails(fails: Any, expected: Any) -> None:
    inputs = [torch.randn(1008 if expected[0] == 16 else 407, 31)]
    graph = torch.fx.symbolic_trace(lambda x: x.view(x.shape[0], -1).sin())
    done = reduce_case(graph, inputs, lambda g, v: fails(*v[0].shape), passes=[dims.DIMS])
    assert shapes(done.inputs) == [expected]
    assert done.calls < 150


def test_sizes_in_proportion() -> None:
    def f(x: Any, w: Any) -> Any:
        q, k, v = (x @ w).split(24, -1)
        a = (q.view(4, 6, 8, 3) + k.view(4, 6, 8, 3)).transpose(1, 2)
        return a.transpose(1, 2).reshape(4, 6, 24) * v

    graph, inputs = captured(f, torch.randn(4, 6, 24), torch.randn(24, 72))
    done = reduce_case(graph, inputs, lambda g, v: "split" in targets(g), passes=[dims.DIMS])
    assert shapes(done.inputs) == [(1, 1, 1), (1, 3)]
    assert done.calls <= 12
    tail = reduce_case(graph, inputs, lambda g, v: v[0].shape[-1] > 8, passes=[dims.DIMS])
    assert shapes(tail.inputs)[0] == (1, 1, 9)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 24), st.integers(1, 24), st.integers(1, 4), st.integers(1, 8), st.data())
def test_any_proposal_keeps_the_contract(batch: int, seq: int, heads: int, width: int, more: st.DataObject) -> None:
    def f(x: Any, w: Any) -> Any:
        y = aten.mm.default(aten.view.default(x, [batch * seq, heads * width]), w)
        y = aten.permute.default(aten.view.default(y, [batch, seq, heads, width]), [0, 2, 1, 3])
        y = aten.view.default(aten.clone.default(y, memory_format=torch.contiguous_format), [batch * heads, seq, width])
        return aten.bmm.default(y, aten.transpose.int(y, 1, 2))

    inputs = [torch.randn(batch, seq, heads * width), torch.randn(heads * width, heads * width)]
    graph = make_fx(f)(*inputs)
    proposals = [edit for _, edit in zip(range(6), dims.DIMS.proposals(graph, inputs), strict=False)]
    if proposals:
        check_edit(more.draw(st.sampled_from(proposals)), graph, inputs)
