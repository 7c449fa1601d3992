"""Statistics by torch operators, as on an accelerator: the same as those of the CPU kernel."""

import pytest
import torch

from engine.stats_tensors import DTYPES, random_bits
from graphprobe.engine import tensor_stats
from graphprobe.engine.tensor_stats import RAW_LENGTH, finish, stats_async, stats_of
from graphprobe.errors import UsageError
from numerics.stats_both import assert_agree


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_to_the_cpu_kernel(dtype: torch.dtype) -> None:
    for count in (0, 1, 3, 33, 1000, 9001):
        x = random_bits(dtype, count, seed=count)
        assert_agree(finish(stats_async(x)), stats_of(x), name(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int8], ids=str)
def test_in_pieces(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor of more than one chunk, an offset that ruins a naive variance, and a part without finite values."""
    monkeypatch.setattr(tensor_stats, "CHUNK_BYTES", 4 * 8192)
    x = (torch.randn(50_001) + (100 if dtype != torch.int8 else 0)).to(dtype)
    missing = x.clone()
    missing[:40_000] = torch.nan if dtype.is_floating_point else 1
    for value in (x, missing):
        assert_agree(finish(stats_async(value)), stats_of(value), name(dtype))


@pytest.mark.parametrize("size", [1e-310, 1e-200, 1e200, 1e307])
def test_float64_extremes(size: float) -> None:
    x = torch.arange(1, 9, dtype=torch.float64) * size
    found, expected = finish(stats_async(x)), stats_of(x)
    assert found.l2 == pytest.approx(expected.l2, rel=1e-12, abs=1e-320)
    assert found.std == pytest.approx(expected.std, rel=1e-12, abs=1e-320)


def test_views_rows_and_wrong_use() -> None:
    x = torch.randn(40, 30)
    for view in (x.t(), x[3:, ::2], x[0].expand(5, 30), torch.randint(0, 256, (1001,), dtype=torch.uint8)[1:]):
        assert_agree(finish(stats_async(view)), stats_of(view), name(view.dtype))
    tensors = [torch.randn(5), torch.arange(7), torch.tensor(True)]
    rows = torch.stack([stats_async(t) for t in tensors])
    assert rows.shape == (3, RAW_LENGTH)
    assert [finish(row).count for row in rows] == [5, 7, 1]
    assert finish(rows[1].tolist()) == finish(rows[1])
    with pytest.raises(ValueError, match="3 numbers"):
        finish([1, 2, 3])
    with pytest.raises(UsageError, match="meta device"):
        stats_async(torch.empty(3, device="meta"))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_on_cuda(dtype: torch.dtype) -> None:
    x = random_bits(dtype, 9001)
    on_device = x.cuda()
    stats_async(on_device)  # the keys of the digest are copied to a device once
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        row = stats_async(on_device)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert row.is_cuda
    assert_agree(finish(row.cpu()), stats_of(x), name(dtype))
    with pytest.raises(UsageError, match="stats_async"):
        stats_of(on_device)
