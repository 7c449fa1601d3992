"""What the tests of the cases ask of `diagnose`; each records its row of `score.py`.

The tests are a file a folder, so that `--dist loadfile` shares them out. `score.py --of X.xml` adds the rows up after
`pytest --junitxml X.xml`.
"""

import json
from collections.abc import Callable

import cases
import pytest
import score

from warm.pool import Warm

QUICK = {"postgrad_sub_swapped", "masked_attention"}
"""Run by `make test-slow`; the rest is marked `heavy`."""

MISSED: dict[str, set[str]] = {
    "postgrad_cast_sunk_matmul": {"found", "stage", "op"}  # suspected rightly, but no piece of it fails by itself
}
"""What is known not to be told of a fault; the rest must be, and `undecided` is the most that may be said instead."""


def judged(folder: str) -> Callable[..., None]:
    """A test of each case of a folder: of a fault every point of `score.judge` but those of `MISSED`, of a control that
    nothing is accused."""
    marks = {name: pytest.mark.slow if name in QUICK else pytest.mark.heavy for name in cases.names(folder)}

    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("name", [pytest.param(name, marks=mark) for name, mark in marks.items()])
    def test(name: str, warm: Warm, record_property: Callable[[str, object], None]) -> None:
        row = score.run(name, timeout_s=800, python=warm.executable)
        record_property("row", json.dumps(row))
        points = row["score"]
        assert "error" not in points, points["error"]
        if row["expected"]["kind"] == "control":
            assert points["silent"] and points["healthy"], row["diagnosis"]
            return
        missed = MISSED.get(name, set())
        assert row["diagnosis"]["verdict"] != "healthy"
        asked = ("found", "stage", "op", "source", "repro") if "source" in points else ("found", "stage", "op")
        assert all(points[point] for point in asked if point not in missed), row
        longest = row["expected"].get("lines")
        assert longest is None or (points["lines"] or longest + 1) <= longest, row

    return test
