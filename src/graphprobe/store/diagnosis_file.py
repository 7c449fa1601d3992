"""Reads what `graphprobe diagnose` left: the JSON of a function or of a script, a dossier, a folder of dossiers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from graphprobe.errors import UsageError
from graphprobe.findings import DIAGNOSIS_SCHEMA, Finding, FunctionDiagnosis, ScriptDocument, read_document
from graphprobe.store.files import read_file, read_or_refuse
from graphprobe.store.schema import UNREADABLE, check_version

FINDING = "finding.json"

LARGEST = 64 << 20
"""Bytes of a JSON file that is looked into without having been named."""


class Diagnosed(msgspec.Struct, kw_only=True):
    """What was read.

    Attributes:
        target: the script; empty where the file does not name what was diagnosed.
        ended: how the script ended, where it did not end well.
        diagnoses: at least one.
        partial: only findings are known, as of a dossier: nothing of rungs, of what is right, or of the time it took.
    """

    path: Path
    diagnoses: list[FunctionDiagnosis]
    target: str = ""
    ended: str | None = None
    partial: bool = False


def is_diagnosis(document: object) -> bool:
    """Whether JSON of a file looks like a diagnosis, of a function or a script."""
    return isinstance(document, dict) and ({"verdict", "findings"} <= document.keys() or "diagnoses" in document)


def dossiers_in(folder: Path) -> list[Path]:
    """The folder itself, or those right below it, or those below these, that hold a finding."""
    for pattern in (FINDING, f"*/{FINDING}", f"*/*/{FINDING}"):
        found = sorted(folder.glob(pattern))
        if found:
            return [path.parent for path in found]
    return []


def result_in(folder: Path) -> Path | None:
    """The only diagnosis right in a folder, as JSON; None where there is none, or there are several."""
    if not folder.is_dir() or (folder / FINDING).is_file():
        return None
    found = []
    for path in folder.glob("*.json"):
        try:
            if is_diagnosis(msgspec.json.decode(read_file(path, most_bytes=LARGEST))):
                found.append(path)
        except (OSError, *UNREADABLE):
            continue
    return found[0] if len(found) == 1 else None


def read_diagnosed(path: Path) -> Diagnosed:
    """A diagnosis from its JSON, or from the folder that proves a finding, or a folder of such folders.

    Raises:
        UsageError: it is none of these; the message says which field is wrong.
        SchemaError: a newer graphprobe wrote it.
    """
    if path.name == FINDING:
        path = path.parent
    if path.is_dir() and (beside := result_in(path)) is not None:
        path = beside
    if path.is_dir():
        folders = dossiers_in(path)
        if not folders:
            raise UsageError(f"{path} holds no {FINDING}", hint="name the folder that graphprobe diagnose printed")
        findings = [_finding(folder) for folder in folders]
        known = FunctionDiagnosis(function="", verdict="fault", findings=findings)
        return Diagnosed(path=path, diagnoses=[known], partial=True)
    data = read_or_refuse(path, UsageError)
    try:
        document = msgspec.json.decode(data)
        if not is_diagnosis(document):
            raise UsageError(f"{path} is no diagnosis", hint="expected what graphprobe diagnose --json wrote")
        if "diagnoses" not in document:
            return Diagnosed(path=path, diagnoses=[read_document({"function": ""} | document, FunctionDiagnosis)])
        check_version(document.get("schema", DIAGNOSIS_SCHEMA), DIAGNOSIS_SCHEMA, path=path)
        script = read_document(document, ScriptDocument)
    except UNREADABLE as error:
        raise UsageError(
            f"{path} is no diagnosis: {error}", hint="expected what graphprobe diagnose --json wrote"
        ) from error
    if not script.diagnoses:
        raise UsageError(f"{path} holds no diagnosis: {script.ended or 'the script compiled nothing'}")
    return Diagnosed(path=path, diagnoses=script.diagnoses, target=script.target, ended=script.ended)


def proof_of(finding: Finding, beside: Path) -> Path | None:
    """The dossier where it lies now: as it is named, or beside the JSON where both were moved; None if it is gone."""
    if not finding.dossier:
        return None
    named = Path(finding.dossier)
    around = beside if beside.is_dir() else beside.parent
    candidates = [named, around, around / named.name, around / named.parent.name / named.name]
    return next((path for path in candidates if path.name == named.name and (path / FINDING).is_file()), None)


def _finding(folder: Path) -> Finding:
    path = folder / FINDING
    try:
        finding = read_document(msgspec.json.decode(read_or_refuse(path, UsageError)), Finding)
    except UNREADABLE as error:
        raise UsageError(f"{path} is no finding: {error}", hint="name a folder of graphprobe diagnose") from error
    finding.dossier = str(folder)
    return finding
