"""A fault that no piece of the program shows alone: the proof is the program itself."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import torch

from graphprobe.diagnose.dossier.program_proof import write_program_proof
from graphprobe.diagnose.dossier.report import program_report, title_of
from graphprobe.diagnose.dossier.writer import TEST, finding_json, run_repro
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.prove import NOT_ALONE, REPRO_FAILS, free_folder
from graphprobe.diagnose.settings import Compilation, changed_settings, versions
from graphprobe.errors import GraphprobeError
from graphprobe.findings import Finding, told_more

log = logging.getLogger(__name__)

FINE = 16 * torch.finfo(torch.float32).eps
"""Relative tolerance of a second repro, where the first one does not see an error that the judge sees."""

NUMBERS = ("wrong_value", "wrong_gradient", "lost_mutation")


def prove_by_program(program: Program, compilation: Compilation, finding: Finding) -> None:
    """Write the program as a repro and run it in a process of its own; fill in the finding if it fails there.

    To be called where no call of the program has run yet. What could not be done is said in the finding's reason.
    """
    folder = free_folder(compilation.folder, finding)
    for tolerance in (None, FINE) if finding.kind in NUMBERS else (None,):
        try:
            folder.mkdir(parents=True)
            problems = _write(folder, program, compilation, finding, tolerance)
        except (GraphprobeError, OSError, ValueError, TypeError, RuntimeError) as error:
            problems = [f"{type(error).__name__}: {error}"]
        code = run_repro(folder) if not problems else None
        if code == REPRO_FAILS:
            finding.dossier, finding.proof = str(folder), "program"
            finding.reason = finding.reason.replace(NOT_ALONE, "").strip()
            files = {"finding.json": finding_json(finding), "test_repro.py": TEST.encode()}
            files["REPORT.md"] = program_report(finding, versions=versions()).encode()
            for name, data in files.items():
                (folder / name).write_bytes(data)
            return
        log.info("the program as a repro: exit code %s, %s", code, problems)
        shutil.rmtree(folder, ignore_errors=True)
        if problems:
            more = f"The program could not be written down as a repro: {'; '.join(problems)}."
            finding.reason = told_more(finding.reason, more)
            return
    more = "Written down as a repro, the program does not fail in a process of its own."
    finding.reason = told_more(finding.reason, more)


def _write(
    folder: Path, program: Program, compilation: Compilation, finding: Finding, tolerance: float | None
) -> list[str]:
    with compilation.configured():
        changed = changed_settings()
    settings = {"inductor": changed.inductor, "functorch": changed.functorch, "dynamo": changed.dynamo}
    return write_program_proof(
        folder,
        program.fn,
        program.calls,
        between=program.between,
        grad=program.grad,
        backend=compilation.backend,
        dynamic=compilation.dynamic,
        options={"fullgraph": True} if compilation.fullgraph else None,
        settings={name: values for name, values in settings.items() if values},
        what=title_of(finding),
        kind=finding.kind,
        tolerance=tolerance,
    )
