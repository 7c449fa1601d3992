"""What a path is, of the things that a report can be made of."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from graphprobe.errors import GraphprobeError, RunNotFoundError, UsageError
from graphprobe.report.html.diagnosis_file import FINDING, dossiers_in, is_diagnosis, result_in
from graphprobe.store import layout
from graphprobe.store.files import read_file
from graphprobe.store.reader import Run
from graphprobe.store.schema import UNREADABLE

Kind = Literal["run", "diagnosis", "comparison", "dump", "profile"]

EXPECTED = (
    "a run folder, the JSON or the folder of a diagnosis, the folder or the comparison.json of graphprobe compare, "
    "a dump, or the JSON of graphprobe profile"
)


def kind_of(path: Path) -> Kind:
    """What lies at `path`.

    Raises:
        RunNotFoundError: nothing does.
        UsageError: something does, and no report can be made of it; the message says what was expected.
    """
    if not path.exists():
        raise RunNotFoundError(f"{path} does not exist", hint=f"expected {EXPECTED}")
    return _kind_of_file(path) if path.is_file() else _kind_of_folder(path)


def _kind_of_file(path: Path) -> Kind:
    if path.name == FINDING:
        return "diagnosis"
    if path.suffix == ".json":
        try:
            document = msgspec.json.decode(read_file(path))
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
        except UNREADABLE as error:
            raise UsageError(f"{path} is no JSON: {error}", hint=f"expected {EXPECTED}") from error
        if is_diagnosis(document):
            return "diagnosis"
        if isinstance(document, dict) and document.get("format") == "graphprobe-profile":
            return "profile"
        if isinstance(document, dict) and {"outcome", "candidate", "reference"} <= document.keys():
            return "comparison"
        if not isinstance(document, dict):
            raise _nothing(path)
    if _is_dump(path):
        return "dump"
    raise _nothing(path)


def _kind_of_folder(path: Path) -> Kind:
    if (path / "comparison.json").is_file():
        return "comparison"
    if _is_run(path):
        return "run"
    if result_in(path) is not None or dossiers_in(path):
        return "diagnosis"
    if _is_dump(path):
        return "dump"
    raise _nothing(path)


def _nothing(path: Path) -> UsageError:
    return UsageError(f"{path} is nothing that a report can be made of", hint=f"expected {EXPECTED}")


def _is_run(path: Path) -> bool:
    """The folder of one rank of a dump has a manifest, too, and no events."""
    try:
        run = Run.open(path)
    except RunNotFoundError:
        return False
    return (run.tool_dir / layout.EVENTS).is_file()


def _is_dump(path: Path) -> bool:
    from graphprobe.compare.open import open_dump

    try:
        open_dump(path)
    except (GraphprobeError, OSError):
        return False
    return True
