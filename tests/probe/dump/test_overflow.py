"""Overflows: the op that made what is not finite is found, forward and backward; what is meant is let pass."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._inductor import config as inductor_config
from torch.fx.experimental.proxy_tensor import make_fx

from graphprobe.probe.dump import sessions
from graphprobe.probe.dump.overflow import OverflowObserver
from graphprobe.probe.dump.overflow_rules import FloatSummary, OverflowJudge
from graphprobe.probe.dump.traits import OpTraits, row_of, signs_of_graph, tables, traits_of_graph, union
from probe.dump.conftest import Dumping
from probe.dump.scenes import documents, findings


class _Blow(torch.autograd.Function):
    """Multiplies the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gain)
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gain,) = ctx.saved_tensors
        return gradient * gain * gain, None


class Block(nn.Module):
    """Attention with an additive mask of -inf, and an MLP whose scale is a buffer, forward and backward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.up = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.down = nn.Linear(width, width)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("gain", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = torch.full((x.shape[-2], x.shape[-2]), float("-inf"), dtype=x.dtype, device=x.device).triu(1)
        x = (q @ k.transpose(-1, -2) / 4 + mask).softmax(-1) @ v
        return x + self.down(_Blow.apply(torch.relu(self.up(x)) * self.scale * self.scale, self.gain))


class Transformer(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def overflowing(dumping: Dumping, function: Any, name: str = "aot_eager") -> Any:
    return torch.compile(function, backend=dumping.backend_of_file(name, dump_debug="on"))


def overflows(dumping: Dumping) -> list[dict[str, Any]]:
    return findings(dumping.path, "overflow")


def inside(found: dict[str, Any], module: str) -> bool:
    return bool(found["modules"]) and all(f"{name}.".startswith(f"{module}.") for name in found["modules"])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_an_overflow_in_one_layer_of_a_bf16_transformer(backend: str, dumping: Dumping) -> None:
    """Step 0 is the control; in step 1 the forward overflows, in step 2 the backward. One compile for all."""
    torch.manual_seed(0)
    model = Transformer(2, 16).bfloat16()
    compiled = overflowing(dumping, model, backend)
    x = torch.randn(2, 4, 16, dtype=torch.bfloat16)

    compiled(x).sum().backward()
    assert overflows(dumping) == []

    model.layers[1].scale.fill_(1e30)
    assert not compiled(x).isfinite().all()
    (forward,) = overflows(dumping)
    assert forward["direction"] == "forward" and forward["step"] == 1
    assert inside(forward, "layers.1") and "test_overflow.py:" in forward["source"]
    assert [problem["kind"] for problem in forward["problems"]] == ["inf"]

    model.layers[1].scale.fill_(1)
    model.layers[1].gain.fill_(1e30)
    compiled(x).sum().backward()
    backward = overflows(dumping)[1]
    assert backward["direction"] == "backward" and backward["step"] == 2
    assert any(name.startswith("layers.1") for name in backward["modules"])
    assert any("gradient * gain" in _line(source) for source in backward["sources"] if "test_overflow" in source)

    found = dumping.end()
    assert len(overflows(dumping)) == 2
    first, second = documents(dumping.path, "overflow.json")
    assert first["carriers"] and second["carriers"]
    origins = {first["origins"][0]["op"], second["origins"][0]["op"]}
    assert not origins & {carrier["op"] for carrier in (*first["carriers"], *second["carriers"])}
    assert {op.record.op.op_name for op in found.ops()} == origins
    for op in found.ops():
        values = op.values()
        inputs = [value.array() for value in values.values() if value.slot.role == "input"]
        outputs = [value.array() for value in values.values() if value.slot.role == "output"]
        assert inputs and all(np.isfinite(array).all() for array in inputs)
        assert not all(np.isfinite(array).all() for array in outputs)


def _line(source: str) -> str:
    path, _, line = source.rpartition(":")
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()[int(line) - 1]


def test_the_repro_shows_the_overflow_again(dumping: Dumping, run_warm: Callable[..., Any]) -> None:
    compiled = overflowing(dumping, lambda x, y: torch.mm(x, y).relu())
    compiled(torch.full((3, 4), 300.0, dtype=torch.float16), torch.full((4, 2), 300.0, dtype=torch.float16))
    dumping.end()
    (found,) = overflows(dumping)
    assert found["target"] == "aten.mm.default" and found["problems"][0]["elements"] == 6
    (script,) = dumping.path.rglob("repro_*.py")
    done = run_warm(str(script))
    assert done.code == 1 and "output.0: 6 of 6 elements not finite" in done.out, done.err


attention = functools.partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)
MASKED: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda scores, mask: scores.mul(2).masked_fill(~mask, float("-inf")).softmax(-1),
    lambda scores, mask: torch.where(mask, scores.mul(2), float("-inf")).softmax(-1),
    lambda scores, mask: (scores.mul(2) + torch.zeros_like(scores).masked_fill(~mask, -torch.inf)).softmax(-1),
    lambda scores, mask: (scores.mul(2) + (1.0 - mask.to(scores.dtype)) * torch.finfo(scores.dtype).min).softmax(-1),
    lambda scores, mask: (scores.mul(2) + mask.to(scores.dtype).log()).softmax(-1),
    lambda scores, mask: attention(*[scores.mul(2)[None, None]] * 3),
]
"""Every way to write a mask."""


def test_what_a_mask_means_is_silent(dumping: Dumping) -> None:
    """Each has its control: the same call with scores that do overflow."""
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    for dtype in (torch.float32, torch.bfloat16):
        for function in MASKED:
            torch._dynamo.reset()
            compiled = overflowing(dumping, function)
            before = len(overflows(dumping))
            compiled(torch.randn(8, 8, dtype=dtype), mask)
            assert len(overflows(dumping)) == before, function
            compiled(torch.full((8, 8), 3e38, dtype=dtype), mask)
            found = overflows(dumping)[before:]
            assert [one["target"] for one in found[:1]] == ["aten.mul.Tensor"], function


def test_a_fused_mask_hides_no_overflow(dumping: Dumping) -> None:
    """One kernel scales, masks and stores: its -inf is meant, its +inf is not."""

    compiled = overflowing(dumping, lambda scores, mask: torch.where(mask, scores * 2, float("-inf")), "inductor")
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    assert compiled(torch.randn(8, 8), mask).isinf().any()
    assert overflows(dumping) == []
    compiled(torch.full((8, 8), 3e38), mask)
    (found,) = overflows(dumping)
    assert [(problem["kind"], problem["sign"]) for problem in found["problems"]] == [("inf", "+")]


def test_an_infinity_that_comes_in_is_passed_on_and_not_reported(dumping: Dumping) -> None:
    compiled = overflowing(dumping, lambda x, mask: (x + mask).exp() / 2)
    mask = torch.zeros(4, 4).masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), -torch.inf)
    compiled(torch.randn(4, 4), mask)
    compiled(torch.full((4, 4), torch.nan), mask)
    assert overflows(dumping) == []
    compiled(torch.full((4, 4), 100.0), mask)
    assert [found["target"] for found in overflows(dumping)] == ["aten.exp.default"]


@pytest.mark.parametrize(("value", "found"), [(470.0, ["saturated"]), (100.0, [])])
def test_saturation(value: float, found: list[str], dumping: Dumping) -> None:
    """The largest number of an 8-bit float, where the input was larger; an input that holds it is no overflow."""

    compiled = overflowing(dumping, lambda x: x.to(torch.float16).to(torch.float8_e4m3fn))
    compiled(torch.tensor([1.0, min(value, torch.finfo(torch.float8_e4m3fn).max + 8)]))
    kinds = [problem["kind"] for one in overflows(dumping) for problem in one["problems"]]
    assert kinds == found


def test_values_that_an_op_writes_into_are_those_before_it(dumping: Dumping) -> None:
    overflowing(dumping, lambda x: (x + 0).mul_(1e30).neg(), "eager")(torch.full((3,), 1e20))
    found = dumping.end()
    (op,) = found.ops()
    assert op.record.op.op_type == "mul_"
    np.testing.assert_array_equal(op.values()["input.0"].array(), np.full(3, 1e20, np.float32))
    assert np.isinf(op.values()["output.0"].array()).all()


@pytest.mark.parametrize("held_bytes", [1 << 20, 0])
def test_flags_that_are_read_back_later_find_the_same(
    held_bytes: int, dumping: Dumping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a device, here on CPU tensors: the values are those at the time, whatever was written there since."""

    deferred = functools.partial(OverflowObserver, held_bytes=held_bytes, deferred=True)
    monkeypatch.setattr(sessions, "OverflowObserver", deferred)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 1e30
        z = y.exp()
        y.zero_()
        return z + y

    overflowing(dumping, program, "eager")(torch.full((3,), 1e20))
    found = dumping.end()
    (op,) = found.ops()
    assert op.record.op.op_type == "mul"
    np.testing.assert_array_equal(op.values()["input.0"].array(), np.full(3, 1e20, np.float32))
    (document,) = documents(dumping.path, "overflow.json")
    assert [carrier["op_type"] for carrier in document["carriers"]] == ["exp", "add"]


