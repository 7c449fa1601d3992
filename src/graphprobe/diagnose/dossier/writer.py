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
from graphprobe.diagnose.dossier.long import ALLOWED, CONSTANTS, assignments, long_repro
from graphprobe.diagnose.dossier.proof_run import run_script
from graphprobe.diagnose.dossier.report import (
    CODES,
    backends_of,
    report_text,
    with_backends,
    with_known,
    with_workarounds,
)
from graphprobe.diagnose.dossier.template import Repro
from graphprobe.diagnose.settings import versions
from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, UsageError
from graphprobe.findings import Finding, Rung, Stage, finding_json
from graphprobe.probe.formats.fx_text import graph_text
from graphprobe.store.files import replace_file, write_new_file

log = logging.getLogger(__name__)

EXACT = "exact"
"""Folder of the long form of a repro and its data, beside the short one."""

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

RECORDS = "their shapes, strides and settings"
MEANINGS = {
    CONSTANTS: "parameters, buffers and constants of the graph",
    ALLOWED: "how far each element may be off",
}
"""What is in a file beside a script."""

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
    shown: Repro | None = None,
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
    long = long_repro(case, finding)
    files = _files_of(finding, long if shown is None else shown)
    if shown is not None and shown.control:
        files |= {f"{EXACT}/{name}": entry for name, entry in _script_files(long).items()}
        files[f"{EXACT}/repro.py"] = ("the recorded graph on the recorded bits", long.text.encode())
    files["graph.txt"] = ("the minimal graph", graph_text(case.graph).encode())
    if before is not None:
        files["graph_before.txt"] = ("the graph before the pass", graph_text(before).encode())
    if kernel_source is not None:
        meaning = f"source of `{finding.kernel}`, as it was generated for the program"
        files[f"kernel{kernel_source[0]}"] = (meaning, kernel_source[1].encode("utf-8", "replace"))
    told: dict[str, Any] = {"code": long.text, "problems": long.problems, "graph": graph_text(case.graph)}
    if shown is not None and shown.control:
        told = {"code": shown.text, "output": shown.output}
    report = report_text(
        finding,
        versions=versions(),
        files={name: meaning for name, (meaning, _) in files.items()},
        log=log,
        neighbour=neighbour,
        settings=() if shown is not None and shown.control else assignments(case.configs),
        **told,
    )
    _write_folder(folder, {"REPORT.md": report.encode(), **{name: data for name, (_, data) in files.items()}})
    return list(long.problems)


def _script_files(shown: Repro) -> _Files:
    """A script, and what it reads."""
    files: _Files = {"repro.py": ("shows the fault", shown.text.encode())}
    return files | {name: (_meaning_of(name), data) for name, data in shown.files.items()}


def _meaning_of(name: str) -> str:
    """What is in a file that a script reads."""
    stem, _, suffix = name.rpartition(".inputs.")
    if stem.startswith("call"):
        number = stem.removeprefix("call")
        return f"memory of the arguments of call {number}" if suffix == "safetensors" else RECORDS
    return MEANINGS.get(name, "what repro.py reads")


def _files_of(finding: Finding, shown: Repro | None) -> _Files:
    """What is in every folder: what was found and, where there is one, a script with what it reads and printed."""
    files: _Files = {} if shown is None else {"test_repro.py": ("the same as a test", TEST.encode())}
    files["finding.json"] = ("what was found", finding_json(finding))
    if shown is not None:
        files |= _script_files(shown)
    if shown is not None and shown.output:
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
        write_files(temporary, files)
        temporary.replace(folder)  # takes the place of an empty folder, never of one that holds something
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_proof(
    folder: Path,
    finding: Finding,
    shown: Repro | None = None,
    *,
    code: str | None = None,
    files: Mapping[str, str] | None = None,
) -> None:
    """Write the folder of a program's finding: its repro, if there is one, and what belongs to it.

    Args:
        code: of the report; None: the repro.
        files: name and meaning of what can be attached.
    """
    write_files(folder, {name: data for name, (_, data) in _files_of(finding, shown).items()})
    if finding.kind != "wrong_registration":  # the program's own to mend: nothing to report
        script = Repro("") if shown is None else shown
        code = script.text if code is None else code
        report = report_text(finding, code=code, output=script.output, versions=versions(), files=files or {})
        write_files(folder, {"REPORT.md": report.encode()})


def first_shown(
    candidates: Iterable[Repro],
    stage: Stage = "unknown",
    *,
    longs: Callable[[], Sequence[Repro]] = list,
    long_first: bool = False,
    timeout_s: float = 300.0,
) -> Repro | None:
    """The first of these scripts that shows its fault alone in an empty folder, and whose control shows none.

    None where none does.

    Args:
        stage: of the finding.
        longs: returns long forms of the proof, one of which is taken where no other script shows the fault. They are
            tried once, behind the first script that runs to its end without the fault: where they show none either, no
            other script is tried.
        long_first: before any script.
    """

    def first(scripts: Iterable[Repro]) -> tuple[Repro | None, bool]:
        """The first that shows the fault; whether the last one ran to its end without it."""
        gone = False
        for script in scripts:
            code, shown = _tried(script, stage, timeout_s)
            gone = code == EXIT_OK
            if shown is not None:
                return shown, False
        return None, gone

    long, gone = first(longs()) if long_first else (None, False)
    asked = long_first
    for short in () if gone else candidates:
        code, shown = _tried(short, stage, timeout_s)
        if shown is not None:
            return shown
        if code == EXIT_OK and not asked:
            (long, gone), asked = first(longs()), True
            if gone:
                return None
    return long if asked else first(longs())[0]


def _tried(script: Repro, stage: Stage, timeout_s: float) -> tuple[int, Repro | None]:
    """Exit code of a script that runs alone, beside its control; the script, with what it printed, if it is a proof."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, ThreadPoolExecutor(2) as pool:
        folder, control = Path(name), None
        write_files(folder, script.written())
        if script.control:
            write_files(folder, {"control.py": script.control.encode()})
            control = pool.submit(run_script, [str(folder / "control.py")], timeout_s, stage)
        code, output = run_script([str(folder / "repro.py")], timeout_s, stage)
        right, said = (EXIT_OK, "") if control is None else control.result()
    lines = script.text.count("\n")
    log.info("a script of %d lines: exit code %s, its control %s, %.300s %.300s", lines, code, right, output, said)
    shows = code == EXIT_FOUND and right == EXIT_OK
    return code, replace(script, output=output.replace(name + os.sep, "")) if shows else None


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files that are not there yet, some of them in folders, which are made."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_new_file(folder / name, data)


def run_repro(folder: Path, stage: Stage = "unknown", *, timeout_s: float = 300.0) -> int:
    """Runs a dossier's repro in a fresh process, in a folder of its own, and returns its exit code.

    `stage`: of the finding. 1: the fault is there. 0: it is gone. 125: undecided, also when it did not end in time.
    """
    repro = Path(folder).resolve() / "repro.py"
    if not repro.is_file():
        return EXIT_UNDECIDED
    return run_script([str(repro)], timeout_s, stage)[0]
