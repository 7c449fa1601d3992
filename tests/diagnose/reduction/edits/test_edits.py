"""Edits of what goes in (dtypes, values, layouts, flags, numbers, how many), of outputs, dead calls and branches."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reduction.edits.edit_driver import captured, check_edit, reduce_case, refused, run, shapes, targets
from torch._higher_order_ops.while_loop import while_loop
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.diagnose.reduction import edits
from graphprobe.diagnose.reduction.edits import NotApplicable, outputs, values
from graphprobe.diagnose.reduction.edits import inputs as of_inputs
from graphprobe.diagnose.reduction.edits.inputs import Contiguous, DropGrad, DropInput, Lift, Merge, Unshare
from graphprobe.diagnose.reduction.edits.measure import value_rank
from graphprobe.diagnose.reduction.edits.outputs import DropCalls, InlineBranch, KeepOutputs
from graphprobe.diagnose.reduction.edits.values import FILLS, Cast, Fill, FoldNumber, InlineNumber, SetScalar

aten = torch.ops.aten


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(5, dtype=torch.float64))
        self.register_buffer("count", torch.ones(5, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        return (x * self.weight + self.count * self.weight).to(torch.float64)


def test_cast() -> None:
    graph, inputs = torch.fx.symbolic_trace(Scale()), [torch.randn(3, 5, dtype=torch.float64)]
    proposals = list(values.DTYPES.proposals(graph, inputs))
    assert proposals[0] == Cast("float64", "float32", literals=True)
    made, out = check_edit(proposals[0], graph, inputs)
    assert out[0].dtype == made.weight.dtype == made.count.dtype == run(made, out).dtype == torch.float32
    made, out = check_edit(proposals[1], graph, inputs)
    assert run(made, out).dtype == torch.float64
    assert proposals[2].inputs == (0,)
    half = [torch.randn(4, 4).bfloat16(), torch.randn(4, 4).bfloat16()]
    graph = make_fx(lambda x, y: x @ y)(*half)
    refused(Cast("bfloat16", "float32", inputs=(1,)), graph, half, why="dtype")
    refused(Cast("bfloat16", "float32"), graph, [half[0], half[0]], why="shares")
    inputs = [torch.randn(4, dtype=torch.float64), torch.randn(4).bfloat16(), torch.arange(4, dtype=torch.int32)]
    graph = make_fx(lambda x, y, z: (x + y, z + 1))(*inputs)
    done = reduce_case(graph, inputs, lambda g, v: v[1].dtype == torch.bfloat16, passes=[values.DTYPES])
    assert [v.dtype for v in done.inputs] == [torch.float32, torch.bfloat16, torch.int64]


@pytest.mark.parametrize("kind", FILLS)
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
        assert value_rank(made) <= (FILLS[kind] if not dtype.is_complex else max(FILLS[kind], 3))


def test_fill_keeps_layout_and_range() -> None:
    base = torch.randn(4, 6)
    inputs = [torch.randn(6, 4).t(), torch.randn(6).expand(4, 6), base, base[:, 1:], torch.tensor([2, 7, 5])]
    graph = make_fx(lambda a, b, c, d, e: (a + b + c).sum() + d.sum() + e.sum())(*inputs)
    _, out = check_edit(Fill((0, 1, 2, 4), "small"), graph, inputs)
    assert [v.stride() for v in out] == [v.stride() for v in inputs]
    assert torch.equal(out[2][:, 1:], out[3])
    assert int(out[4].min()) >= 0 and int(out[4].max()) <= 7
    assert out[0].flatten()[:6].tolist() == [1, 2, 3, 4, 5, 1]
    # Ones would be no index of a table of one row.
    inputs = [torch.randn(1, 3), torch.tensor([0, 0])]
    graph = make_fx(lambda t, i: aten.embedding.default(t, i))(*inputs)
    assert Fill((1,), "ones").apply(graph, inputs)[1][1].tolist() == [0, 0]


def test_values_end_as_plain_as_the_fault_allows() -> None:
    torch.manual_seed(1)
    inputs = [torch.randn(40) + 3, torch.randn(40)]
    graph = make_fx(lambda x, y: x + y)(*inputs)
    for fails, ranks in (
        (lambda g, v: True, [0]),
        (lambda g, v: float(v[0].sum()) > 100, [2]),
        (lambda g, v: len(v[0].unique()) > 12, [5, 6]),
    ):
        done = reduce_case(graph, inputs, fails, passes=[values.VALUES])
        assert value_rank(done.inputs[0]) in ranks
        assert value_rank(done.inputs[1]) == 0
        assert done.calls < 40


def test_first_value_that_is_not_finite_is_kept() -> None:
    x = torch.randn(3, 4)
    x[1, 2], x[2, 0] = math.nan, math.inf
    done = reduce_case(
        make_fx(lambda x: x.exp())(x), [x], lambda g, v: not bool(v[0].isfinite().all()), passes=[values.VALUES]
    )
    assert done.inputs[0].isnan().nonzero().tolist() == [[1, 2]]
    assert int(torch.count_nonzero(done.inputs[0])) == 1


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_subnormal=False), min_size=1, max_size=12),
    st.lists(st.integers(-300, 300), min_size=1, max_size=5),
    st.data(),
)
def test_values_always_get_simpler(data: list[float], more: list[int], pick: st.DataObject) -> None:
    inputs = [torch.tensor(data, dtype=torch.float32), torch.tensor(more)]
    graph = torch.fx.symbolic_trace(lambda x, y: (x + 1, y))
    for a_pass in (values.VALUES, values.DTYPES):
        for edit in list(a_pass.proposals(graph, inputs))[:: pick.draw(st.integers(1, 5))]:
            check_edit(edit, graph, inputs)


def test_constants_become_zero_or_one() -> None:
    graph = make_fx(lambda x: aten.native_layer_norm.default(x, [4], None, None, 1e-5)[0] * 2.5 + 3)(torch.randn(2, 4))
    done = reduce_case(graph, [torch.randn(2, 4)], lambda g, v: True, passes=[values.SCALARS])
    text = str(done.graph.graph)
    assert "2.5" not in text and "1e-05" not in text and "3" in text
    check_edit(SetScalar("mul", "args.1", 1.0), graph, [torch.randn(2, 4)])
    refused(SetScalar("add", "args.1", 1.0), graph, [torch.randn(2, 4)])


def test_layouts_and_flags() -> None:
    base = torch.randn(4, 6)
    inputs = [torch.randn(6, 4).t(), torch.randn(6).expand(4, 6), base, base[:, :5], torch.randn(50)[2:26].view(4, 6)]
    graph = make_fx(lambda a, b, c, d, e: (a + b + c + e).sum() + d.sum())(*inputs)
    refused(Contiguous((3,)), graph, inputs, why="shares")
    _, out = check_edit(Unshare((3,)), graph, inputs)
    assert torch.equal(out[3], inputs[3])
    done = reduce_case(graph, inputs, lambda g, v: True, passes=[of_inputs.STRIDES])
    assert all(v.is_contiguous() and v.storage_offset() == 0 for v in done.inputs)
    assert all(torch.equal(a, b) for a, b in zip(inputs, done.inputs, strict=True))
    shared = reduce_case(graph, inputs, lambda g, v: v[2].data_ptr() == v[3].data_ptr(), passes=[of_inputs.STRIDES])
    assert [v.is_contiguous() for v in shared.inputs] == [True, True, True, False, True]
    inputs = [torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True), torch.randn(3)]
    graph = torch.fx.symbolic_trace(lambda a, b, c: a + b + c)
    done = reduce_case(graph, inputs, lambda g, v: v[1].requires_grad, passes=[of_inputs.GRADIENTS])
    assert [v.requires_grad for v in done.inputs] == [False, True, False]
    check_edit(DropGrad((0, 1)), graph, inputs)


def test_numbers_become_constants() -> None:
    graph, inputs = captured(lambda x: x.view(x.shape[0] * x.shape[1]) + x.shape[1], torch.randn(12, 7), dynamic=True)
    assert [v for v in inputs if isinstance(v, int)]
    expected = run(graph, inputs)[0]
    refused(InlineNumber((0,), (5,)), graph, inputs)
    done = reduce_case(graph, inputs, lambda g, v: True, passes=[values.STATIC])
    assert all(isinstance(v, torch.Tensor) for v in done.inputs)
    assert torch.equal(run(done.graph, done.inputs)[0], expected)
    assert targets(done.graph) == ["view", targets(done.graph)[1]]
    assert done.calls <= 2
    # So do sizes that are computed.
    graph, inputs = torch.fx.symbolic_trace(lambda x: x.view(x.size(0) * 2, -1)), [torch.randn(4, 6)]
    names = [n.name for n in graph.graph.nodes if n.op.startswith("call")][:2]
    made, out = check_edit(FoldNumber(tuple(names), (4, 8)), graph, inputs)
    assert targets(made) == ["view"]
    assert run(made, out).shape == (8, 3)
    refused(FoldNumber((names[0],), (5,)), graph, inputs)


def test_inputs_that_look_the_same() -> None:
    inputs = [torch.randn(3), torch.randn(3), torch.randn(3).double(), torch.randn(3), torch.randn(2)]
    graph = torch.fx.symbolic_trace(lambda a, b, c, d, e: a * b + c + d)
    for edit in (Merge(0, 2), DropInput((0,))):
        refused(edit, graph, inputs)
    made, out = check_edit(Merge(0, 1), graph, inputs)
    assert torch.equal(run(made, out), inputs[0] * inputs[0] + inputs[2] + inputs[3])
    done = reduce_case(graph, inputs, lambda g, v: True, passes=[of_inputs.UNUSED, of_inputs.MERGE])
    assert shapes(done.inputs) == [(3,), (3,)]
    assert not reduce_case(graph, inputs, lambda g, v: len(v) == 5, passes=[of_inputs.UNUSED, of_inputs.MERGE]).accepted


def test_attributes_become_inputs() -> None:
    graph, inputs = torch.fx.symbolic_trace(Scale()), [torch.randn(3, 5, dtype=torch.float64)]
    made, out = check_edit(Lift(("weight", "count")), graph, inputs)
    assert torch.equal(run(made, out), run(graph, inputs))
    assert [v.requires_grad for v in out] == [False, True, False]
    assert not made.state_dict()
    assert [n.op for n in made.graph.nodes][:3] == ["placeholder"] * 3
    assert next(of_inputs.ATTRIBUTES.proposals(graph, inputs)) == Lift(("weight", "count"))
    refused(Lift(("bias",)), graph, inputs)
    lone = torch.fx.symbolic_trace(type("Lone", (Scale,), {"forward": lambda self: self.weight.sin()})())
    made, out = check_edit(Lift(("weight",)), lone, [])
    assert shapes(out) == [(5,)]


def test_a_whole_case_ends_trivial() -> None:
    graph, inputs = torch.fx.symbolic_trace(Scale()), [torch.randn(3, 5, dtype=torch.float64).t().contiguous().t()]
    done = reduce_case(graph, inputs, lambda g, v: len(targets(g)) == len(targets(graph)))
    assert shapes(done.inputs) == [(1, 1), (1,)]  # not one shape, so they stay two
    size = edits.size_of(done.graph, done.inputs)
    assert size.elements == 2
    assert not any((size.attributes, size.large_dims, size.dtypes, size.strides, size.values))
    assert done.calls < 20
    assert reduce_case(graph, inputs, lambda g, v: False).accepted == []


def test_outputs_are_dropped() -> None:
    graph = make_fx(lambda x: tuple(x + i for i in range(20)))(torch.randn(3))
    names = [n.name for n in graph.graph.nodes if n.op == "call_function"]

    def fails(graph: Any, _: Any) -> bool:
        return {names[3], names[17]} <= {n.name for n in graph.graph.find_nodes(op="output")[0].args[0]}

    done = reduce_case(graph, [torch.randn(3)], fails, passes=[outputs.OUTPUTS, outputs.DEAD])
    assert len(targets(done.graph)) == len(run(done.graph, done.inputs)) == 2
    assert done.calls < 80
    for outside in ((), (20,)):
        refused(KeepOutputs(outside), graph, [torch.randn(3)])
    # None goes, and one output stays.
    graph = torch.fx.symbolic_trace(lambda x: (None, x + 1, None))
    made, _ = check_edit(KeepOutputs((1,)), graph, [torch.randn(3)])
    assert isinstance(run(made, [torch.randn(3)]), tuple)
    assert not list(outputs.OUTPUTS.proposals(made, [torch.randn(3)]))


def test_dead_calls_go_where_the_fault_lets_them() -> None:
    def f(x: Any) -> Any:
        a = x.sin()
        a.cos()
        x.exp().log()
        y = x.clone()
        y.add_(1)
        return x + 1

    graph = torch.fx.symbolic_trace(f)
    done = reduce_case(graph, [torch.randn(3)], lambda g, v: True, passes=[outputs.DEAD])
    assert targets(done.graph) == ["clone", "add_", "<built-in function add>"]
    done = reduce_case(graph, [torch.randn(3)], lambda g, v: "exp" in targets(g), passes=[outputs.DEAD])
    assert targets(done.graph)[0] == "exp" and "log" not in targets(done.graph)
    refused(DropCalls(("sin",)), graph, [torch.randn(3)], why="is used")
    check_edit(DropCalls(("sin", "cos")), graph, [torch.randn(3)])


def mixed(x: Any) -> Any:
    with torch.autocast("cpu"):
        return x @ x


def loop(x: Any) -> Any:
    return while_loop(lambda v: v.sum() < 9, lambda v: (v + 1,), (x,))[0]


def test_a_context_and_a_loop_are_left_alone() -> None:
    for fn, x, a_pass in [(mixed, torch.ones(4, 4), outputs.DEAD), (loop, torch.zeros(3), outputs.GRAPHS)]:
        assert not list(a_pass.proposals(*captured(fn, x)))


def test_the_branch_that_is_taken() -> None:
    scale = torch.nn.Parameter(torch.tensor(2.0))

    def f(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda v: v.sin() * scale, lambda v: v.cos(), (x,)) + 1

    inputs = [torch.rand(3, 4) + 1]
    graph, values = captured(f, *inputs)
    proposals = list(outputs.GRAPHS.proposals(graph, values))
    assert [edit.branch for edit in proposals] == [0, 1]
    made, out = check_edit(proposals[0], graph, values)
    assert torch.allclose(run(made, out)[0], f(inputs[0]))
    assert "sin" in targets(made) and edits.size_of(made, out).graphs == 0
    values = [-v if v.ndim == 2 else v for v in values]
    assert next(outputs.GRAPHS.proposals(graph, values)).branch == 1


def test_dynamic_branches_and_nested_ones() -> None:
    def f(x: Any) -> Any:
        def inner(v: Any) -> Any:
            return torch.cond(v.max() > 1, lambda w: w.exp(), lambda w: w.neg(), (v,))

        return torch.cond(x.sum() > 0, inner, lambda v: v.cos(), (x,))

    x = torch.rand(3, 4) + 1
    for dynamic in (False, True):
        graph, values = captured(f, x, dynamic=dynamic)
        done = reduce_case(graph, values, lambda g, v: torch.allclose(run(g, v)[0], f(x)), passes=[outputs.GRAPHS])
        assert edits.size_of(done.graph, done.inputs).graphs == 0
        assert "exp" in targets(done.graph)
        small = reduce_case(graph, values, lambda g, v: "exp" in str(g.print_readable(print_output=False)))
        assert targets(small.graph).count("exp") == 1
        assert all(v.numel() == 1 for v in small.inputs)


def test_invoked_and_wrapped_graphs() -> None:
    region = torch.compiler.nested_compile_region(lambda x, y: (x.sin() @ y, x + y))

    def f(x: Any, y: Any, z: Any) -> Any:
        a, b = region(x, y)
        return region(a, b)[0] + torch.utils.checkpoint.checkpoint(lambda v: v.cos(), z, use_reentrant=False)

    inputs = [torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)]
    graph, values = captured(f, *inputs)
    assert edits.size_of(graph, values).graphs == 3
    done = reduce_case(graph, values, lambda g, v: torch.allclose(run(g, v)[0], f(*inputs)), passes=[outputs.GRAPHS])
    assert edits.size_of(done.graph, done.inputs).graphs == 0
    assert len(done.accepted) == 3
    refused(InlineBranch("nothing"), graph, values)
