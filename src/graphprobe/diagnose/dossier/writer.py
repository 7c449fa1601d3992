"""Writes a dossier, whole or not at all, and runs the repro of one."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from torch import fx

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.dossier.report import report_text, title_of
from graphprobe.diagnose.dossier.repro import repro_source
from graphprobe.engine.values import one_file_bytes, to_bytes
from graphprobe.errors import EXIT_UNDECIDED, UsageError
from graphprobe.findings import Diagnosis, Finding
from graphprobe.probe.formats.fx_text import graph_text
from graphprobe.store.files import write_new_file

GRACE_S = 30.0
"""What the repro gets beyond its own time limit to stop its child and say so."""

TEST = '''"""Passes once the fault that repro.py shows is gone."""

import subprocess
import sys
from pathlib import Path


def test_fault_is_gone():
    repro = Path(__file__).resolve().with_name("repro.py")
    done = subprocess.run([sys.executable, "-I", str(repro)], capture_output=True, text=True)
    assert done.returncode == 0, f"exit code {done.returncode}\\n{done.stdout}\\n{done.stderr}"
'''

_counter = itertools.count()


def write_dossier(
    folder: Path,
    case: Case,
    finding: Finding,
    *,
    versions: dict[str, str],
    neighbour: str | None = None,
    before: fx.GraphModule | None = None,
    generated_code: str | None = None,
    kernel_source: tuple[str, str] | None = None,
    window: bytes | None = None,
) -> list[str]:
    """Writes the folder of one finding: `finding.json`, `REPORT.md`, `repro.py`, `test_repro.py`, and their data.

    Args:
        folder: must not exist, or be empty; its parents are made.
        versions: name and version of everything that may matter, for the report.
        neighbour: the nearest variant that passes, as a sentence.
        before: the graph before the accused pass, for `graph_before.txt`.
        generated_code: text of the generated kernels, for `generated_code.py`.
        kernel_source: suffix and text of the accused kernel as the program compiled it, for `kernel.cpp`, `kernel.py`.
        window: the nodes around the accused one, for `window.json`.

    Returns:
        why the repro cannot be run, one line each; empty when it can.

    Raises:
        UsageError: `folder` holds something already, or is a file.
        OSError: as the operating system gives it; nothing stays then.
    """
    folder = Path(folder).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} holds something already", hint="Name a folder that does not exist yet.")
    script = repro_source(case, title=title_of(finding), flaky_rate=finding.flaky_rate)
    files: dict[str, tuple[str, bytes]] = {
        "repro.py": ("shows the fault", script.source.encode()),
        "test_repro.py": ("the same as a test", TEST.encode()),
        "finding.json": ("what was found", finding_json(finding)),
        "graph.txt": ("the minimal graph", graph_text(case.graph).encode()),
    }
    if before is not None:
        files["graph_before.txt"] = ("the graph before the pass", graph_text(before).encode())
    if generated_code is not None:
        files["generated_code.py"] = ("what the compiler generated", generated_code.encode("utf-8", "replace"))
    if kernel_source is not None:
        suffix, text = kernel_source
        meaning = f"source of `{finding.kernel}`, as it was generated for the program"
        files[f"kernel{suffix}"] = (meaning, text.encode("utf-8", "replace"))
    if window is not None:
        files["window.json"] = ("the nodes around the accused one in the whole graph, with the error of each", window)
    for i, call in enumerate(case.calls):
        values, records = to_bytes(call)
        files[f"call{i}.inputs.safetensors"] = (f"memory of the arguments of call {i}", values)
        files[f"call{i}.inputs.json"] = ("their shapes, strides and settings", records)
    if script.constants is not None:
        files[script.constants_name] = ("parameters, buffers and constants of the graph", script.constants)
    if case.allowed:
        files["allowed.safetensors"] = ("how far each element may be off", one_file_bytes({"allowed": case.allowed}))
    meanings = {name: meaning for name, (meaning, _) in files.items()}
    report = report_text(
        case, finding, versions=versions, files=meanings, neighbour=neighbour, problems=script.problems
    )
    _write_folder(folder, {"REPORT.md": report.encode(), **{name: data for name, (_, data) in files.items()}})
    return list(script.problems)


def rewrite_finding(finding: Finding) -> None:
    """Write `finding.json` again, with what has been found out since the dossier was written."""
    path = Path(finding.dossier) / "finding.json" if finding.dossier is not None else None
    if path is not None and path.exists():
        temporary = path.with_suffix(".new")
        write_new_file(temporary, finding_json(finding))
        temporary.replace(path)


def finding_json(finding: Finding) -> bytes:
    """A finding as the dossier keeps it."""
    plain = Diagnosis(verdict="fault", findings=[finding]).to_json()["findings"][0]
    return (json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _write_folder(folder: Path, files: dict[str, bytes]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}-{next(_counter)}")
    try:
        temporary.mkdir()
        for name, data in files.items():
            write_new_file(temporary / name, data)
        temporary.replace(folder)  # takes the place of an empty folder, never of one that holds something
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def run_repro(folder: Path, *, timeout_s: float = 300.0) -> int:
    """Runs a dossier's repro in a fresh process, in a folder of its own, and returns its exit code.

    1: the fault is there. 0: it is gone. 125: undecided, also when it did not end in time.
    """
    repro = Path(folder).resolve() / "repro.py"
    command = [sys.executable, "-I", str(repro), "--timeout", str(timeout_s)]
    if not repro.is_file():
        return EXIT_UNDECIDED
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as elsewhere:
        try:
            done = subprocess.run(command, cwd=elsewhere, capture_output=True, timeout=timeout_s + GRACE_S, check=False)
        except subprocess.TimeoutExpired:
            return EXIT_UNDECIDED
    return done.returncode if done.returncode >= 0 else EXIT_UNDECIDED
