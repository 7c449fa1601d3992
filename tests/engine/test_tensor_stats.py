"""Statistics of torch tensors on the CPU: every dtype, every layout, and clear refusals."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.stats_tensors import DTYPES, random_bits
from graphprobe.engine.tensor_stats import stats_of
from graphprobe.errors import UsageError
from graphprobe.numerics import ITEM_KINDS, TABLES, native

TORCH_DTYPES = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
TORCH_NAMES = {str(dtype).removeprefix("torch.") for dtype in TORCH_DTYPES}


def test_every_dtype_of_torch_that_has_values_is_known() -> None:
    shells = {name for name in TORCH_NAMES if name.startswith(("bits", "int", "uint")) and name[-1] in "1234567"}
    whole = {"int16", "uint16", "int32", "uint32", "int64", "uint64"}
    packed_or_quantised = {name for name in TORCH_NAMES if name.startswith(("qint", "quint", "bits"))}
    experimental = {"bcomplex32"}  # of torch 2.15, which warns of it; docs/versions.md
    assert set(ITEM_KINDS) & TORCH_NAMES == TORCH_NAMES - (shells - whole) - packed_or_quantised - experimental


@pytest.mark.parametrize("name", [n for n in TABLES if n.startswith("float8") and n in TORCH_NAMES])
def test_tables_of_the_8_bit_floats_are_those_of_torch(name: str) -> None:
    codes = torch.arange(256, dtype=torch.int64).to(torch.uint8).view(getattr(torch, name))
    np.testing.assert_array_equal(TABLES[name], codes.to(torch.float32).to(torch.float64).numpy())


def test_table_of_the_packed_4_bit_float() -> None:
    """OCP microscaling formats, E2M1: the low half of a byte first."""
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    values = [*magnitudes, *(-v for v in magnitudes)]
    assert TABLES["float4_e2m1fn_x2"].reshape(256, 2).tolist() == [[values[c & 15], values[c >> 4]] for c in range(256)]


@pytest.mark.parametrize("dtype", [d for d in DTYPES if "float4" not in str(d)], ids=str)
def test_against_torch(dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 4, 5000)
    x = torch.complex(x, x.flip(0)).to(dtype) if dtype.is_complex else x.to(dtype)
    if dtype.is_complex:
        wide = (x.to(torch.complex64) if dtype == torch.complex32 else x).to(torch.complex128).abs()
    else:
        wide = (x.to(torch.float32) if dtype.is_floating_point and dtype.itemsize == 1 else x).to(torch.float64)
    finite = wide[torch.isfinite(wide)]
    found = stats_of(x)
    assert (found.count, found.nan, found.zeros) == (5000, int(wide.isnan().sum()), int((wide == 0).sum()))
    expected = (finite.min(), finite.max(), finite.mean(), finite.std(correction=0), finite.norm())
    got = (found.min, found.max, found.mean, found.std, found.l2)
    assert got == pytest.approx([float(value) for value in expected], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts_of_the_same_values(dtype: torch.dtype) -> None:
    plain = torch.uint8 if dtype.itemsize == 1 else dtype  # not every 8-bit dtype can be copied
    x = random_bits(dtype, 24 * 35).view(24, 35)
    expected = stats_of(x.clone())
    held = torch.empty(24 * 35 * 3 + 1, dtype=plain)[1:].view(24, 35, 3)
    held[:, :, 1].copy_(x.view(plain))
    held = held.view(dtype)
    for view in (held[:, :, 1], x.unsqueeze(0), x.as_strided((24, 35, 1), (35, 1, 99))):
        assert stats_of(view) == expected
    turned = stats_of(x.t())
    assert turned.digest != expected.digest
    for name in ("count", "nan", "zeros", "max"):
        assert getattr(turned, name) == getattr(expected, name)


class Mine(torch.Tensor):
    pass


def test_odd_tensors() -> None:
    assert stats_of(torch.tensor(2.5)).mean == 2.5
    empty = stats_of(torch.empty(3, 0, 2))
    assert (empty.count, empty.min, empty.l2) == (0, None, None)
    assert stats_of(torch.tensor([1.0, -1.0]).expand(500, 2)) == stats_of(torch.tensor([1.0, -1.0]).repeat(500, 1))
    x = torch.arange(6.0)
    assert stats_of(torch.nn.Parameter(x)) == stats_of(x.as_subclass(Mine)) == stats_of(x)
    assert stats_of(torch.nn.Parameter(x) * 2).max == 10.0
    with pytest.raises(UsageError, match="no memory to read"):
        torch.vmap(lambda x: x + len(stats_of(x).digest))(torch.ones(2, 3))


def test_signs() -> None:
    x = torch.randn(50, dtype=torch.complex64)
    assert x.conj().is_conj()
    assert stats_of(x.conj()) == stats_of(x.conj().clone()) != stats_of(x)
    imaginary = x.conj().imag
    assert imaginary.is_neg()
    assert stats_of(imaginary) == stats_of(imaginary.clone())
    assert stats_of(imaginary).mean == pytest.approx(-float(x.imag.double().mean()), rel=1e-5)
    positive, negative = stats_of(torch.zeros(40)), stats_of(-torch.zeros(40))
    assert positive.digest != negative.digest
    assert (positive.zeros, positive.min) == (negative.zeros, negative.min) == (40, 0.0)
    assert str(negative.min) == str(negative.max) == "0.0"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_large_with_threads(dtype: torch.dtype) -> None:
    x = torch.randn(1_200_000).to(dtype)
    assert stats_of(x, threads=3) == stats_of(x, threads=1) == stats_of(x)
    assert stats_of(x).std == pytest.approx(float(x.double().std(correction=0)), rel=1e-6)


STATISTICS = """
import os, signal, sys, numpy
from graphprobe.numerics import stats_from_array
ones = numpy.ones(1_000_000, "float32")
statistics = lambda: stats_from_array(ones, threads=2)
threads = lambda: len(os.listdir("/proc/self/task"))
"""
AFTER_TORCH = """
import torch
torch.set_num_threads(2)
torch.randn(1_000_000).sum()

