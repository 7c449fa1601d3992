"""Edits of what goes in: dtypes, values, layouts, flags, numbers, how many."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reduction.edits.edit_driver import captured, check_edit, reduce_case, run, shapes, targets
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.diagnose.reduction import edits
from graphprobe.diagnose.reduction.edits import NotApplicable, constants, dtypes, values
from graphprobe.diagnose.reduction.edits import inputs as of_inputs
from graphprobe.diagnose.reduction.edits.constants import FoldNumber, InlineNumber, SetScalar
from graphprobe.diagnose.reduction.edits.dtypes import Cast
from graphprobe.diagnose.reduction.edits.inputs import Contiguous, DropGrad, DropInput, Lift, Merge, Unshare
from graphprobe.diagnose.reduction.edits.measure import value_rank
from graphprobe.diagnose.reduction.edits.values import KINDS, Fill

aten = torch.ops.aten


def never(_graph: Any, _inputs: Any) -> bool:
    return False


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(5, dtype=torch.float64))
        self.register_buffer("count", torch.ones(5, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        return (x * self.weight + self.count * self.weight).to(torch.float64)


def test_cast_all_or_one() -> None:
    graph, inputs = torch.fx.symbolic_trace(Scale()), [torch.randn(3, 5, dtype=torch.float64)]
    proposals = list(dtypes.PASS.proposals(graph, inputs))
    assert proposals[0] == Cast("float64", "float32", literals=True)
    made, out = check_edit(proposals[0], graph, inputs)
    assert out[0].dtype == made.weight.dtype == made.count.dtype == run(made, out).dtype == torch.float32
    made, out = check_edit(proposals[1], graph, inputs)
    assert run(made, out).dtype == torch.float64
    assert proposals[2].inputs == (0,)
    half = [torch.randn(4, 4).bfloat16(), torch.randn(4, 4).bfloat16()]
    graph = make_fx(lambda x, y: x @ y)(*half)
    with pytest.raises(NotApplicable, match="dtype"):
        Cast("bfloat16", "float32", inputs=(1,)).apply(graph, half)
    with pytest.raises(NotApplicable, match="shares"):
        Cast("bfloat16", "float32").apply(graph, [half[0], half[0]])


def test_cast_stops_where_the_fault_needs_the_dtype() -> None:
    graph = make_fx(lambda x, y, z: (x + y, z + 1))(
        *(args := [torch.randn(4, dtype=torch.float64), torch.randn(4).bfloat16(), torch.arange(4, dtype=torch.int32)])
    )
    done = reduce_case(graph, args, lambda g, v: v[1].dtype == torch.bfloat16, passes=[dtypes.PASS])
    assert [v.dtype for v in done.inputs] == [torch.float32, torch.bfloat16, torch.int64]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_fill_has_the_rank_it_promises(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensor = torch.randint(0, 99, (6, 7)).to(dtype) if not dtype.is_floating_point else torch.randn(6, 7).to(dtype)
    tensor = tensor + 0.1j if dtype.is_complex else tensor
    graph = torch.fx.symbolic_trace(lambda x: x.clone())
    try:
        _, (made,) = check_edit(Fill((0,), kind), graph, [tensor], simpler=False)
    except NotApplicable:
        assert dtype.is_complex
        return
    assert (made.dtype, made.shape) == (tensor.dtype, tensor.shape)
    if dtype is not torch.bool and not (kind.startswith("bits") and not dtype.is_floating_point):
        assert value_rank(made) <= (KINDS[kind] if not dtype.is_complex else max(KINDS[kind], 3))


def test_fill_keeps_layout_and_range() -> None:
    base = torch.randn(4, 6)
    inputs = [torch.randn(6, 4).t(), torch.randn(6).expand(4, 6), base, base[:, 1:], torch.tensor([2, 7, 5])]
    graph = make_fx(lambda a, b, c, d, e: (a + b + c).sum() + d.sum() + e.sum())(*inputs)
    _, out = check_edit(Fill((0, 1, 2, 4), "small"), graph, inputs)
    assert [v.stride() for v in out] == [v.stride() for v in inputs]
    assert torch.equal(out[2][:, 1:], out[3])
    assert int(out[4].min()) >= 0 and int(out[4].max()) <= 7
    assert out[0].flatten()[:6].tolist() == [1, 2, 3, 4, 5, 1]


def test_fill_that_makes_an_index_invalid_does_not_fit() -> None:
    inputs = [torch.randn(1, 3), torch.tensor([0, 0])]
    graph = make_fx(lambda t, i: aten.embedding.default(t, i))(*inputs)
    _, out = Fill((1,), "ones").apply(graph, inputs)
    assert out[1].tolist() == [0, 0]


def test_values_end_as_plain_as_the_fault_allows() -> None:
    torch.manual_seed(1)
    graph = make_fx(lambda x, y: x + y)(*(args := [torch.randn(40) + 3, torch.randn(40)]))
    everything = reduce_case(graph, args, lambda g, v: True, passes=[values.PASS])
    assert [value_rank(v) for v in everything.inputs] == [0, 0]
    done = reduce_case(graph, args, lambda g, v: float(v[0].sum()) > 100, passes=[values.PASS])
    assert [value_rank(v) for v in done.inputs] == [2, 0]
    assert done.calls < 40
    distinct = reduce_case(graph, args, lambda g, v: len(v[0].unique()) > 12, passes=[values.PASS])
    assert value_rank(distinct.inputs[0]) in (5, 6)
    assert value_rank(distinct.inputs[1]) == 0


def test_first_value_that_is_not_finite_is_kept() -> None:
    x = torch.randn(3, 4)
    x[1, 2], x[2, 0] = math.nan, math.inf
    graph = make_fx(lambda x: x.exp())(x)
    done = reduce_case(graph, [x], lambda g, v: not bool(v[0].isfinite().all()), passes=[values.PASS])
    assert done.inputs[0].isnan().nonzero().tolist() == [[1, 2]]
    assert int(torch.count_nonzero(done.inputs[0])) == 1


@settings(max_examples=10, deadline=None)
@given(
    data=st.lists(st.floats(width=32, allow_subnormal=False), min_size=1, max_size=12),
    more=st.lists(st.integers(-300, 300), min_size=1, max_size=5),
    pick=st.data(),
)
def test_values_always_get_simpler(data: list[float], more: list[int], pick: st.DataObject) -> None:
    inputs = [torch.tensor(data, dtype=torch.float32), torch.tensor(more)]
    graph = torch.fx.symbolic_trace(lambda x, y: (x + 1, y))
    for a_pass in (values.PASS, dtypes.PASS):
        for edit in list(a_pass.proposals(graph, inputs))[:: pick.draw(st.integers(1, 5))]:
            check_edit(edit, graph, inputs)


def test_constants_become_zero_or_one() -> None:
    graph = make_fx(lambda x: aten.native_layer_norm.default(x, [4], None, None, 1e-5)[0] * 2.5 + 3)(torch.randn(2, 4))
    done = reduce_case(graph, [torch.randn(2, 4)], lambda g, v: True, passes=[constants.SCALARS])
    text = str(done.graph.graph)
    assert "2.5" not in text and "1e-05" not in text and "3" in text
    check_edit(SetScalar("mul", "args.1", 1.0), graph, [torch.randn(2, 4)])
    with pytest.raises(NotApplicable):
        SetScalar("add", "args.1", 1.0).apply(graph, [torch.randn(2, 4)])


def test_layouts() -> None:
    base = torch.randn(4, 6)
    inputs = [torch.randn(6, 4).t(), torch.randn(6).expand(4, 6), base, base[:, :5], torch.randn(50)[2:26].view(4, 6)]
    graph = make_fx(lambda a, b, c, d, e: (a + b + c + e).sum() + d.sum())(*inputs)
    with pytest.raises(NotApplicable, match="shares"):
        Contiguous((3,)).apply(graph, inputs)
    _, out = check_edit(Unshare((3,)), graph, inputs)
    assert torch.equal(out[3], inputs[3])
    done = reduce_case(graph, inputs, lambda g, v: True, passes=[of_inputs.STRIDES])
    assert all(v.is_contiguous() and v.storage_offset() == 0 for v in done.inputs)
    assert all(torch.equal(a, b) for a, b in zip(inputs, done.inputs, strict=True))
    shared = reduce_case(graph, inputs, lambda g, v: v[2].data_ptr() == v[3].data_ptr(), passes=[of_inputs.STRIDES])
    assert [v.is_contiguous() for v in shared.inputs] == [True, True, True, False, True]


def test_gradient_flags() -> None:
    inputs = [torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True), torch.randn(3)]
    graph = torch.fx.symbolic_trace(lambda a, b, c: a + b + c)
    done = reduce_case(graph, inputs, lambda g, v: v[1].requires_grad, passes=[of_inputs.GRADIENTS])
    assert [v.requires_grad for v in done.inputs] == [False, True, False]
    check_edit(DropGrad((0, 1)), graph, inputs)


def test_numbers_become_constants() -> None:
    graph, inputs = captured(lambda x: x.view(x.shape[0] * x.shape[1]) + x.shape[1], torch.randn(12, 7), dynamic=True)
    assert [v for v in inputs if isinstance(v, int)]
    expected = run(graph, inputs)[0]
    with pytest.raises(NotApplicable):
        InlineNumber((0,), (5,)).apply(graph, inputs)
    done = reduce_case(graph, inputs, lambda g, v: True, passes=[constants.STATIC])
    assert all(isinstance(v, torch.Tensor) for v in done.inputs)
    assert torch.equal(run(done.graph, done.inputs)[0], expected)
    assert targets(done.graph) == ["view", targets(done.graph)[1]]
    assert done.calls <= 2


def test_computed_sizes_become_constants() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x.view(x.size(0) * 2, -1))
    inputs = [torch.randn(4, 6)]
    names = [n.name for n in graph.graph.nodes if n.op.startswith("call")][:2]
    made, out = check_edit(FoldNumber(tuple(names), (4, 8)), graph, inputs)
    assert targets(made) == ["view"]
    assert run(made, out).shape == (8, 3)
    with pytest.raises(NotApplicable):
        FoldNumber((names[0],), (5,)).apply(graph, inputs)


def test_inputs_that_look_the_same() -> None:
    inputs = [torch.randn(3), torch.randn(3), torch.randn(3).double(), torch.randn(3), torch.randn(2)]
    graph = torch.fx.symbolic_trace(lambda a, b, c, d, e: a * b + c + d)
    with pytest.raises(NotApplicable):
        Merge(0, 2).apply(graph, inputs)
    with pytest.raises(NotApplicable):
        DropInput((0,)).apply(graph, inputs)
    made, out = check_edit(Merge(0, 1), graph, inputs)
    assert torch.equal(run(made, out), inputs[0] * inputs[0] + inputs[2] + inputs[3])
    done = reduce_case(graph, inputs, lambda g, v: True, passes=[of_inputs.UNUSED, of_inputs.MERGE])
    assert shapes(done.inputs) == [(3,), (3,)]
    both = reduce_case(graph, inputs, lambda g, v: len(v) == 5, passes=[of_inputs.UNUSED, of_inputs.MERGE])
    assert not both.accepted


def test_attributes_become_inputs() -> None:
    graph, inputs = torch.fx.symbolic_trace(Scale()), [torch.randn(3, 5, dtype=torch.float64)]
    made, out = check_edit(Lift(("weight", "count")), graph, inputs)
    assert torch.equal(run(made, out), run(graph, inputs))
    assert [v.requires_grad for v in out] == [False, True, False]
    assert not made.state_dict()
    assert [n.op for n in made.graph.nodes][:3] == ["placeholder"] * 3
    assert next(of_inputs.ATTRIBUTES.proposals(graph, inputs)) == Lift(("weight", "count"))
    with pytest.raises(NotApplicable):
        Lift(("bias",)).apply(graph, inputs)
    lone = torch.fx.symbolic_trace(type("Lone", (Scale,), {"forward": lambda self: self.weight.sin()})())
    made, out = check_edit(Lift(("weight",)), lone, [])
    assert shapes(out) == [(5,)]


def test_a_whole_case_ends_trivial() -> None:
    graph, inputs = torch.fx.symbolic_trace(Scale()), [torch.randn(3, 5, dtype=torch.float64).t().contiguous().t()]
    done = reduce_case(graph, inputs, lambda g, v: len(targets(g)) == len(targets(graph)))
    assert shapes(done.inputs) == [(1, 1), (1,)]  # not one shape, so they stay two
    size = edits.size_of(done.graph, done.inputs)
    assert (size.attributes, size.elements, size.large_dims, size.dtypes, size.strides, size.values) == (
        0,
        2,
        0,
        0,
        0,
        0,
    )
    assert done.calls < 20
    nothing = reduce_case(graph, inputs, never)
    assert nothing.accepted == []
