"""Writes a dossier, whole or not at all, and runs the repro of one."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import fx

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.dossier.long import assignments, repro_source
from graphprobe.diagnose.dossier.proof_run import run_script
from graphprobe.diagnose.dossier.report import (
    CODES,
    backends_of,
    report_text,
    title_of,
    with_backends,
    with_known,
    with_workarounds,
)
from graphprobe.diagnose.dossier.short import Short
from graphprobe.diagnose.settings import versions
from graphprobe.engine.values import one_file_bytes, to_bytes
from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, UsageError
from graphprobe.findings import Finding, Rung, Stage, finding_json
from graphprobe.probe.formats import Script
from graphprobe.probe.formats.fx_text import graph_text
from graphprobe.store.files import replace_file, write_new_file

log = logging.getLogger(__name__)

EXACT = "exact"
"""Folder of the long form of a repro and its data, beside the short one."""

GRACE_S = 30.0
"""What the repro gets beyond its own time limit to stop its child and say so."""

NOT_ALONE = (
    "The repro does not fail in a process of its own, so the fault needs something of this process: a patch, a pass or"
    " a setting that cannot be saved."
)

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

_Files = dict[str, tuple[str, bytes]]
"""By name: what is in a file, in words, and its bytes."""


def write_dossier(
    folder: Path,
    case: Case,
    finding: Finding,
    *,
    neighbour: str | None = None,
    before: fx.GraphModule | None = None,
    kernel_source: tuple[str, str] | None = None,
    shown: Short | None = None,
    log: str = "",
) -> list[str]:
    """Writes the folder of one finding: `finding.json`, `REPORT.md`, `repro.py`, `test_repro.py`, and their data.

    Where there is a short `repro.py`, the long one, which runs the recorded graph on the recorded bits, and its data go
    to `exact/`.

    Args:
        folder: must not exist, or be empty; its parents are made.
        neighbour: the nearest variant that passes, as a sentence.
        before: the graph before the accused pass, for `graph_before.txt`.
        kernel_source: suffix and text of the accused kernel as the program compiled it, for `kernel.cpp`, `kernel.py`.
        shown: the short repro, which has shown the fault.
        log: what the compiler or the program raised.

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
    files = _files_of(finding, shown)
    files |= {name if shown is None else f"{EXACT}/{name}": entry for name, entry in _long_files(case, script).items()}
    files["repro.py"] = ("shows the fault", files["repro.py"][1])
    files["graph.txt"] = ("the minimal graph", graph_text(case.graph).encode())
    if before is not None:
        files["graph_before.txt"] = ("the graph before the pass", graph_text(before).encode())
    if kernel_source is not None:
        meaning = f"source of `{finding.kernel}`, as it was generated for the program"
        files[f"kernel{kernel_source[0]}"] = (meaning, kernel_source[1].encode("utf-8", "replace"))
    told: dict[str, Any] = {"code": script.source, "problems": script.problems, "graph": graph_text(case.graph)}
    if shown is not None:
        told = {"code": shown.text, "output": shown.output}
    report = report_text(
        finding,
        versions=versions(),
        files={name: meaning for name, (meaning, _) in files.items()},
        log=log,
        neighbour=neighbour,
        settings=assignments(case.configs) if shown is None else (),
        **told,
    )
    _write_folder(folder, {"REPORT.md": report.encode(), **{name: data for name, (_, data) in files.items()}})
    return list(script.problems)


def _long_files(case: Case, script: Script) -> _Files:
    """The repro of the recorded graph, and what it reads."""
    files: _Files = {"repro.py": ("the recorded graph on the recorded bits", script.source.encode())}
    for i, call in enumerate(case.calls):
        values, records = to_bytes(call)
        files[f"call{i}.inputs.safetensors"] = (f"memory of the arguments of call {i}", values)
        files[f"call{i}.inputs.json"] = ("their shapes, strides and settings", records)
    if script.constants is not None:
        files[script.constants_name] = ("parameters, buffers and constants of the graph", script.constants)
    if case.allowed:
        files["allowed.safetensors"] = ("how far each element may be off", one_file_bytes({"allowed": case.allowed}))
    return files


def _files_of(finding: Finding, shown: Short | None) -> _Files:
    """What is in every folder, and a short repro with what it reads and printed."""
    files: _Files = {"test_repro.py": ("the same as a test", TEST.encode())}
    files["finding.json"] = ("what was found", finding_json(finding))
    if shown is not None:
        files |= {name: ("what repro.py reads", data) for name, data in shown.written().items()}
        files["output.txt"] = ("what it printed", shown.output.encode())
    return files


