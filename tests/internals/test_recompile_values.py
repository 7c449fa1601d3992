"""Values are read out of a frame without running the program's code."""

from typing import Any

import pytest
import torch

from graphprobe.analysis.recompile_facts import ReadGuard
from graphprobe.internals.dynamo.recompile_taps import value_in_frame


class Loud:
    """Everything that can be asked of it is counted."""

    def __init__(self) -> None:
        self.plain = 3
        self.asked: list[str] = []

    @property
    def computed(self) -> int:
        self.asked.append("computed")
        return 4

    def __getattr__(self, name: str) -> int:
        self.asked.append(name)
        return 5

    def __len__(self) -> int:
        self.asked.append("len")
        return 6

    def __repr__(self) -> str:
        self.asked.append("repr")
        return "Loud"

    def __getitem__(self, key: object) -> int:
        self.asked.append("item")
        return 7


class LoudDict(dict[str, int]):
    def __getitem__(self, key: str) -> int:
        raise AssertionError("the program's own code ran")


def value(kind: str, source: str, scope: dict[str, Any], dim: int | None = None) -> str | None:
    return value_in_frame(ReadGuard(kind, source, dim), scope, {"K": 8})


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [
        ("attribute-changed", "o.plain", "3"),
        ("attribute-changed", "o.computed", None),
        ("attribute-changed", "o.absent", None),
        ("int-changed", "o[0]", None),
        ("length-changed", "o", None),
        ("object-changed", "o", "a Loud"),
        ("type-changed", "o", f"{__name__}.Loud"),
    ],
)
def test_the_programs_code_does_not_run(kind: str, source: str, expected: str | None) -> None:
    loud = Loud()
    assert value(kind, source, {"o": loud}) == expected
    assert loud.asked == []


def test_plain_values() -> None:
    scope = {"n": 3, "s": "x" * 500, "d": LoudDict(a=1), "xs": [1, (2,)], "t": torch.ones(2, 5), "G": 1}
    whole = {source: value("int-changed", source, scope) for source in ("n", "d['a']", "xs[1][0]", "absent", "f(n)")}
    assert whole == {"n": "3", "d['a']": "1", "xs[1][0]": "2", "absent": None, "f(n)": None}
    assert len(value("string-changed", "s", scope) or "") == 60
    assert (value("length-changed", "xs", scope), value("keys-changed", "d", scope)) == ("2", "'a'")
    assert [value("size-bounds", "t", scope, dim=dim) for dim in (1, 2)] == ["5", None]
    assert value_in_frame(ReadGuard("global-changed", "G['K']"), {}, {"K": 8}) == "8"
