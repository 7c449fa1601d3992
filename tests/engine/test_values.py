"""Capture and restore are bit-exact, keep aliasing, and are not seen by the program."""

import struct
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_safetensors
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from graphprobe.engine import replay
from graphprobe.engine import values as held


def round_trip(values: list[object]) -> list[Any]:
    return held.from_bytes(*held.to_bytes(held.capture(values))).restore()


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64, torch.complex128, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.uint32,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_pattern_of_a_dtype_survives(dtype: torch.dtype) -> None:
    width = torch.empty(0, dtype=dtype).element_size()
    raw = torch.arange(64 * width, dtype=torch.int32).to(torch.uint8)
    value = (raw % 2 if dtype is torch.bool else raw).view(dtype).reshape(8, -1).t()
    (back,) = round_trip([value])
    assert back.dtype is dtype
    assert held.same_bits(value, back, stride=True) == []


def test_views() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    values = [base, base.t()[1:], base[2, 3], base.as_strided((3, 3), (1, 1), 2), base.view(torch.int32)]
    captured = held.capture(values)
    assert len(captured.doc["storages"]) == 1
    back = captured.restore()
    assert held.same_bits(values, back, stride=True) == []
    back[0][2, 3] = -5.0
    assert back[2].item() == back[1][2, 2].item() == -5.0
    huge = torch.zeros(1_000_000)
    values = [huge[500_000:500_010], huge[500_020:500_030]]
    predicted = held.measure(values)
    assert 30 * 4 <= predicted <= 30 * 4 + held.ALIGNMENT
    captured = held.capture(values, rng=False)
    assert captured.size_bytes == predicted
    back = captured.restore()
    assert back[0].data_ptr() % held.ALIGNMENT == values[0].data_ptr() % held.ALIGNMENT
    back[0][0] = 1.0
    assert back[1].sum().item() == 0.0
    base = torch.randn(3, dtype=torch.complex64)
    values = [base, base.conj(), base.conj().imag]
    result = round_trip(values)
    assert result[1].is_conj() and result[2].is_neg()
    assert held.same_bits(values, result, stride=True) == []


def test_values_of_every_kind() -> None:
    nan = struct.unpack("<d", bytes.fromhex("0100000000 00f07f".replace(" ", "")))[0]
    with torch.inference_mode():
        inferred = torch.randn(3)
    values: list[object] = [
        1, True, None, "text", nan, -0.0, float("inf"), 1 - 2j, torch.device("cpu"), torch.float16, inferred,
        [torch.ones(2), (3, torch.zeros(0, 4))], {"a": torch.tensor(7)},
    ]  # fmt: skip
    assert held.same_bits(values, round_trip(values), stride=True) == []
    leaf = torch.arange(6.0).reshape(2, 3).requires_grad_()
    parameters = [torch.nn.Parameter(torch.randn(2, 2)), torch.nn.Parameter(leaf.detach(), False)]
    first, second, leaf_again, result = round_trip([*parameters, leaf, (leaf * 2).t()])
    assert isinstance(first, torch.nn.Parameter) and first.requires_grad
    assert isinstance(second, torch.nn.Parameter) and not second.requires_grad
    assert leaf_again.is_leaf and leaf_again.requires_grad
    assert not result.is_leaf and result.requires_grad and result.stride() == (1, 3)
    result.mul_(3)  # a leaf may not be changed so
    result.sum().backward()
    assert torch.equal(result.grad, torch.ones(3, 2))


class Sub(torch.Tensor):
    pass


def test_what_is_opaque_is_named_with_the_reason() -> None:
    with FakeTensorMode():
        fake = torch.ones(2)
    tensors = [torch.ones(2).as_subclass(Sub), fake, torch.ones(2, device="meta"), torch.ones(2).to_sparse()]
    captured = held.capture([torch.Generator(), *tensors, [object()]])
    places, reasons = zip(*(line.split(": ", 1) for line in captured.opaque), strict=True)
    assert places == (*(f"value {i}" for i in range(5)), "value 5.0")
    for reason, word in zip(reasons, ("Generator", "Sub", "without data"), strict=False):
        assert word in reason
    with pytest.raises(replay.Undecided, match="Generator"):
        captured.restore()


