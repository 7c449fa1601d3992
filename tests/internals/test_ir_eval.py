"""The IR of many graphs evaluates to what the graphs compute; where the lowering is wrong, to something else.

Nothing is compiled here: the IR is evaluated in PyTorch.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._inductor import ir
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.replace_random import replace_random_passes
from torch._inductor.lowering import lowerings, to_dtype
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.errors import UnsupportedTorchError
from graphprobe.internals.ir import buffers
from graphprobe.internals.ir.evaluation import IrValues, evaluate_ir

aten = torch.ops.aten
F = torch.nn.functional


@pytest.fixture(autouse=True)
def not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where CI is set, torch refuses to lower an operator that has a decomposition: graphs here are made by hand."""
    monkeypatch.delenv("CI", raising=False)


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def ints(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def graph_of(function: Callable[..., Any], *args: Any, symbolic: bool = False) -> fx.GraphModule:
    mode = "symbolic" if symbolic else "fake"
    return make_fx(function, decomposition_table=select_decomp_table(), tracing_mode=mode)(*args)


def copies(args: Any) -> list[Any]:
    return [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]


def close(got: Any, want: Any, tolerance: float) -> bool:
    if not isinstance(want, Tensor):
        return bool(got == want)
    return got.shape == want.shape and torch.allclose(
        got.double(), want.double(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


def wrong(gm: fx.GraphModule, args: Any, values: IrValues, tolerance: float = 2e-5) -> list[str]:
    """Outputs of which the IR says something else than the graph."""
    outputs = gm(*copies(args))
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return [
        f"output {at}"
        for at, (got, want) in enumerate(zip(values.outputs, outputs, strict=True))
        if not close(got, want, tolerance)
    ]


def two_layer_transformer(x: Tensor, *weights: Tensor) -> Tensor:
    each = len(weights) // 2
    for at in range(2):
        qkv, out, up, down, scale, shift = weights[at * each : (at + 1) * each]
        h = F.layer_norm(x, x.shape[-1:], scale, shift)
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in (h @ qkv).chunk(3, -1))
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(
            torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), float("-inf")
        )
        x = x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) @ out
        x = x + F.gelu(F.layer_norm(x, x.shape[-1:], scale, shift) @ up) @ down
    return x.log_softmax(-1)


LAYER = [rand(8, 24), rand(8, 8), rand(8, 16), rand(16, 8), rand(8), rand(8) + 1]