def forked(told):
    child = os.fork()  # has none of these threads, and an OpenMP that waits for them
    if child == 0:
        signal.alarm(30)
        os._exit(told())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

goes_on = forked(lambda: statistics().count == 1_000_000)
before = threads()
statistics()
print(goes_on, before, threads(), forked(lambda: (statistics(), threads())[1]))
"""
BEFORE_TORCH = 'before = threads(); statistics(); print("torch" in sys.modules, before, threads())'


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts the threads in /proc")
@pytest.mark.skipif(native.core is None, reason="no native core")
def test_the_threads_of_torch_do_the_work(run_warm: Callable[..., Any], run_python: Callable[..., Any]) -> None:
    """Threads of our own would wait for a processor while those of torch look for more work on it."""
    done = run_warm("-c", STATISTICS + AFTER_TORCH)
    goes_on, before, after, own = done.out.split() or pytest.fail(done.err)
    assert (goes_on, own) == ("1", "2") and before == after
    loaded, before, after = run_python("-c", STATISTICS + BEFORE_TORCH).out.split()
    assert loaded == "False" and int(after) == int(before) + 1, "without an OpenMP there are threads of our own"


def test_subnormals_count_even_where_torch_flushes_them() -> None:
    x = torch.tensor([1e-40, 2e-40, 0.0] * 50)
    expected = stats_of(x)
    assert (expected.zeros, expected.max) == (50, pytest.approx(2e-40, rel=1e-4))
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        if native.core is None:
            pytest.skip("numpy follows the flag of the processor")
        assert stats_of(x) == expected
    finally:
        torch.set_flush_denormal(False)


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.empty(3, device="meta"), "meta device"),
        (_fake, "fake"),
        (lambda: torch.eye(3).to_sparse(), "torch.sparse_coo"),
        (lambda: torch.eye(3).to_sparse_csr(), "torch.sparse_csr"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "qint8"),
        (lambda: torch.empty(3, dtype=torch.bits8), "bits8"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "jagged"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_read_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        stats_of(make())
    assert caught.value.hint
