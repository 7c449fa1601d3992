"""Graphs run node by node: every value as it was when it was made, and the caller's tensors as they were before."""

import collections
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Node, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.engine.interpret import as_copied, copied, copied_together, flat_outputs, is_functional, run_graph
from graphprobe.engine.value_file import ValueFile

Pair = collections.namedtuple("Pair", "a b")


def in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.ops.aten.mul.Tensor(x, 2.0)
    torch.ops.aten.add_.Tensor(z, 1.0)
    torch.ops.aten.copy_.default(y, z)
    return torch.ops.aten.sum.default(z)


@pytest.mark.parametrize("fn", [in_place, lambda x, y: (torch.stack([x, y]).unbind(), x.t() * 2)])
def test_large_values_that_are_kept_in_a_file_are_the_same(fn: Any) -> None:
    gm, file = make_fx(fn)(torch.ones(150, 200), torch.ones(150, 200)), ValueFile()
    inputs = [torch.randn(150, 200), torch.randn(150, 200)]
    plain, kept = run_graph(gm, inputs), run_graph(gm, inputs, file=file)
    assert plain.values.keys() == kept.values.keys() and file.size >= 2 * inputs[0].nbytes
    for name, value in plain.values.items():
        for a, b in zip(flat_outputs(value), flat_outputs(kept.values[name]), strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride(), name


def test_outputs_values_and_the_node_that_raises() -> None:
    gm = symbolic_trace(lambda x: (torch.relu(x) * 2, x.sum()))
    run = run_graph(gm, [torch.tensor([-1.0, 2.0])])
    assert run.failed is None
    assert [t.tolist() for t in run.outputs] == [[0.0, 4.0], 1.0]
    values = {name: value.tolist() for name, value in run.values.items()}
    assert values == {"x": [-1.0, 2.0], "relu": [0.0, 2.0], "mul": [0.0, 4.0], "sum_1": 1.0}
    gm = symbolic_trace(lambda x, y: torch.relu(torch.mm(x, y)) + 1)
    run = run_graph(gm, [torch.ones(2, 3), torch.ones(2, 3)])
    assert run.failed is not None
    node, error = run.failed
    assert (node.name, type(error)) == ("mm", RuntimeError)
    assert "mat1 and mat2" in str(error)
    assert run.outputs is None
    assert sorted(run.values) == ["x", "y"]
    assert run_graph(gm, [torch.ones(2, 3), torch.ones(3, 2)]).failed is None


def test_inputs_of_a_run() -> None:
    gm = make_fx(in_place)(torch.ones(2), torch.zeros(2))
    x, y = torch.tensor([1.0, 2.0]), torch.zeros(2)
    run = run_graph(gm, [x, y])
    assert run.values["mul"].tolist() == [2.0, 4.0], "before the addition in place"
    assert run.values["add_"].tolist() == [3.0, 5.0]
    assert [t.tolist() for t in run.inputs] == [[1.0, 2.0], [3.0, 5.0]]
    assert (x.tolist(), y.tolist()) == ([1.0, 2.0], [0.0, 0.0])
    assert run_graph(gm, [x, y]).inputs[1].tolist() == [3.0, 5.0], "a run does not see the one before"
    gm = symbolic_trace(lambda x, y: (x.add_(1), y * 2)[1])
    base = torch.zeros(4)
    run = run_graph(gm, [base[:2], base[1:3]])
    assert run.outputs.tolist() == [2.0, 0.0]
    assert base.tolist() == [0.0] * 4


def test_copies() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    values = [base.t(), base[1:, 1], base.view(torch.int32), torch.ones(1).expand(3), torch.zeros(0, 2), 7, "text"]
    made = copied_together(values)
    assert made[5:] == values[5:]
    for old, new in zip(values[:5], made[:5], strict=True):
        assert (old.dtype, old.shape, old.stride()) == (new.dtype, new.shape, new.stride())
        assert old.storage_offset() == new.storage_offset() and torch.equal(old, new)
    made[0][1, 1] = -1.0
    assert made[1][0] == made[2].view(torch.float32)[1, 1] == -1.0, "the copies share memory"
    assert base[1, 1] == 5.0
    x = torch.tensor([1 + 2j, 3 - 1j])
    values = [x.conj(), x.conj().imag, x.real]
    made = copied_together(values)
    assert [t.tolist() for t in made] == [t.tolist() for t in values]
    assert [t.is_conj() for t in made] == [True, False, False]
    assert [t.is_neg() for t in made] == [False, True, False]
    made = copied_together([torch.zeros(0), torch.zeros(0, dtype=torch.int64)])
    assert [t.dtype for t in made] == [torch.float32, torch.int64]
    sparse, meta = torch.eye(2).to_sparse(), torch.empty(2, device="meta")
    assert [a is b for a, b in zip(copied_together([sparse, meta, None]), (sparse, meta, None), strict=True)] == [
        True
    ] * 3
    x = torch.ones(2, requires_grad=True)
    made = copied([x, (x * 2, 3)])
    assert isinstance(made, list) and isinstance(made[1], tuple)
    assert not made[0].requires_grad and made[0].data_ptr() != x.data_ptr()
    pair = Pair(x, 1)
    assert copied(pair) is pair and copied(torch.ones(2, 3).t()).stride() == (1, 3)


@pytest.mark.parametrize("op", ["_unsafe_index", "index"])
def test_only_an_index_that_is_checked_raises(op: str) -> None:
    """`_unsafe_index` promises no check; where it has one, the kernels still need none."""
    traced = make_fx(lambda x, i: getattr(torch.ops.aten, op)(x, [i]) + 1, tracing_mode="fake")
    graph = traced(torch.zeros(5, 2), torch.tensor([0, 4]))
    run = run_graph(graph, [torch.zeros(5, 2), torch.tensor([0, 7])])
    if op == "index":
        assert run.failed is not None and isinstance(run.failed[1], IndexError)
    else:
        assert run.failed is None and torch.equal(run.outputs, torch.ones(2, 2))


def test_a_watch_sees_arguments_before_the_call_changes_them_and_may_interrupt() -> None:
    seen: list[tuple[str, list[float]]] = []

    def watch(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert kwargs == {}
        seen.append((node.name, args[0].tolist()))
        if node.name == "relu":
            raise KeyboardInterrupt

    gm = symbolic_trace(lambda x: torch.relu(x.add_(1)))
    with pytest.raises(KeyboardInterrupt):
        run_graph(gm, [torch.tensor([-3.0])], watch=watch)
    assert seen == [("add_", [-3.0]), ("relu", [-2.0])]


def test_a_run_leaves_no_trace() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    run = run_graph(symbolic_trace(torch.nn.ReLU()), [x], keep=False)
    assert (run.values, run.outputs.tolist()) == ({}, [1.0, 2.0])
    assert not run.outputs.requires_grad and x.grad is None
    gm = symbolic_trace(lambda x: torch.dropout(x, 0.5, True))
    before = torch.get_rng_state()
    first, second = (run_graph(gm, [torch.ones(64)]).outputs for _ in range(2))
    assert torch.equal(first, second) and 0 < int((first == 0).sum()) < 64
    assert torch.equal(torch.get_rng_state(), before)


def test_symbolic_numbers_become_their_hints() -> None:
    sizes: list[Any] = []

    def backend(gm: GraphModule, inputs: Any) -> Any:
        sizes.append([v for v in copied_together(inputs) if not isinstance(v, torch.Tensor)])
        return gm.forward

    torch.compile(lambda x: x * 2, backend=backend, dynamic=True)(torch.ones(5))
    assert sizes == [[5]]
    assert type(sizes[0][0]) is int


def pure(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [
        torch.ops.aten.mm.default(x.t(), y),
        torch.ops.aten.slice.Tensor(x, 0, 1, 3),
        torch.ops.aten.relu.default(y),
    ]


def test_a_graph_that_writes_to_nothing_runs_on_the_inputs_themselves() -> None:
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    gm = make_fx(pure)(x, y)
    assert is_functional(gm)
    run = run_graph(gm, [x, y])
    name = {n.target: n.name for n in gm.graph.nodes if n.op == "call_function"}
    turned, cut = run.values[name[torch.ops.aten.t.default]], run.values[name[torch.ops.aten.slice.Tensor]]
    assert run.values["x_1"].data_ptr() == x.data_ptr() == turned.data_ptr(), "and keeps no copies of them"
    assert turned.stride() == copied(x.t()).stride()
    assert cut.data_ptr() != x[1:].data_ptr() and cut.untyped_storage().nbytes() == cut.nbytes
    assert torch.equal(cut, x[1:3]), "a part of a tensor is a tensor of its own, as in other graphs"


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.ops.aten.add_.Tensor(x, 1),
        lambda x: torch.add(x, 1),
        lambda x: x.relu(),
        lambda x: torch.ops.inductor._reinterpret_tensor(x, [2], [1], 0),
    ],
    ids=["in place", "no operator", "method", "not of torch"],
)
def test_what_may_write_is_no_function(fn: Any) -> None:
    assert not is_functional(symbolic_trace(fn))


def test_what_takes_the_place_of_a_copy_looks_like_one() -> None:
    for value in [
        torch.randn(3, 4).t(),
        torch.randn(2, 3, 4).permute(2, 0, 1),
        torch.randn(5).expand(3, 5),
        torch.randn(6)[::2],
    ]:
        copy, same = copied(value), as_copied(value)
        assert (same.stride(), same.storage_offset()) == (copy.stride(), copy.storage_offset())
        assert torch.equal(same, copy) and same.untyped_storage().nbytes() == copy.untyped_storage().nbytes()
