"""mindstudio-probe itself, in the environment of its own that `make msprobe` creates."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

DATA = ROOT / "tests" / "data" / "msprobe"
PYTHON = Path(f"{sys.prefix}-msprobe", "bin", "python")
needs_msprobe = pytest.mark.skipif(not PYTHON.exists(), reason="no environment with mindstudio-probe: run make msprobe")


def dumped(kind: str, folder: Path) -> Path:
    """The dump that it writes, now, of the program in `make.py` for this kind."""
    _run(str(DATA / "make.py"), str(folder), kind)
    return folder / kind


def compared(target: Path, golden: Path, out: Path) -> list[dict[str, str]]:
    """The rows of its own comparison of two steps of dumps in its layout."""
    out.mkdir()
    for path in (*target.rglob("*"), *golden.rglob("*"), target, golden, out):  # it refuses files that others may write
        path.chmod(0o750 if path.is_dir() else 0o640)
    _run("-m", "msprobe.msprobe", "compare", "-tp", str(target), "-gp", str(golden), "-o", str(out))
    (result,) = out.glob("*.csv")
    with open(result, newline="") as file:
        return list(csv.DictReader(file))


def _run(*args: str) -> None:
    done = subprocess.run([PYTHON, *args], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
