"""Damages of files: bytes changed, cut and doubled; lines lost, doubled and swapped; values of JSON that cannot be."""

import contextlib
import json
import random
import re
from collections.abc import Callable
from typing import Any

PATHS = ["..", "../../../../etc/passwd", "/etc/passwd"]
TEXTS = ["", *PATHS, "\0", "a" * 100_000, "NaN", "1e999", "line\nbreak", "\x1b]0;x\x07"]
NUMBERS = [0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**400, 1e308, 0.5]
DIGITS = [b"9" * 5000, b"9" * 19, "²".encode(), b"-1", b"0", b"1e999", b"0.5"]
_DIGITS = re.compile(rb"\d+")
DEPTHS = [50, 900, 1100, 100_000]


def mutated(data: bytes, chance: random.Random) -> bytes:
    ways = [_bits, _cut, _double, _drop, _noise]
    if _DIGITS.search(data):
        ways.append(_number)
    if b"\n" in data:
        ways += [_line_lost, _line_doubled, _lines_swapped]
    if data[:1] in (b"{", b"["):
        ways += [_json] * 6
    return chance.choice(ways)(data, chance)


def _bits(data: bytes, chance: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(chance.choice([1, 1, 4, 32])):
        if found:
            found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)
    return bytes(found)


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _double(data: bytes, chance: random.Random) -> bytes:
    a, b = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return data[:b] + data[a:b] + data[b:]


def _drop(data: bytes, chance: random.Random) -> bytes:
    a = chance.randrange(len(data) + 1)
    return data[:a] + data[a + chance.choice([1, 8, 300]) :]


def _noise(data: bytes, chance: random.Random) -> bytes:
    a = chance.randrange(len(data) + 1)
    return data[:a] + chance.randbytes(chance.choice([1, 8, 64])) + data[a + 8 :]


def _number(data: bytes, chance: random.Random) -> bytes:
    """Other digits than those of a number, wherever it stands."""
    found = chance.choice(list(_DIGITS.finditer(data)))
    return data[: found.start()] + chance.choice(DIGITS) + data[found.end() :]


def _line(data: bytes, chance: random.Random) -> tuple[list[bytes], int]:
    """All lines, and the number of one of them."""
    lines = data.splitlines(keepends=True)
    return lines, chance.randrange(len(lines))


def _line_lost(data: bytes, chance: random.Random) -> bytes:
    lines, at = _line(data, chance)
    return b"".join(lines[:at] + lines[at + 1 :])


def _line_doubled(data: bytes, chance: random.Random) -> bytes:
    lines, at = _line(data, chance)
    return b"".join(lines[: at + 1] + lines[at:])


def _lines_swapped(data: bytes, chance: random.Random) -> bytes:
    lines, a = _line(data, chance)
    b = chance.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return b"".join(lines)


def _json(data: bytes, chance: random.Random) -> bytes:
    """Another value somewhere in the document, or in one of the lines that are documents."""
    with contextlib.suppress(ValueError):
        return _document(data, chance)
    lines, at = _line(data, chance)
    with contextlib.suppress(ValueError):
        lines[at] = _document(lines[at], chance) + b"\n"
        return b"".join(lines)
    return _bits(data, chance)


def _document(data: bytes, chance: random.Random) -> bytes:
    document = json.loads(data)
    places = list(_places(document, lambda new: None))
    old, put = chance.choice(places)
    marker = "@graphprobe-deep@"
    new = _value(old, chance, marker)
    if len(places) == 1:
        document = new
    else:
        put(new)
    depth = chance.choice(DEPTHS)
    deep = "[" * depth + "]" * depth if chance.random() < 0.5 else '{"a":' * depth + "1" + "}" * depth
    return json.dumps(document).replace(f'"{marker}"', deep).encode("utf-8", "surrogatepass")


def _places(value: Any, put: Callable[[Any], None]) -> Any:
    yield value, put
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield from _places(value[key], lambda new, key=key: value.__setitem__(key, new))


def _value(old: Any, chance: random.Random, marker: str) -> Any:
    plain = [chance.choice(values) for values in (TEXTS, TEXTS, NUMBERS, NUMBERS)]
    return chance.choice([*plain, None, True, [], {}, [old], {"x": old}, [old] * 50, marker])