def complete_dossier(finding: Finding, rungs: Sequence[Rung], backend: str) -> None:
    """Add what has been found out since a dossier was written: `finding.json` again, and the backends' table."""
    path = Path(finding.dossier) / "finding.json" if finding.dossier is not None else None
    if path is not None and path.exists():
        temporary = path.with_suffix(".new")
        write_new_file(temporary, finding_json(finding))
        temporary.replace(path)
    report = Path(finding.dossier) / "REPORT.md" if finding.dossier is not None else None
    if report is not None and report.exists() and rungs:
        exact = finding.kind == "not_bitwise"  # all rungs are right then
        text = with_backends(report.read_text("utf-8"), {} if exact else backends_of(rungs, backend=backend))
        text = with_known(with_workarounds(text, finding.workarounds), finding.known)
        if finding.proof is None:
            text = text.replace(CODES, f"shows no fault if it is run alone. {NOT_ALONE}")
        replace_file(report, text.encode())


def _write_folder(folder: Path, files: dict[str, bytes]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}-{next(_counter)}")
    try:
        temporary.mkdir()
        for name, data in files.items():
            (temporary / name).parent.mkdir(exist_ok=True)
            write_new_file(temporary / name, data)
        temporary.replace(folder)  # takes the place of an empty folder, never of one that holds something
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_proof(
    folder: Path,
    finding: Finding,
    shown: Short | None = None,
    *,
    code: str | None = None,
    files: Mapping[str, str] | None = None,
) -> None:
    """Write the short repro of a program, and beside the repro that is in the folder then what belongs to it.

    Args:
        code: of the report; None: the repro.
        files: name and meaning of what can be attached.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, (_, data) in _files_of(finding, shown).items():
        if shown is not None or name != "test_repro.py" or (folder / "repro.py").exists():
            (folder / name).write_bytes(data)
    if finding.kind != "wrong_registration":  # the program's own to mend: nothing to report
        repro = folder / "repro.py"
        code = repro.read_text("utf-8") if code is None and repro.exists() else code
        output = "" if shown is None else shown.output
        report = report_text(finding, code=code or "", output=output, versions=versions(), files=files or {})
        (folder / "REPORT.md").write_text(report, "utf-8")


def first_shown(
    candidates: Iterable[Short],
    stage: Stage = "unknown",
    *,
    long_form: Callable[[], bool] | None = None,
    timeout_s: float = 300.0,
) -> Short | None:
    """The first of these scripts that shows its fault alone in an empty folder, and whose control shows none.

    None where none does.

    Args:
        stage: of the finding.
        long_form: whether the long form of the proof fails alone. Asked once, behind the first script that runs to its
            end without the fault: where the long form shows no fault either, no other script is tried.
    """
    for short in candidates:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ThreadPoolExecutor(2) as pool:
            for name, data in {**short.written(), "control.py": short.control.encode()}.items():
                (Path(folder) / name).write_bytes(data)
            control = pool.submit(run_script, [str(Path(folder) / "control.py")], timeout_s, stage)
            code, output = run_script([str(Path(folder) / "repro.py")], timeout_s, stage)
            right, said = control.result()
        lines = short.text.count("\n")
        log.info(
            "a short repro of %d lines: exit code %s, its control %s, %.300s %.300s", lines, code, right, output, said
        )
        if code == EXIT_FOUND and right == EXIT_OK:
            return replace(short, output=output.replace(folder + os.sep, ""))
        if code == EXIT_OK and long_form is not None:
            if not long_form():
                return None
            long_form = None
    return None


def shown_or_long(
    candidates: Iterable[Short],
    stage: Stage,
    long_form: Callable[[], tuple[int | None, list[str]]],
    *,
    long_first: bool = False,
) -> tuple[Short | None, int | None, list[str]]:
    """The first script that shows its fault alone; else how the long form does: its exit code, and what it lacks.

    Args:
        long_form: writes it and runs it; done once at most.
        long_first: before any script.
    """
    asked: list[tuple[int | None, list[str]]] = []

    def fails() -> bool:
        asked.append(long_form())
        return asked[-1][0] != EXIT_OK

    shown = None
    if not long_first or fails():
        shown = first_shown(candidates, stage, long_form=None if asked else fails)
    code, problems = (EXIT_FOUND, []) if shown is not None else asked[0] if asked else long_form()
    return shown, code, problems


def run_repro(folder: Path, stage: Stage = "unknown", *, timeout_s: float = 300.0) -> int:
    """Runs a dossier's repro in a fresh process, in a folder of its own, and returns its exit code.

    `stage`: of the finding. 1: the fault is there. 0: it is gone. 125: undecided, also when it did not end in time.
    """
    repro = Path(folder).resolve() / "repro.py"
    if not repro.is_file():
        return EXIT_UNDECIDED
    return run_script([str(repro), "--timeout", str(timeout_s)], timeout_s + GRACE_S, stage)[0]
