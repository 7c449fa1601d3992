"""An interpreter with everything that this one has installed, but for graphprobe."""

import functools
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path


@functools.cache
def interpreter() -> str:
    """Path of its `python`; made once, and removed with this process."""
    folder = tempfile.TemporaryDirectory(prefix="bare-")
    interpreter.keep = folder
    venv.create(folder.name, with_pip=False, symlinks=True)
    site = next(Path(folder.name).glob("lib/python*/site-packages"))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "graphprobe" not in entry.name.lower() and not entry.name.startswith(("_editable", "__editable")):
            os.symlink(entry, site / entry.name)
    python = str(Path(folder.name) / "bin" / "python")
    command = [python, "-I", "-c", "import importlib.util as u; print(u.find_spec('graphprobe'), u.find_spec('torch'))"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if not found.startswith("None ModuleSpec"):
        raise RuntimeError(f"{sys.executable} without graphprobe: {found}")
    return python


def run_alone(repro, timeout_s=300):
    """Exit code of a repro, run in a folder of its own where graphprobe is not installed."""
    with tempfile.TemporaryDirectory() as elsewhere:
        command = [interpreter(), "-I", str(Path(repro).resolve())]
        return subprocess.run(command, cwd=elsewhere, capture_output=True, timeout=timeout_s, check=False).returncode