def said_of_uncompiled(dumping: Dumping) -> str:
    (document,) = documents(dumping.path, "overflow.json")
    return str(document["uncompiled"])


def _enlarge(graph: torch.fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor):
        node.args = (node.args[0], 1e38)


@pytest.mark.parametrize("planted", [True, False])
def test_what_only_the_compiler_makes(planted: bool, dumping: Dumping) -> None:
    """A pass that makes a factor larger; the control compiles without it."""
    backend = dumping.backend_of_file("inductor", engine="interpreter", dump_debug="on")
    with inductor_config.patch(joint_custom_pre_pass=_enlarge if planted else None):
        torch.compile(lambda x: x * 3.0, backend=backend)(torch.full((2, 4), 500.0))
    dumping.end()
    if not planted:
        assert overflows(dumping) == [] and documents(dumping.path, "overflow.json") == []
        return
    assert [found["op_type"] for found in overflows(dumping)] == ["mul"]
    assert said_of_uncompiled(dumping) == "uncompiled, the same call on the same inputs makes no infinity and no NaN"


def test_what_the_uncompiled_program_makes_too(dumping: Dumping) -> None:
    """The call writes over the input that it overflows of, and draws random numbers: neither is seen by the program."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.dropout((x * 2).exp(), 0.0)
        x.zero_()
        return y

    compiled = overflowing(dumping, program)
    compiled(torch.ones(3))
    torch.manual_seed(0)
    before, x = torch.get_rng_state(), torch.full((3,), 1000.0)
    program(x.clone())
    expected = torch.get_rng_state()
    torch.set_rng_state(before)
    compiled(x)
    assert torch.equal(x, torch.zeros(3)) and torch.equal(torch.get_rng_state(), expected)
    dumping.end()
    assert said_of_uncompiled(dumping).startswith("uncompiled, the same call on the same inputs makes it, too: exp (")


def test_an_overflow_in_the_backward_uncompiled(dumping: Dumping) -> None:
    compiled = overflowing(dumping, lambda x, w: ((x - w).sqrt()).sum())
    w = torch.ones(3, requires_grad=True)
    for value in (3.0, 1.0):
        x = torch.full((3,), value, requires_grad=True)
        compiled(x, w).backward()
        assert x.grad is not None and bool(x.grad.isfinite().all()) == (value != 1.0)
    dumping.end()
    assert [found["direction"] for found in overflows(dumping)] == ["backward"]
    assert said_of_uncompiled(dumping) == (
        "uncompiled, the gradients of the same call on the same inputs are not finite, either"
    )


def test_a_call_that_cannot_run_again_says_why(dumping: Dumping) -> None:
    x, w = torch.ones(3, requires_grad=True), torch.full((3,), -1.0)
    loss = overflowing(dumping, lambda x, w: (x + w).sqrt().sum())(x, w)
    with torch.no_grad():
        x.add_(1)
    loss.backward()
    dumping.end()
    assert said_of_uncompiled(dumping).endswith("is not known: an input of the call has been overwritten")


@pytest.mark.cuda
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_an_overflow_on_a_device(backend: str, dumping: Dumping) -> None:
    compiled = overflowing(dumping, lambda x, w: (x @ w) @ w, backend)
    w = torch.eye(8, device="cuda") * 10
    compiled(torch.ones(8, 8, device="cuda"), w)
    assert overflows(dumping) == []
    compiled(torch.full((8, 8), 1e38, device="cuda"), w)
    (found,) = overflows(dumping)
    assert found["step"] == 1 and found["problems"][0]["elements"] == 64


INF = float("inf")
LOWEST = torch.finfo(torch.float32).min


@pytest.mark.parametrize(
    ("function", "reads", "meant"),
    [
        (lambda x, m: x * 2, "", ""),
        (lambda x, m: torch.where(m, x, -INF), "", "-"),
        (lambda x, m: x.masked_fill(m, INF), "", "+"),
        (lambda x, m: -x.masked_fill(m, INF), "", "-"),
        (lambda x, m: 1 - x.masked_fill(m, INF), "", "-"),
        (lambda x, m: x.masked_fill(m, -INF).exp(), "", ""),
        (lambda x, m: x.masked_fill(m, -INF).softmax(-1), "", ""),
        (lambda x, m: x.masked_fill(m, -INF) * -2, "", "+"),
        (lambda x, m: (1 - m.to(x.dtype)) * LOWEST, "", "-"),
        (lambda x, m: x.masked_fill(m, -1e30) * 1e30, "", ""),
        (lambda x, m: m.to(x.dtype).log(), "", "-"),
        (lambda x, m: x.log(), "", ""),
        (lambda x, m: x * 2, "-", "-"),
        (lambda x, m: -x, "-", "+"),
        (lambda x, m: x.tanh(), "+-", ""),
    ],
)
def test_signs_are_followed_through_nodes(function: Callable[..., torch.Tensor], reads: str, meant: str) -> None:
    """As one fused launch would carry them out, with inputs that hold infinities of the signs `reads`."""
    graph = make_fx(function)(torch.randn(4, 4), torch.ones(4, 4, dtype=torch.bool)).graph
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    table = union([tables(nodes, signs_of_graph(graph))[nodes[-1]]])
    assert table[row_of(reads)] == frozenset(meant)


def test_what_an_op_may_write_into() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        y.mul_(2)
        return torch.add(x, y, out=torch.empty(3))

    graph = make_fx(program)(torch.randn(3)).graph
    found = {node.name: traits.mutates for node, traits in traits_of_graph(graph).items()}
    assert found["add"] == () and found["mul_"] == ("input.0",) and found["add_1"] == ("kwarg.out",)


def summary(slot: str, memory: int, **what: float) -> FloatSummary:
    return FloatSummary(slot, memory, **{"nan": 0, "positive": 0, "negative": 0, **what})  # type: ignore[arg-type]


def test_origins_and_carriers() -> None:
    judge, plain = OverflowJudge(), OpTraits()
    fine, spoiled = summary("input.0", 1), summary("output.0", 2, positive=3)
    assert judge.judge(lambda: (plain, [fine]), [summary("output.0", 9)]) is None
    origin = judge.judge(lambda: (plain, [fine]), [spoiled])
    assert origin is not None and origin.role == "origin" and origin.problems[0].kind == "inf"
    carrier = judge.judge(lambda: (plain, [spoiled]), [summary("output.0", 3, nan=1)])
    assert carrier is not None and carrier.role == "carrier"
    # What lies at an address that is written anew is no longer spoiled.
    assert judge.judge(lambda: (plain, [spoiled]), [summary("output.0", 3)]) is None
    assert judge.judge(lambda: (plain, [summary("input.0", 3, nan=1)]), [summary("output.0", 4, nan=1)]) is None


@pytest.mark.parametrize(
    ("read", "wrote", "problems"),
    [
        ({"negative": 2}, {"negative": 2}, []),
        ({"negative": 2}, {"positive": 1, "negative": 2}, [("inf", "+")]),
        ({"high": 500.0}, {"high": 448.0, "limit": 448.0}, [("saturated", "+")]),
        ({"high": 448.0}, {"high": 448.0, "limit": 448.0}, []),
    ],
)
def test_an_origin_has_what_no_input_had(read: Any, wrote: Any, problems: list[tuple[str, str]]) -> None:
    """An infinity of that sign, or a number that is larger than the dtype can hold."""
    inputs, outputs = [summary("input.0", 1, **read)], [summary("output.0", 2, **wrote)]
    found = OverflowJudge().judge(lambda: (OpTraits(), inputs), outputs)
    assert [(one.kind, one.sign) for one in (found.problems if found is not None else ())] == problems