CASES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "pointwise": (lambda x, y: torch.sigmoid(x) * y.exp() + x.floor(), [rand(4, 5), rand(5)]),
    "scalar": (lambda x: x * 2 + 1, [rand(1)[0]]),
    "softmax": (lambda x: torch.softmax(x, -1), [rand(4, 50)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (16,), w, b), [rand(4, 16), rand(16), rand(17)[1:]]),
    "welford": (lambda x: torch.var_mean(x, dim=1), [rand(4, 40)]),
    "two-step reductions": (lambda x: (x.sum(), x.std(), x.mean()), [rand(50, 700)]),
    "cumsum": (lambda x: x.cumsum(1), [rand(4, 33)]),
    "argmax": (lambda x: (x.argmax(1), x.argmin()), [rand(4, 33)]),
    "argmax of a transposed": (lambda x: (x.t().argmax(), x.amax(0)), [rand(5, 33)]),
    "max with nan": (lambda x: x.max(1), [torch.tensor([[1.0, float("nan"), 3.0], [0.0, 2.0, 2.0]])]),
    "sort": (lambda x: x.sort(1, descending=True), [rand(4, 9)]),
    "products": (lambda x: (x.prod(1), x.amax(0), x.logsumexp(1), x.norm()), [rand(3, 7)]),
    "scans": (lambda x: (x.cumprod(0), x.logcumsumexp(0)), [rand(7, 3)]),
    "index_put": (
        lambda x, i, v: torch.index_put(x, [i], v, accumulate=True),
        [rand(6, 3), torch.tensor([0, 2, 2, -1]), rand(4, 3)],
    ),
    "index_put by mask": (lambda x, m, v: torch.index_put(x, [m], v, accumulate=True), [rand(4), rand(4) > 9, rand(1)]),
    "embedding": (lambda w, i: F.embedding(i, w), [rand(6, 3), torch.tensor([[0, 2], [2, 5]])]),
    "gather": (lambda x, i: x.gather(1, i), [rand(4, 6), ints(0, 6, 4, 3)]),
    "scatter": (lambda x, i, v: x.scatter_add(1, i, v), [rand(4, 6), ints(0, 6, 4, 3), rand(4, 3)]),
    "scatter fallback": (lambda x, i, v: x.scatter_reduce(1, i, v, "prod"), [rand(4, 6), ints(0, 6, 4, 3), rand(4, 3)]),
    "cat": (lambda x, y: torch.cat([x.relu(), y + 1, x], 1), [rand(3, 4), rand(3, 2)]),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1).relu(), [rand(1, 3, 8, 8), rand(4, 3, 3, 3)]),
    "mm and addmm": (lambda x, y, b: torch.addmm(b, x, y).relu() @ y.t(), [rand(4, 8), rand(8, 5), rand(5)]),
    "bmm": (lambda x, y: torch.bmm(x, y) + torch.baddbmm(x, x, y), [rand(2, 4, 4), rand(2, 4, 4)]),
    "attention": (F.scaled_dot_product_attention, [rand(1, 2, 8, 16), rand(1, 2, 8, 16), rand(1, 2, 8, 16)]),
    "avg_pool": (lambda x: F.avg_pool2d(x, 3, 2, padding=1), [rand(1, 2, 8, 8)]),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, padding=1), [rand(1, 2, 8, 8)]),
    "avg_pool backward": (
        lambda g, x: aten.avg_pool2d_backward(g, x, [3, 3], [2, 2], [0, 0], False, True, None),
        [rand(1, 2, 3, 3), rand(1, 2, 8, 8)],
    ),
    "upsample": (
        lambda x: (F.interpolate(x, scale_factor=2, mode="bilinear"), F.interpolate(x, scale_factor=1.7)),
        [rand(1, 2, 5, 5)],
    ),
    "views": (lambda x: (x.t()[1:3] + 1, x.reshape(2, -1).unsqueeze(0), x[:, ::2]), [rand(4, 6)]),
    "views of results": (lambda x: ((x + 1)[1:], (x * 2).t(), torch.cat([x, x])[2:5]), [rand(4, 4)]),
    "strided inputs": (lambda x, y: x.sum(0) + y, [rand(6, 5).t(), rand(9)[3:9]]),
    "expanded input": (lambda x: x + 1, [rand(1, 4).expand(3, 4)]),
    "as_strided": (lambda x: torch.as_strided(x, (2, 3), (1, 2), 1) + 1, [rand(10)]),
    "roll, flip, tril": (lambda x: x.roll(2, 1).flip(0).tril(), [rand(5, 5)]),
    "bits as ints": (lambda x: (x + 1).view(torch.int32) + 1, [rand(5, 5)]),
    "pad": (lambda x: F.pad(x, (1, 2, -1, 3), value=2.5), [rand(4, 6)]),
    "bucketize": (
        lambda x, b: (torch.bucketize(x, b), torch.searchsorted(b, x, right=True)),
        [rand(10), torch.tensor([-1.0, 0.0, 0.5])],
    ),
    "ints": (
        lambda x, y: (x // y, x % y, x & y, x << 1, (x > y) & (y > 1), torch.div(x, y, rounding_mode="trunc"), x / y),
        [ints(-9, 9, 5), ints(1, 5, 5)],
    ),
    "bools": (lambda x, y: (x + y, x * y, x ^ y, x.any(), x.all(), x.sum()), [rand(8) > 0, rand(9)[1:] > 0]),
    "bools and numbers": (
        lambda x, i, m: (x * m, m + i, x.masked_fill(m, 0.0), torch.where(m, x, i), i == m, torch.logical_or(i, m)),
        [rand(6), ints(0, 3, 6), rand(7)[1:] > 0],
    ),
    "constant": (lambda x: x + torch.tensor([1.0, 2.0, 3.0]), [rand(3)]),
    "empty": (lambda x: (x.sum(0) + 1, x + 1), [rand(0, 3)]),
    "transformer": (two_layer_transformer, [rand(2, 6, 8), *LAYER, *LAYER]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_ir_says_what_the_graph_says(name: str) -> None:
    function, args = CASES[name]
    gm = graph_of(function, *args)
    before = copies(args)
    values = evaluate_ir(gm, args)
    assert (values.unsupported, values.dtypes, values.faults) == ([], [], [])
    assert values.outputs
    assert wrong(gm, args, values) == []
    assert all(close(a, b, 0.0) for a, b in zip(args, before, strict=True))
    found = {out.dtype for out in values.outputs if isinstance(out, Tensor) and out.is_floating_point()}
    assert found <= {torch.float32}


def test_inputs_that_the_graph_writes_to_are_given() -> None:
    args = [rand(3), rand(4)[1:]]
    values = evaluate_ir(graph_of(lambda x, y: x.add_(y), *args), args)
    assert list(values.mutated) == ["x_1"]
    assert torch.equal(values.mutated["x_1"], args[0] + args[1])


def test_strides_are_those_of_the_ir() -> None:
    args = [rand(1, 3, 4, 4).contiguous(memory_format=torch.channels_last)]
    (out,) = evaluate_ir(graph_of(lambda x: x + 1, *args), args).outputs
    assert isinstance(out, Tensor) and out.is_contiguous(memory_format=torch.channels_last)


def test_half_precision_is_computed_in_single_and_kept_in_half() -> None:
    args = [rand(4, 6).bfloat16(), rand(6, 4).t().bfloat16()]
    gm = graph_of(lambda x, y: torch.softmax(F.gelu(x * y + x), -1), *args)
    values = evaluate_ir(gm, args)
    assert isinstance(values.outputs[0], Tensor) and values.outputs[0].dtype == torch.bfloat16
    assert (wrong(gm, args, values, tolerance=2e-2), values.dtypes) == ([], [])


def test_symbolic_shapes() -> None:
    args = [rand(5, 7, 4), rand(3, 7, 4)]
    gm = graph_of(lambda x, y: (torch.cat([x, y]), F.avg_pool2d(x[None], 2), x.shape[1]), *args, symbolic=True)
    values = evaluate_ir(gm, args)
    assert (wrong(gm, args, values), values.dtypes, values.outputs[2]) == ([], [], 7)
    args = [rand(9)]  # sizes that depend on data
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        gm = graph_of(lambda x: (x[x > 0] * 2, x.sum() * x.argmax().item()), *args, symbolic=True)
        values = evaluate_ir(gm, args)
    assert (wrong(gm, args, values), values.unsupported) == ([], [])


def test_a_graph_without_fake_values_or_with_those_of_other_shapes() -> None:
    gm = graph_of(lambda x: x.relu().sum(0), rand(4, 5))
    other = [rand(7, 3)]
    assert wrong(gm, other, evaluate_ir(gm, other)) == []
    for node in gm.graph.nodes:
        node.meta.clear()
    assert wrong(gm, other, evaluate_ir(gm, other)) == []
    assert all(not node.meta for node in gm.graph.nodes)


def test_random_numbers_are_not_evaluated_and_what_needs_them_is_not() -> None:
    args = [rand(3)]
    gm = graph_of(lambda x: (torch.rand_like(x) + 1, x * 2), *args)
    with V.set_fake_mode(FakeTensorMode()):
        replace_random_passes(gm)
    gm.recompile()
    values = evaluate_ir(gm, args)
    assert values.outputs[0] is None
    assert torch.equal(values.outputs[1], args[0] * 2)  # type: ignore[arg-type]
    assert values.unsupported[0] == "buf0: random seeds"
    assert any("it needs buf0" in text for text in values.unsupported)


def test_what_the_lowering_raises_comes_through() -> None:
    args = [rand(3)]
    with pytest.raises(Exception, match=r"replace_random"):
        evaluate_ir(graph_of(lambda x: torch.rand_like(x) + 1, *args), args)
    with pytest.raises(ValueError, match="takes 1 inputs, not 2"):
        evaluate_ir(graph_of(lambda x: x + 1, *args), [*args, *args])


def test_an_index_outside_of_its_tensor_is_a_fault() -> None:
    args = [rand(4, 3), torch.tensor([1, 4])]
    values = evaluate_ir(graph_of(lambda x, i: x[i] + 1, rand(4, 3), torch.tensor([1, 3])), args)
    assert values.faults[0] == "buf0 checks an index at 4, which has 4 elements"
    assert any("reads x_1 at 12" in text for text in values.faults)


def test_a_lowering_that_computes_something_else_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lowerings, aten.relu.default, lowerings[aten.sigmoid.default])
    args = [rand(3, 4)]
    gm = graph_of(lambda x: (x + 1).relu() * 2, *args)
    assert wrong(gm, args, evaluate_ir(gm, args)) == ["output 0"]


def test_a_buffer_of_another_dtype_and_a_value_of_another_kind_in_a_buffer_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def as_bool(x: Any) -> Any:
        load = x.make_loader()
        return ir.Pointwise.create(device=x.get_device(), dtype=torch.bool, inner_fn=load, ranges=x.get_size())

    monkeypatch.setitem(lowerings, aten.argmax.default, lambda x, *rest: to_dtype(x, torch.int32))
    monkeypatch.setitem(lowerings, aten.isnan.default, as_bool)
    args = [rand(5)]
    dtypes = evaluate_ir(graph_of(lambda x: x.argmax(), *args), args).dtypes
    assert "argmax has dtype torch.int32, not torch.int64" in dtypes
    assert "output 0 has shape [5], not []" in dtypes
    dtypes = evaluate_ir(graph_of(lambda x: torch.isnan(x), *args), args).dtypes
    assert dtypes == ["isnan stores torch.float32 as torch.bool"]


# Faults of torch 2.13, found in compiled programs.


FAULTS: dict[str, tuple[Callable[..., Any], list[Tensor], list[str], list[str]]] = {
    "acosh overflows in generated code, not in the IR": (
        lambda x: torch.acosh(x) * 0.5,
        [torch.tensor([1.5, 2.0, 1e8, 1e30, 3e38])],
        [],
        [],
    ),
    "the backward of avg_pool with ceil_mode is lowered wrong": (
        lambda g, x: aten.avg_pool2d_backward(g, x, [3, 3], [2, 2], [0, 0], True, True, None),
        [rand(1, 2, 4, 4), rand(1, 2, 8, 8)],
        ["output 0"],
        [],
    ),
    "bools added with alpha mix a bool and an int": (
        lambda a, b: torch.add(a, b, alpha=2),
        [torch.tensor([True, False, True, False]), torch.tensor([False, True, False, True])],
        [],
        ["add has torch.bool and torch.int64 in ops.logical_or"],
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_torch(name: str) -> None:
    function, args, differ, dtypes = FAULTS[name]
    gm = graph_of(function, *args)
    values = evaluate_ir(gm, args)
    assert (wrong(gm, args, values), values.dtypes) == (differ, dtypes)


def test_adaptive_max_pool3d_of_channels_last_goes_wrong_before_the_lowering() -> None:
    """The IR agrees with the graph that it is lowered from, in which the indices already have other strides."""
    x = rand(1, 4, 4, 6, 10).contiguous(memory_format=torch.channels_last_3d).requires_grad_()
    seen: list[tuple[fx.GraphModule, list[Any]]] = []

    def compiler(gm: fx.GraphModule, _: Any) -> Callable[..., Any]:
        def run(args: Any) -> Any:
            seen.append((gm, copies(args)))
            return gm(*args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    backend = aot_autograd(fw_compiler=compiler, decompositions=select_decomp_table())
    try:
        out = torch.compile(lambda x: F.adaptive_max_pool3d(x, (2, 3, 5)), backend=backend)(x)
        out.backward(rand(*out.shape))
    finally:
        torch._dynamo.reset()
    assert len(seen) == 2
    for gm, args in seen:
        values = evaluate_ir(gm, args)
        assert (values.unsupported, values.dtypes, wrong(gm, args, values)) == ([], [], [])


class Renamed:
    """`torch._inductor.ir` of a torch in which one name is another."""

    def __getattr__(self, name: str) -> Any:
        if name == "NonOwningLayout":
            raise AttributeError(f"module 'torch._inductor.ir' has no attribute {name!r}")
        return getattr(ir, name)


def test_a_name_that_torch_lacks_is_told_and_is_no_op_that_is_not_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    args = [rand(3, 4)]
    gm = graph_of(lambda x: x.sort().values, *args)
    assert evaluate_ir(gm, args).unsupported == []
    monkeypatch.setattr(buffers, "ir", Renamed())
    with pytest.raises(UnsupportedTorchError, match="keeps MultiOutput of its IR otherwise.*NonOwningLayout"):
        evaluate_ir(gm, args)
