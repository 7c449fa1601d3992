"""The facts of each dtype agree with torch's."""

import pytest
import torch

from graphprobe.errors import UsageError
from graphprobe.numerics.dtypes import DTYPES, accumulation_roundoff, working_dtype

FLOATS = [name for name, facts in DTYPES.items() if facts.kind == "float"]


@pytest.mark.parametrize("name", FLOATS)
def test_floats_agree_with_torch(name: str) -> None:
    facts, theirs = DTYPES[name], torch.finfo(getattr(torch, name))
    assert (facts.smallest_normal, facts.largest) == (theirs.tiny, theirs.max)


@pytest.mark.parametrize("name", FLOATS)
def test_eps_is_the_step_after_one(name: str) -> None:
    """By bit pattern: torch 2.13's `finfo` gives 0.125 for float8_e5m2fnuz, half of what its two bits can hold."""
    one = torch.ones(1, dtype=getattr(torch, name))
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    after = (one.view(integer) + 1).view(one.dtype)
    assert DTYPES[name].eps == after.double().item() - 1


@pytest.mark.parametrize("name", [name for name in FLOATS if name != "float64"])
def test_infinity_exists_where_torch_has_one(name: str) -> None:
    overflown = torch.tensor(float("inf")).to(getattr(torch, name))
    assert bool(overflown.float().isinf()) is DTYPES[name].has_inf


def test_complex_and_exact_kinds_and_accumulators() -> None:
    assert working_dtype("complex64").eps == working_dtype("float32").eps
    assert working_dtype("torch.complex128").kind == "complex"
    exact = "uint8 uint16 uint32 uint64 int8 int16 int32 int64 bool"
    assert [name for name, facts in DTYPES.items() if facts.is_exact] == exact.split()
    assert accumulation_roundoff(DTYPES["bfloat16"]) == 2.0**-24, "float32 or better"
    assert accumulation_roundoff(DTYPES["float64"]) == 2.0**-53
    with pytest.raises(UsageError, match="qint8"):
        working_dtype("torch.qint8")
