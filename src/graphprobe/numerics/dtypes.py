"""What the criterion has to know of a dtype: its kind, its unit roundoff, where it underflows and overflows."""

from __future__ import annotations

from typing import Literal

import msgspec

from graphprobe.errors import UsageError

Kind = Literal["float", "complex", "integer", "boolean"]

_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")

FINE = ("float16", "bfloat16", "float32", "float64")

EXTREME = 0.98
"""Share of the largest finite number of a dtype from which a value stands for it: bfloat16's is 0.996 of float32's."""


class WorkingDtype(msgspec.Struct, frozen=True):
    """The dtype that a value was computed in or rounded to.

    Attributes:
        name: torch's name without the prefix, e.g. `bfloat16`.
        kind: `float` and `complex` are judged by noise, `integer` and `boolean` exactly.
        eps: distance from 1 to the next number; 0 for exact kinds.
        smallest_normal: smallest positive number with full precision; 0 for exact kinds.
        largest: largest finite number (of a part, for complex); 0 for exact kinds.
        has_inf: overflow gives ±Inf. Where it is False, overflow may saturate or give NaN, and both are accepted.
    """

    name: str
    kind: Kind
    eps: float = 0.0
    smallest_normal: float = 0.0
    largest: float = 0.0
    has_inf: bool = True

    @property
    def unit_roundoff(self) -> float:
        """u = eps/2, the largest relative error of one rounding to nearest."""
        return self.eps / 2

    @property
    def is_exact(self) -> bool:
        """Whether two values either agree or differ, with no noise in between."""
        return self.kind in ("integer", "boolean")


def _float(name: str, mantissa_bits: int, min_exponent: int, largest: float, *, has_inf: bool = True) -> WorkingDtype:
    """A float with `mantissa_bits` stored bits whose smallest normal number is 2**min_exponent."""
    return WorkingDtype(name, "float", 2.0**-mantissa_bits, 2.0**min_exponent, largest, has_inf)


_FLOATS = (
    _float("float64", 52, -1022, (2 - 2.0**-52) * 2.0**1023),
    _float("float32", 23, -126, (2 - 2.0**-23) * 2.0**127),
    _float("float16", 10, -14, 65504.0),
    _float("bfloat16", 7, -126, (2 - 2.0**-7) * 2.0**127),
    _float("float8_e4m3fn", 3, -6, 448.0, has_inf=False),
    _float("float8_e4m3fnuz", 3, -7, 240.0, has_inf=False),
    _float("float8_e5m2", 2, -14, 57344.0),
    _float("float8_e5m2fnuz", 2, -15, 57344.0, has_inf=False),
)


def _table() -> dict[str, WorkingDtype]:
    table = {dtype.name: dtype for dtype in _FLOATS}
    for name, part in _PARTS.items():
        facts = table[part]
        table[name] = WorkingDtype(name, "complex", facts.eps, facts.smallest_normal, facts.largest)
    table |= {name: WorkingDtype(name, "integer") for name in _INTEGERS}
    table["bool"] = WorkingDtype("bool", "boolean")
    return table


DTYPES: dict[str, WorkingDtype] = _table()
"""By name without `torch.`; the figures are those of IEEE 754, and of the OCP 8-bit formats for `float8_*`."""

FLOAT32 = DTYPES["float32"]
"""What hardware accumulates in when the working dtype is narrower."""


def limit_named(value: float) -> str:
    """Which limit of a floating-point dtype a number is, `max`, `-max`, `eps` or `tiny`; empty for any other.

    Programs take such numbers from `torch.finfo` of the dtype that they run in, so that of two runs each has its own.
    """
    size = abs(value)
    for name in FINE:
        facts = DTYPES[name]
        if size == facts.largest:
            return "max" if value > 0 else "-max"
        if value in (facts.eps, facts.smallest_normal):
            return "eps" if value == facts.eps else "tiny"
    return ""


def working_dtype(name: str) -> WorkingDtype:
    """The facts of a dtype.

    Args:
        name: as torch or numpy print it: `torch.bfloat16`, `bfloat16`, `float32`.

    Raises:
        UsageError: the criterion knows no such dtype.
    """
    short = name.removeprefix("torch.")
    if short not in DTYPES:
        raise UsageError(f"no facts about dtype {name!r}", hint=f"known: {', '.join(sorted(DTYPES))}")
    return DTYPES[short]


def accumulation_roundoff(dtype: WorkingDtype) -> float:
    """u_acc: the unit roundoff of the accumulator that is right for `dtype`, float32 or better."""
    return min(dtype.unit_roundoff, FLOAT32.unit_roundoff)
