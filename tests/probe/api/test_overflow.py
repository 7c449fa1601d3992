"""The overflow check of eager programs: origins are found, what is meant and what is carried on is silent."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from graphprobe.errors import EXIT_FOUND, UsageError
from graphprobe.probe.api.overflow import Overflow, OverflowFiles, OverflowFoundError, OverflowWatch
from graphprobe.store import PtdbgDump

HALF, E4M3 = torch.float16, torch.float8_e4m3fn
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")]),
]


def watched(program: Callable[[], object], *, limit: int | None = None) -> list[Overflow]:
    found: list[Overflow] = []
    with OverflowWatch(found.append, limit=limit):
        program()
    return found


def large_products(device: str) -> None:
    F.linear(torch.full((2, 8), 300.0, dtype=HALF, device=device), torch.full((3, 8), 300.0, dtype=HALF, device=device))


def sqrt_backward(device: str) -> None:
    torch.sqrt(torch.zeros(3, requires_grad=True, device=device)).sum().backward()


def scaled_backward(device: str) -> None:
    x = torch.ones(4, dtype=HALF, device=device, requires_grad=True)
    ((x * 200.0).float().sum() * 1000).backward()


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad / 0


ORIGINS: list[tuple[Callable[[str], object], str, str, str]] = [
    (lambda d: torch.ones(4, device=d) / torch.zeros(4, device=d), "torch.Tensor.div", "forward", "+inf in 4 of 4"),
    (lambda d: torch.zeros(4, device=d) / torch.zeros(4, device=d), "torch.Tensor.div", "forward", "NaN in 4 of 4"),
    (lambda d: torch.log(torch.zeros(2, device=d)), "torch.log", "forward", "-inf in 2 of 2"),
    (lambda d: torch.full((2,), 1e6, device=d).half(), "torch.Tensor.half", "forward", "+inf in 2"),
    (lambda d: torch.full((2,), -1e6, device=d).to(E4M3), "torch.Tensor.to", "forward", "the lowest float8_e4m3fn"),
    (large_products, "torch.nn.functional.linear", "forward", "+inf in 6 of 6"),
    (lambda d: torch.fft.fft(torch.full((8,), 3e38, device=d)), "torch.fft.fft", "forward", "inf"),
    (lambda d: torch.vmap(torch.exp)(torch.full((2, 2), 1e4, device=d)), "exp", "forward", "+inf in 4"),
    (sqrt_backward, "torch.sqrt", "backward", "+inf in 3 of 3"),
    (scaled_backward, "torch.Tensor.mul", "backward", "+inf in 4 of 4"),
    (lambda d: Custom.apply(torch.ones(2, requires_grad=True, device=d)).sum().backward(), "", "backward", "+inf in 2"),
]  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("program", "api", "direction", "told"), ORIGINS)
def test_origins(device: str, program: Callable[[str], object], api: str, direction: str, told: str) -> None:
    (found,) = watched(lambda: program(device))
    assert found.api.endswith(api) and found.direction == direction
    if "lowest float8" in told and torch.tensor(-1e6, device=device).to(E4M3).float().isnan():
        told = "NaN in 2 of 2"  # what torch 2.11 and 2.12 make of it
    assert told in "; ".join(found.problems)
    if api and direction == "forward":
        assert found.source.partition(":")[0].endswith("test_overflow.py") or api == "exp"


def masked(device: str) -> None:
    x = torch.randn(4, 4, device=device, requires_grad=True)
    mask = torch.full((4, 4), float("-inf"), device=device).triu(1)
    ((x @ x.t() + mask).softmax(-1) @ x).sum().backward()
    x.masked_fill(x > 0, float("-inf")).softmax(-1)[0].sum().backward()
    q = torch.randn(1, 2, 4, 8, device=device, requires_grad=True)
    F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()


def lowest_number(device: str) -> None:
    keep = (torch.rand(4, 4, device=device) > 0.5).to(HALF)
    mask = (1.0 - keep) * torch.finfo(HALF).min
    (torch.randn(4, 4, device=device).half() + mask + mask).softmax(-1)


def given_infinities(device: str) -> None:
    x = torch.tensor([float("inf"), 1.0, float("nan")], device=device)
    (x * 2).clamp(max=3).sum()


def training(device: str) -> None:
    layers = (torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x, classes = torch.randn(3, 4, device=device), torch.zeros(3, dtype=torch.long, device=device)
    for _ in range(3):
        F.cross_entropy(model(x), classes).backward()
        optimizer.step()
        optimizer.zero_grad()


def memory_that_was_never_written(device: str) -> None:
    torch.zeros(4096, device=device).fill_(float("nan"))
    torch.empty(4096, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("program", [masked, lowest_number, given_infinities, training, memory_that_was_never_written])
def test_silent_where_it_is_meant(device: str, program: Callable[[str], object]) -> None:
    assert [str(found) for found in watched(lambda: program(device))] == []


def test_only_the_origin_is_told_and_not_what_carries_it_on() -> None:
    found = watched(lambda: (((torch.full((3,), 1e30) * 1e30) * 2 + 1) * 2 + 1).sum())
    assert [one.op for one in found] == ["aten.mul.Tensor"]


def test_in_place_the_input_is_that_before_the_call() -> None:
    (found,) = watched(lambda: torch.full((3,), 1e30).mul_(1e30))
    before, after = found.inputs[0][1], found.outputs[0][1]
    assert before.tolist() == pytest.approx([1e30] * 3)
    assert torch.isinf(after).all()
    assert found.inputs[1] == ("input.1", 1e30)


def test_it_stops_at_the_limit_and_no_earlier() -> None:
    found: list[Overflow] = []
    done = []
    watch = OverflowWatch(found.append, limit=2)

    def program() -> None:
        for scale in (1.0, 0.0, 0.0, 0.0):
            torch.log(torch.ones(2) * scale)
            done.append(scale)

    with pytest.raises(OverflowFoundError, match=r"overflow 2 of 2: torch\.log") as caught, watch:
        program()
    assert (done, len(found), watch.count) == ([1.0, 0.0], 2, 2)
    assert (caught.value.slug, caught.value.exit_code) == ("overflow-found", EXIT_FOUND)
    assert torch.isinf(torch.log(torch.zeros(1))).all()  # and is gone afterwards
    assert watch.count == 2


def test_it_stops_in_a_backward() -> None:
    with pytest.raises(OverflowFoundError, match="backward"):
        watched(lambda: sqrt_backward("cpu"), limit=1)


def test_the_program_computes_the_same() -> None:
    def program() -> list[bytes]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Dropout())
        x = torch.randn(2, 1, 6, 6)
        model(x).square().sum().backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        return [value.numpy().tobytes() for value in (*model.state_dict().values(), *grads, torch.rand(3))]

    plain = program()
    seen: list[list[bytes]] = []
    assert watched(lambda: seen.append(program())) == []
    assert seen == [plain]


def test_a_receiver_that_fails_ends_the_check_and_not_the_program(caplog: pytest.LogCaptureFixture) -> None:
    def fail(found: Overflow) -> None:
        raise OSError("disk full")

    with OverflowWatch(fail, limit=1):
        torch.log(torch.zeros(1))
        torch.log(torch.zeros(1))
    assert "the overflow check failed" in caplog.text


def test_wrong_use() -> None:
    with pytest.raises(UsageError, match="limit=0"):
        OverflowWatch(print, limit=0)
    with OverflowWatch(print), pytest.raises(UsageError, match="inside a dispatch mode"):
        OverflowWatch(print).start()


def test_files(tmp_path: Path) -> None:
    files = OverflowFiles(tmp_path)
    with OverflowWatch(files):
        torch.ones(2).mul(0)
        torch.div(torch.full((2, 2), 3.0, dtype=torch.bfloat16), 0)
        sqrt_backward("cpu")
    first, second = files.written
    dump = PtdbgDump(first)
    (call,) = dump.calls(0, 0)
    assert (call.label, call.api) == ("4_Torch_div_forward", "torch.div")
    assert call.source.startswith("tests/probe/api/test_overflow.py:") or "test_overflow.py:" in call.source
    given, number, result = call.slots
    assert given.stats is None and given.meta is not None and given.meta.dtype == "bfloat16"
    assert dump.values(call, given).tolist() == [[0x4040] * 2] * 2
    assert number.scalar is not None and number.scalar.text == "0"
    assert np.load(first.with_suffix("") / "4_Torch_div_forward_output.0.npy").tolist() == [[float("inf")] * 2] * 2
    assert dump.values(call, result).tolist() == [[0x7F80] * 2] * 2
    assert second.read_text().startswith('["6_Torch_sqrt_backward_input.0"')
