"""How the items of each dtype lie in memory, and what the codes of the 8-bit and 4-bit formats stand for."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from graphprobe.errors import UsageError

Floats = npt.NDArray[np.float64]

TABLE = 15
TABLE2 = 16


class ItemKind(msgspec.Struct, frozen=True):
    """How to read one item.

    Attributes:
        number: `Kind` of `native/stats.h`.
        size: bytes.
        codes: numpy's name of the dtype that holds the raw bits; of a part, for complex numbers.
        parts: 2 for complex numbers.
        table: name of the table of values, for items of one byte that only a table can tell.
    """

    number: int
    size: int
    codes: str
    parts: int = 1
    table: str | None = None


ITEM_KINDS: dict[str, ItemKind] = {
    "float32": ItemKind(0, 4, "float32"),
    "float64": ItemKind(1, 8, "float64"),
    "float16": ItemKind(2, 2, "float16"),
    "bfloat16": ItemKind(3, 2, "uint16"),
    "complex32": ItemKind(4, 4, "float16", parts=2),
    "complex64": ItemKind(5, 8, "float32", parts=2),
    "complex128": ItemKind(6, 16, "float64", parts=2),
    "int8": ItemKind(7, 1, "int8"),
    "int16": ItemKind(8, 2, "int16"),
    "int32": ItemKind(9, 4, "int32"),
    "int64": ItemKind(10, 8, "int64"),
    "uint8": ItemKind(11, 1, "uint8"),
    "uint16": ItemKind(12, 2, "uint16"),
    "uint32": ItemKind(13, 4, "uint32"),
    "uint64": ItemKind(14, 8, "uint64"),
    "bool": ItemKind(TABLE, 1, "uint8", table="bool"),
    "float8_e4m3fn": ItemKind(TABLE, 1, "uint8", table="float8_e4m3fn"),
    "float8_e4m3fnuz": ItemKind(TABLE, 1, "uint8", table="float8_e4m3fnuz"),
    "float8_e5m2": ItemKind(TABLE, 1, "uint8", table="float8_e5m2"),
    "float8_e5m2fnuz": ItemKind(TABLE, 1, "uint8", table="float8_e5m2fnuz"),
    "float8_e8m0fnu": ItemKind(TABLE, 1, "uint8", table="float8_e8m0fnu"),
    "float4_e2m1fn_x2": ItemKind(TABLE2, 1, "uint8", table="float4_e2m1fn_x2"),
}
"""By torch's dtype name without `torch.`."""


def kind_of(dtype: str) -> ItemKind:
    """The kind of a dtype.

    Raises:
        UsageError: statistics know no such dtype (quantised ones, `bits8`, the integers of fewer than 8 bits).
    """
    found = ITEM_KINDS.get(dtype)
    if found is None:
        hint = f"known: {', '.join(sorted(ITEM_KINDS))}; of a quantised tensor take int_repr() or dequantize()"
        raise UsageError(f"no statistics of dtype {dtype!r}", hint=hint)
    return found


def _small_floats(exponent_bits: int, mantissa_bits: int, bias: int) -> Iterator[float]:
    """The value of each code, sign bit on top, with every exponent an ordinary one."""
    for code in range(1 << (1 + exponent_bits + mantissa_bits)):
        mantissa = code & ((1 << mantissa_bits) - 1)
        exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
        sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
        fraction = mantissa / (1 << mantissa_bits)
        yield sign * (fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias))


def _tables() -> Iterator[tuple[str, Floats]]:
    """OCP 8-bit and microscaling formats; the `fnuz` ones after Noune et al., 2022: no -0, its code is NaN."""
    table: Floats = np.ones(256)
    table[0] = 0.0
    yield "bool", table
    table = np.array(list(_small_floats(4, 3, 7)))
    table[[0x7F, 0xFF]] = np.nan
    yield "float8_e4m3fn", table
    table = np.array(list(_small_floats(5, 2, 15)))
    table[[0x7C, 0xFC]] = np.inf, -np.inf
    table[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
    yield "float8_e5m2", table
    for name, bits in (("float8_e4m3fnuz", (4, 3, 8)), ("float8_e5m2fnuz", (5, 2, 16))):
        table = np.array(list(_small_floats(*bits)))
        table[0x80] = np.nan
        yield name, table
    table = np.ldexp(np.ones(256), np.arange(256) - 127)
    table[0xFF] = np.nan
    yield "float8_e8m0fnu", table
    nibbles = np.array(list(_small_floats(2, 1, 1)))
    codes = np.arange(256)
    yield "float4_e2m1fn_x2", np.stack([nibbles[codes & 15], nibbles[codes >> 4]], axis=1).ravel()


TABLES: dict[str, Floats] = {name: np.ascontiguousarray(table, dtype=np.float64) for name, table in _tables()}
"""256 values each; 512 for the packed 4-bit format, the low half of a byte first."""

_BY_ADDRESS: dict[int, Floats] = {table.ctypes.data: table for table in TABLES.values()}


def table_address(kind: ItemKind) -> int:
    """Where the table of `kind` lies in memory; 0 if it has none."""
    return 0 if kind.table is None else int(TABLES[kind.table].ctypes.data)


def table_at(address: int) -> Floats:
    """The table that `table_address` gave this address for."""
    return _BY_ADDRESS[address]
