"""The C++ core may be missing or stale: then numpy gives the same statistics, and it is said why."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from conftest import ROOT, Finished
from graphprobe.numerics import native, stats_from_array
from numerics.stats_both import instruction_set, needs_native

PROGRAM = """
import sys, types
{before}
import numpy as np
from graphprobe.numerics import native
from graphprobe.numerics.stats import stats_from_array
print(native.core is None, native.description())
x = np.arange(1000, dtype=np.float32)
print(stats_from_array(x).digest, stats_from_array(x).mean, "torch" in sys.modules)
"""

MISSING = "sys.modules['graphprobe.numerics._native'] = None"
STALE = """
stale = types.ModuleType("_native")
stale.VERSION = 0
import graphprobe.numerics
graphprobe.numerics._native = sys.modules["graphprobe.numerics._native"] = stale
"""


def test_both_sides_have_one_version() -> None:
    text = (ROOT / "native" / "CMakeLists.txt").read_text(encoding="utf-8")
    found = re.search(r"set\(GRAPHPROBE_NATIVE_VERSION (\d+)\)", text)
    assert found and int(found[1]) == native.VERSION


def test_the_instruction_set_in_use_is_named(instructions: str) -> None:
    core = native.core
    assert core is not None
    with instruction_set(instructions):
        assert core.instruction_set() == instructions
        assert native.description() == f"version {native.VERSION}, instruction set {instructions}"
        assert not core.set_instruction_set("no_such_set") and core.instruction_set() == instructions


@needs_native
def test_the_fastest_one_is_in_use() -> None:
    core = native.core
    assert core is not None
    kept = core.instruction_set()
    assert kept == next(name for name in core.instruction_sets() if core.set_instruction_set(name))


@pytest.mark.parametrize(
    ("before", "reason"), [(MISSING, "not built ("), (STALE, "built from other sources (version 0, expected ")]
)
def test_without_it(before: str, reason: str, run_python: Callable[..., Finished]) -> None:
    done = run_python("-c", PROGRAM.format(before=before))
    assert done.code == 0, done.err
    said, result = done.out.splitlines()
    assert said.startswith(f"True {reason}") and "statistics of tensors come from numpy" in said
    x = stats_from_array(np.arange(1000, dtype=np.float32))
    assert result == f"{x.digest} {x.mean} False" and x.mean == 499.5
