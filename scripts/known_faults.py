"""Makes the catalogue of known faults: cases of torch's tracker are diagnosed, and each proof is run by each torch.

python scripts/known_faults.py [CASE.py]… [--matrix .matrix] [--kept build/known]

CASE.py: programs in the form of tests/diagnose/tracker, beside those. The comment of a case names
`pytorch/pytorch#N`, if it has an issue.
Diagnoses and the answers of each torch are kept in `--kept`, and not made again. `make test-matrix` installs the
torches.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from graphprobe.diagnose.workarounds.known_faults import CATALOGUE, KnownFault, condition_of, stem_of
from graphprobe.findings import Finding

ROOT = Path(__file__).resolve().parent.parent
SCORE = ROOT / "tests" / "diagnose" / "score.py"
OUT = ROOT / "src" / "graphprobe" / "diagnose" / "workarounds" / CATALOGUE
ISSUE = re.compile(r"pytorch/pytorch#(\d+)")
TIMEOUT_S = 600.0
ANSWERS = {0: False, 1: True}
"""Of a proof: the fault is there, or gone; by its exit code."""


def issue_of(case: Path) -> str | None:
    """`pytorch#N`, the first that the docstring of a case names."""
    found = ISSUE.search(case.read_text("utf-8").partition("import")[0])
    return f"pytorch#{found[1]}" if found else None


def diagnosed(case: Path, folder: Path) -> list[Finding]:
    """The findings of a case, made where they are not there yet, with the folders of their dossiers as they are now."""
    out = folder / "diagnosis.json"
    if not out.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(SCORE), "--child", str(case), str(out)]
        with tempfile.TemporaryDirectory() as scratch:
            subprocess.run(command, cwd=scratch, timeout=TIMEOUT_S, check=False)
    found = json.loads(out.read_text("utf-8"))["findings"] if out.exists() else []
    findings = [msgspec.convert(one, Finding, strict=False) for one in found]
    for finding in (one for one in findings if one.dossier is not None):
        finding.dossier = str(folder / "dossiers" / Path(finding.dossier or "").name)
    return findings


def fails(python: Path, finding: Finding, kept: Path) -> bool | None:
    """Whether a proof fails with the torch of a Python; None where it cannot tell."""
    if not kept.exists():
        script = Path(finding.dossier or "") / "repro.py"
        with tempfile.TemporaryDirectory() as scratch:
            try:
                done = subprocess.run([python, "-I", script], cwd=scratch, timeout=TIMEOUT_S, check=False).returncode
            except subprocess.TimeoutExpired:
                done = 125
        kept.write_text(str(done), "utf-8")
    return ANSWERS.get(int(kept.read_text("utf-8")))


def pythons(matrix: Path) -> dict[str, Path]:
    """By `2.13`, the Python of each torch: those of the matrix, and this one; of those whose torch can be imported."""
    found: dict[str, Path] = {}
    for python in (*sorted(matrix.glob("2.*/bin/python")), Path(sys.executable)):
        command = [str(python), "-c", "import torch; print(torch.__version__)"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{python} is left out: {done.stderr.strip().splitlines()[-1]}")
        else:
            found[".".join(done.stdout.split(".")[:2])] = python
    return dict(sorted(found.items()))


def row(case: Path, finding: Finding, torches: dict[str, Path]) -> KnownFault:
    """The row of a finding."""
    folder = Path(finding.dossier or "")
    answers = {version: fails(python, finding, folder / f"exit-{version}") for version, python in torches.items()}
    return KnownFault(
        issue=issue_of(case),
        case=case.stem,
        kind=finding.kind,
        stage=finding.stage,
        op=stem_of(finding),
        pass_=finding.pass_,
        condition=condition_of(finding),
        versions={version: answer for version, answer in answers.items() if answer is not None},
        workaround=finding.workarounds[0].code if finding.workarounds else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", type=Path, metavar="CASE.py")
    parser.add_argument("--matrix", type=Path, default=ROOT / ".matrix")
    parser.add_argument("--kept", type=Path, default=ROOT / "build" / "known")
    options = parser.parse_args()
    cases = [*sorted((ROOT / "tests" / "diagnose" / "tracker").glob("*.py")), *options.cases]
    torches, rows = pythons(options.matrix), list[KnownFault]()
    for case in (one.resolve() for one in cases if one.stem != "__init__"):
        for finding in diagnosed(case, options.kept.resolve() / case.stem):
            if finding.proof is not None and finding.backend is None and finding.stage != "unknown":
                made = row(case, finding, torches)
                if made.condition and made not in [msgspec.structs.replace(one, case=made.case) for one in rows]:
                    rows.append(made)
                print(case.stem, made.op, made.stage, made.versions, *made.condition, sep=" | ", flush=True)
    rows.sort(key=lambda one: (int((one.issue or "#0").rpartition("#")[2]), one.case))
    lines = ",\n".join(msgspec.json.encode(one).decode() for one in rows)
    OUT.write_text(f"[\n{lines}\n]\n", "utf-8")


if __name__ == "__main__":
    main()
