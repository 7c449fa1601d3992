"""Recorded calls run again in float64: right ones pass, wrong ones do not, and nothing else is ever called."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from compare.recording import MemoryDump, Recorder
from graphprobe.compare import LocalTruth
from graphprobe.diagnose import call_replay
from graphprobe.store import Call, Scalar


def recorded(program: Callable[..., Any], *args: Any, **planted: Any) -> MemoryDump:
    with Recorder(**planted) as recorder:
        result = program(*args)
        if isinstance(result, torch.Tensor) and result.requires_grad:
            result.backward(torch.ones_like(result))
    return recorder.dump


def truth(dump: MemoryDump, label: str, *, arguments: Call | None = None) -> LocalTruth:
    by_label = {call.label: call for call in dump.list}
    call = by_label[label]
    forward = by_label.get(label.replace("backward", "forward")) if "backward" in label else None
    return call_replay.TorchReplayer().truth(dump, call, forward, arguments or forward or call)


X = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
W = torch.randn(8, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("linear", F.linear),
        ("layer_norm", lambda x, w: F.layer_norm(x, (32,), w[0])),
        ("cat", lambda x, w: torch.cat([x, w])),
        ("__getitem__", lambda x, w: x[..., 1:5]),
        ("softmax", lambda x, w: x.softmax(dim=-1)),
        ("add_", lambda x, w: (x.detach() * 1).add_(w[0].detach())),
        ("max", lambda x, w: torch.max(x, 1)[0]),
    ],
)
def test_right_results_pass_and_wrong_ones_do_not(name: str, program: Any, dtype: torch.dtype) -> None:
    x, w = X.to(dtype).requires_grad_(), W.to(dtype).requires_grad_()
    dump = recorded(program, x, w)
    label = next(c.label for c in dump.list if c.label.startswith(f"{name}.0") and c.direction == "forward")
    assert truth(dump, label).answer == "ok", truth(dump, label)
    back = f"{name}.0.backward"
    if name != "add_":
        assert truth(dump, back).answer in ("ok", "skipped"), truth(dump, back)

    def wrong(result: Any, *_: Any) -> Any:
        return result * 1.1 if isinstance(result, torch.Tensor) else (result[0] * 1.1, *result[1:])

    dump = recorded(program, x, w, plant={f"{name}.0": wrong})
    assert truth(dump, label).answer == "worse"


@pytest.mark.parametrize("place", [0, 1])
def test_weight_and_input_gradients_are_both_judged(place: int) -> None:
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    name = f"linear.0.backward.grad_input.{place}"
    found = truth(recorded(F.linear, x, w, plant_gradient={name: lambda g: 1.01 * g}), "linear.0.backward")
    assert (found.answer, found.slots) == ("worse", (f"grad_input.{place}",))
    assert truth(recorded(F.linear, x, w), "linear.0.backward").answer == "ok"


def test_another_formula() -> None:
    tanh = recorded(lambda x: F.gelu(x, approximate="tanh"), X)
    exact = recorded(lambda x: F.gelu(x), X)
    assert truth(tanh, "gelu.0.forward").answer == "ok"
    other = next(c for c in exact.list if c.label == "gelu.0.forward")
    assert truth(tanh, "gelu.0.forward", arguments=other).answer == "worse"
    x = torch.randn(4096, generator=torch.Generator().manual_seed(2)).bfloat16()

    def found(result: torch.Tensor) -> LocalTruth | None:
        return call_replay.rounding_truth(
            "torch.nn.functional.gelu", lambda v: [F.gelu(v)], [x], {}, [result], "output.0"
        )

    other = found(F.gelu(x, approximate="tanh"))
    assert other is not None and other.answer == "worse" and "another formula" in other.reason
    assert found(F.gelu(x)) is None
    assert found(F.gelu(x.double() * (1 + 2.0**-22)).bfloat16()) is None, "float32 arithmetic of another library"


@pytest.mark.parametrize(("mean", "answer"), [(0.0, "ok"), (1.0, "worse")])
def test_inputs_that_a_call_changed_are_judged(mean: float, answer: str) -> None:
    before, after, var = torch.zeros(32), torch.zeros(32), torch.ones(32)
    maker = Recorder()
    maker.dump = recorded(lambda x: F.batch_norm(x, after, var, training=True), X)
    call = next(c for c in maker.dump.list if c.label == "batch_norm.0.forward")
    # What the recorder calls input.1 is the mean before the call.
    first = maker.slot("input.1", "input", before)
    slots = [first if s.name == "input.1" else s for s in call.slots]
    slots.append(maker.slot("output.input.1", "output", after + mean))
    changed = msgspec.structs.replace(call, slots=tuple(slots))
    assert call_replay.TorchReplayer().truth(maker.dump, changed, None, changed).answer == answer


APIS = ["load", "save", "hub.load", "Tensor.backward", "ops.x.y", "no_such"]


@pytest.mark.parametrize("api", ["os.system", *(f"torch.{name}" for name in APIS)])
def test_what_is_no_operation_on_tensors_is_never_called(api: str) -> None:
    with pytest.raises(call_replay.NotReplayableError):
        call_replay.function_of(api)
    call = Call(position=0, kind="api", api=api, label="x")
    assert call_replay.TorchReplayer().truth(MemoryDump([call]), call, None, call).answer == "skipped"


def test_random_and_missing_are_skipped_with_the_reason() -> None:
    dump = recorded(lambda x: F.dropout(x, 0.5), X)
    assert "random" in truth(dump, "dropout.0.forward").reason
    dump = recorded(lambda x: x.relu(), X).without_values()
    found = truth(dump, "relu.0.forward")
    assert found.answer == "skipped" and "only some of its values" in found.reason


VALUES = [1, 2.5, True, None, "tanh", (1, 2), [3, 4], torch.float16, slice(1, None, 2), (slice(None), ..., 0)]


def test_values_come_back_from_their_repr_or_are_refused() -> None:
    for value in (*VALUES, torch.Size([2, 3])):
        assert call_replay.value_of(Scalar(type(value).__name__, repr(value))) == value
    with pytest.raises(call_replay.NotReplayableError, match="known as"):
        call_replay.value_of(Scalar("Generator", "<torch._C.Generator object at 0x7f00>"))
    with pytest.raises(call_replay.NotReplayableError, match=r"only \[0, 2\]"):
        call_replay.arguments_from({"input.0": 1, "input.2": 3})
    assert call_replay.arguments_from({"input.0.0": 1, "input.0.1": 2, "kwarg.dim": 3}) == ([[1, 2]], {"dim": 3})
