"""Reads what `graphprobe diagnose` left: the JSON of a function or of a script, a dossier, a folder of dossiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from graphprobe.errors import SchemaError, UsageError

SCHEMA = 1
FINDING = "finding.json"

LARGEST = 64 << 20
"""Bytes of a JSON file that is looked into without having been named."""

Number = float | Literal["inf", "-inf", "nan"]


class FindingEntry(msgspec.Struct, kw_only=True):
    """A finding as JSON has it; `docs/formats/diagnosis.md` describes the fields."""

    kind: str
    stage: str
    direction: str = "forward"
    pass_: str | None = msgspec.field(default=None, name="pass")
    op: str | None = None
    also: list[str] = []
    node: str | None = None
    kernel: str | None = None
    source: str | None = None
    module: str | None = None
    local_z: Number = 0.0
    accumulated_z: Number = 0.0
    flaky_rate: float = 1.0
    dossier: str | None = None
    reason: str = ""


class LargestEntry(msgspec.Struct):
    """The largest error among the operations that passed."""

    node: str | None = None
    z: Number = 0.0


class RungEntry(msgspec.Struct, kw_only=True):
    """A rung of the ladder."""

    name: str
    state: Literal["right", "wrong", "unsure", "not_run"]
    difference: str = ""


class DiagnosisEntry(msgspec.Struct, kw_only=True):
    """A diagnosis as JSON has it; `function` is there in the document of a script."""

    verdict: Literal["fault", "healthy", "undecided"]
    function: str = ""
    seconds: float = 0.0
    compiles: int = 0
    findings: list[FindingEntry] = []
    rungs: list[RungEntry] = []
    ruled_out: list[str] = []
    largest_z: LargestEntry = msgspec.field(default_factory=LargestEntry)
    notes: list[str] = []

    def plain(self) -> dict[str, Any]:
        """As `Diagnosis.to_json` gives it."""
        result: dict[str, Any] = msgspec.to_builtins(self)
        return result


class ScriptEntry(msgspec.Struct, kw_only=True):
    """The document of a script."""

    diagnoses: list[DiagnosisEntry]
    schema: int = SCHEMA
    target: str = ""
    ended: str | None = None


class Diagnosed(msgspec.Struct, kw_only=True):
    """What was read.

    Attributes:
        path: of the file or folder.
        target: the script; empty where the file does not name what was diagnosed.
        ended: how the script ended, where it did not end well.
        diagnoses: at least one.
        partial: only findings are known, as of a dossier: nothing of rungs, of what is right, or of the time it took.
    """

    path: Path
    diagnoses: list[DiagnosisEntry]
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
            if path.stat().st_size <= LARGEST and is_diagnosis(msgspec.json.decode(path.read_bytes())):
                found.append(path)
        except (OSError, msgspec.DecodeError):
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
        return Diagnosed(path=path, diagnoses=[DiagnosisEntry(verdict="fault", findings=findings)], partial=True)
    data = _bytes(path)
    try:
        document = msgspec.json.decode(data)
        if not is_diagnosis(document):
            raise UsageError(f"{path} is no diagnosis", hint="expected what graphprobe diagnose --json wrote")
        if "diagnoses" not in document:
            return Diagnosed(path=path, diagnoses=[msgspec.convert(document, DiagnosisEntry)])
        if document.get("schema", SCHEMA) != SCHEMA:
            raise SchemaError(
                f"{path} has schema {document['schema']}, and this graphprobe reads {SCHEMA}",
                hint="read it with the graphprobe that wrote it, or a newer one",
            )
        script = msgspec.convert(document, ScriptEntry)
    except msgspec.MsgspecError as error:
        raise UsageError(
            f"{path} is no diagnosis: {error}", hint="expected what graphprobe diagnose --json wrote"
        ) from error
    if not script.diagnoses:
        raise UsageError(f"{path} holds no diagnosis: {script.ended or 'the script compiled nothing'}")
    return Diagnosed(path=path, diagnoses=script.diagnoses, target=script.target, ended=script.ended)


def proof_of(finding: FindingEntry, beside: Path) -> Path | None:
    """The dossier where it lies now: as it is named, or beside the JSON where both were moved; None if it is gone."""
    if not finding.dossier:
        return None
    named = Path(finding.dossier)
    around = beside if beside.is_dir() else beside.parent
    candidates = [named, around, around / named.name, *(around / named.parent.name / named.name,)]
    return next((path for path in candidates if path.name == named.name and (path / FINDING).is_file()), None)


def _finding(folder: Path) -> FindingEntry:
    path = folder / FINDING
    try:
        finding = msgspec.json.decode(_bytes(path), type=FindingEntry)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} is no finding: {error}", hint="name a folder of graphprobe diagnose") from error
    finding.dossier = str(folder)
    return finding


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
