"""mindstudio-probe itself, in the environment of its own that `make msprobe` creates."""

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
    command = [PYTHON, DATA / "make.py", folder, kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / kind
