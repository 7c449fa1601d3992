"""The record of a frame that failed to trace: `record.json` (docs/formats/record.md), and how it is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from graphprobe.errors import UsageError
from graphprobe.store import layout
from graphprobe.store.files import read_or_refuse
from graphprobe.store.schema import UNREADABLE, check_version

FRAME_SCHEMA = 3
FORMAT = "graphprobe frame record"

RECORD, PROGRAM, VALUES, REPLAY = "record.json", "program.py", "values.safetensors", "replay.py"
"""What lies in the folder of a record."""
FRAMES = "frames"
"""The folder of a run that holds its records."""


class UserLine(msgspec.Struct, frozen=True):
    """A line of the program: absolute file, line from 1, the function it stands in, its text."""

    file: str
    line: int
    function: str
    text: str = ""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What tracing raised.

    Attributes:
        type: `module.Class` of the exception.
        message: its text, whole.
        stack: lines of the program that led there, outermost first.
        suppressed: the program did not see it: torch ran the function uncompiled instead.
    """

    type: str
    message: str
    stack: list[UserLine] = []
    suppressed: bool = False


class FrameRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`record.json`: how the frame failed; what it was given is in the program's text beside it.

    Attributes:
        function, file, line: the function that was traced, and where it begins.
        fullgraph: whether a graph break was an error.
        versions: of torch, python and graphprobe.
        settings: torch's state: grad mode, inference mode, autocast, default dtype and device, Dynamo's settings.
        zeros: names of tensors in the text whose bytes were too many for the file of values.
        placeholders: what could not be recorded: `path`, `type`, `reason`.
        notes: whatever else may make a replay differ.
    """

    format: str = FORMAT
    schema: int = FRAME_SCHEMA
    function: str
    file: str
    line: int
    fullgraph: bool
    failure: Failure
    versions: dict[str, str]
    settings: dict[str, Any]
    zeros: list[str] = []
    placeholders: list[dict[str, str]] = []
    notes: list[str] = []

    @property
    def user_line(self) -> UserLine | None:
        """The innermost line of the program, where it is known."""
        return self.failure.stack[-1] if self.failure.stack else None


def read_record(folder: Path) -> FrameRecord:
    """The record in a folder.

    Raises:
        UsageError: there is none, or it is damaged.
        SchemaError: it is of another schema.
    """
    path = Path(folder) / RECORD
    data = read_or_refuse(path, UsageError, hint="name the folder of a record")
    try:
        head = msgspec.json.decode(data)
    except UNREADABLE as error:
        raise UsageError(f"{path} is no record: {error}") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise UsageError(f"{path} is no record of a frame", hint="name the folder of a record, or of a run")
    check_version(head.get("schema"), FRAME_SCHEMA, path=path)
    try:
        return msgspec.convert(head, FrameRecord)
    except UNREADABLE as error:
        raise UsageError(f"{path} is damaged: {error}") from error


def find_records(path: Path) -> list[Path]:
    """The folders of records at `path`: itself, or those of a run (its folder, or the folder of its runs).

    Raises:
        UsageError: there is none.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"there is nothing at {path}", hint="name the folder of a record, or of a run")
    if (path / RECORD).is_file():
        return [path]
    for above in ("", f"{layout.TOOL}/", f"*/{layout.TOOL}/"):
        found = sorted(file.parent for file in path.glob(f"{above}{FRAMES}/*/{RECORD}"))
        if found:
            return found
    raise UsageError(
        f"no record of a frame in {path}", hint="graphprobe run --record-frames SCRIPT writes one when a frame fails"
    )