def test_capture_is_not_seen_by_the_program() -> None:
    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Count.calls += 1
            return func(*args, **(kwargs or {}))

    tensor = torch.randn(4, 4, requires_grad=True)
    view = tensor[1:]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    version = view._version
    with Count():
        captured = held.capture([view, tensor])
        held.one_file_bytes({"a": tensor})
    with FakeTensorMode():
        under_fake = held.to_bytes(held.capture([view, tensor]))
    with torch.inference_mode():
        under_inference = held.to_bytes(held.capture([view, tensor]))
    assert Count.calls == 0
    assert torch.equal(state, torch.get_rng_state())
    assert view._version == version
    assert under_fake == under_inference == held.to_bytes(captured)


def test_safetensors_reads_what_we_write() -> None:
    captured = held.capture([torch.arange(3, dtype=torch.int16), torch.empty(0)])
    tensors = load_safetensors(held.to_bytes(captured)[0])
    assert set(tensors) == set(captured.tensors)
    assert tensors["s0"].tolist() == [0, 0, 1, 0, 2, 0]


def test_capture_after_keeps_changed_inputs_only() -> None:
    inputs = [torch.zeros(3), torch.ones(3), torch.full((3,), 2.0)]
    before = held.capture(inputs)
    inputs[0].add_(1)
    inputs[2].add_(1)
    after = held.capture_after(before, [inputs[0] * 2], inputs, donated=[2])
    (output,), (changed, *others) = after.restore()
    assert (output.tolist(), changed.tolist()) == ([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    assert others == [replay.UNCHANGED, replay.SCRATCH]
    assert before.restore()[0].tolist() == [0.0, 0.0, 0.0]


def test_what_same_bits_sees() -> None:
    for a, b, text in (
        (torch.zeros(2), torch.tensor([0.0, -0.0]), "1 of 2 elements differ"),
        (torch.zeros(2), torch.zeros(3), "shape"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "dtype"),
        (
            torch.tensor([2143289344], dtype=torch.int32).view(torch.float32),
            torch.tensor([2143289345], dtype=torch.int32).view(torch.float32),
            "1 of 1 elements differ",
        ),
        ([1, 2], [1], "1 values, expected 2"),
        (0.0, -0.0, "expected 0.0"),
        (1, True, "expected 1"),
        (None, torch.zeros(1), "expected None"),
    ):
        (line,) = held.same_bits(a, b)
        assert text in line
    a = torch.arange(6.0).reshape(2, 3)
    b = a.t().contiguous().t()
    assert held.same_bits(a, b) == [] and len(held.same_bits(a, b, stride=True)) == 1
    x = torch.arange(6.0).view(2, 3)
    safetensors, records = held.to_bytes(held.capture([x, x[1]]))
    restored, row = held.from_bytes(safetensors, records.replace(b'"cpu"', b'"cuda:7"')).restore(device="cpu")
    assert torch.equal(restored, x) and restored.device.type == "cpu"
    restored[1, 0] = 9.0
    assert row[0] == 9.0, "aliasing is kept"


def test_embedded_code_stands_alone() -> None:
    space: dict[str, object] = {}
    exec(compile(replay.embedded(), "replay", "exec"), space)
    assert {"main", "load_constants", "Undecided"} <= set(space)
    assert "graphprobe." not in replay.embedded()


def test_settings_that_are_so_already_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    before = held.capture([torch.ones(1)])
    for name in ("set_float32_matmul_precision", "use_deterministic_algorithms"):
        monkeypatch.setattr(torch, name, lambda *_, **__: pytest.fail("torch's caches have other keys now"))
    replay.set_state(before.tensors, before.doc)
    monkeypatch.undo()
    torch.set_float32_matmul_precision("high")
    torch.use_deterministic_algorithms(True)
    replay.set_state(before.tensors, before.doc)
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.are_deterministic_algorithms_enabled()
