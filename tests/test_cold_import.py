"""What must start fast and without torch: the package itself and every command that only reads files."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from conftest import Finished

CPU_LIMIT_S = 0.3
HEAVY = ("torch", "transformers", "onnx", "numpy")

REPORT = (
    "import json, sys; sys.stderr.write('\\nLOADED ' + json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
)
COMMAND = f"""
import sys
sys.argv = ["graphprobe", *sys.argv[1:]]
try:
    from graphprobe.cli.main import main
    main()
finally:
    {REPORT}
"""

Run = Callable[..., Finished]


def loaded(done: Finished) -> set[str]:
    """Top-level packages that the process had imported when it ended."""
    _, mark, names = done.err.rpartition("\nLOADED ")
    assert mark, done.err
    return set(json.loads(names))


def test_the_measurement_sees_torch(run_python: Run) -> None:
    assert "torch" in loaded(run_python("-c", f"import torch; {REPORT}"))


def test_importing_the_package_imports_nothing_heavy(run_python: Run) -> None:
    done = run_python("-c", f"import graphprobe; {REPORT}")
    assert done.code == 0, done.err
    assert loaded(done).isdisjoint(HEAVY)


def test_the_switch_turned_off_imports_nothing_heavy(run_python: Run) -> None:
    done = run_python("-c", f"import graphprobe; {REPORT}", env={"TORCH_COMPILE_DEBUG": "0"})
    assert done.code == 0, done.err
    assert loaded(done).isdisjoint(HEAVY)


def test_listing_the_package_imports_nothing_heavy(run_python: Run) -> None:
    done = run_python("-c", f"import graphprobe; dir(graphprobe); graphprobe.__version__; {REPORT}")
    assert done.code == 0, done.err
    assert loaded(done).isdisjoint(HEAVY)


@pytest.mark.parametrize("args", [("--help",), ("ls", "--help"), ("show", "--help"), ("diff", "--help")], ids=" ".join)
def test_help_imports_no_torch(run_python: Run, args: tuple[str, ...]) -> None:
    done = run_python("-c", COMMAND, *args)
    assert done.code == 0, done.err
    assert "Usage" in done.out
    assert "torch" not in loaded(done)


def test_reading_a_missing_run_imports_no_torch(run_python: Run) -> None:
    done = run_python("-c", COMMAND, "ls", "there-is-no-such-run")
    assert done.code == 2, done.err
    assert "run-not-found" in done.err
    assert "torch" not in loaded(done)


def test_help_takes_little_cpu(run_python: Run) -> None:
    best = min(run_python("-c", COMMAND, "--help").cpu_s for _ in range(3))
    assert best < CPU_LIMIT_S, f"`graphprobe --help` took {best:.2f} s of CPU time at best"
