"""What the overflow, watch and exception modes of a dump left: `findings.jsonl`, and the documents beside values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from graphprobe.errors import GraphprobeError
from graphprobe.store.dump_reader import open_dump
from graphprobe.store.files import read_file
from graphprobe.store.schema import UNREADABLE

FINDINGS, OVERFLOW = "findings.jsonl", "overflow.json"
"""Files of a dump, see docs/overflow_and_watch.md."""

T = TypeVar("T")


class Op(msgspec.Struct, kw_only=True):
    """An op as these files have it; of a victim also which value of it, and under which name."""

    op: str | None = None
    op_type: str = ""
    target: str = ""
    fx_nodes: list[str] = []
    direction: str | None = None
    source: str = ""
    sources: list[str] = []
    module: str = ""
    modules: list[str] = []
    slot: str = ""
    value: str = ""


class OutputProblem(msgspec.Struct):
    """What is wrong with one output: `nan`, `inf` or `saturated`, in how many elements, the first ones by index."""

    output: str = ""
    kind: str = ""
    sign: str = ""
    dtype: str = ""
    shape: list[int] = []
    elements: int = 0
    of: int = 0
    first: list[list[int]] = []


class Elements(msgspec.Struct):
    """Which elements were overwritten, in row-major order; None where only a digest was kept."""

    first: int | None = None
    last: int | None = None
    changed: int | None = None
    of: int = 0


class FindingLine(Op, kw_only=True):
    """A line of `findings.jsonl`; of an overflow and an exception the op itself."""

    kind: str
    text: str = ""
    model: str = ""
    step: int | None = None
    problems: list[OutputProblem] = []
    file: str = ""
    repro: str | None = None
    culprit: Op | None = None
    declared: bool = False
    intact_after: str = ""
    victim: Op | None = None
    elements: Elements | None = None
    document: str = ""


class ExceptionDocument(msgspec.Struct):
    """`exception.json`."""

    traceback: str = ""
    callers: str = ""


class _Overflows(msgspec.Struct):
    origins: list[Op] = []
    carriers: list[Op] = []


class Found(msgspec.Struct):
    """A finding, and the time folder that it is in; of equal ones in several steps the first.

    Attributes:
        steps: further steps in which it happened again.
        texts: what was said of it in each step; the notes of the calls repeat it.
    """

    folder: Path
    line: FindingLine
    steps: list[int | None] = []
    texts: list[str] = []

    @property
    def culprit(self) -> Op | None:
        """The op that did it; None where none is known."""
        found = self.line if self.line.kind != "overwritten" else self.line.culprit
        return found if found is not None and found.op else None

    def carriers(self) -> list[Op]:
        """Ops of the step that only pass on what is not finite, for the first finding of the step."""
        inside = Path(self.line.file or self.line.repro or "").parent / OVERFLOW
        document = self._read(str(inside), _Overflows)
        if document is None or not document.origins or document.origins[0].op != self.line.op:
            return []
        return document.carriers

    def raised(self) -> ExceptionDocument | None:
        """What is known of the exception."""
        return self._read(self.line.document, ExceptionDocument) if self.line.document else None

    def _read(self, name: str, form: type[T]) -> T | None:
        """A document of the dump; None where it is gone or lies elsewhere."""
        if os.path.isabs(name) or ".." in Path(name).parts:
            return None
        try:
            return msgspec.json.decode(read_file(self.folder / name, below=self.folder), type=form)
        except (OSError, *UNREADABLE):
            return None


def findings_at(path: Path) -> tuple[list[Found], list[str]]:
    """The findings of the dump of graphs at `path`, process by process, and in words what could not be read.

    The same operation in a later step is no finding of its own. Where there is no such dump there are none.
    """
    try:
        folders = [folder.time_dir for folder in open_dump(path).folders]
    except GraphprobeError:
        return [], []
    problems: list[str] = []
    found: dict[tuple[object, ...], Found] = {}
    for one in (one for folder in folders for one in _lines(folder, problems)):
        line, culprit = one.line, one.culprit
        victim = line.victim.value if line.victim is not None else ""
        op = culprit.op if culprit is not None else line.text
        first = found.setdefault((one.folder, line.kind, line.model, op, victim), one)
        first.texts.append(line.text)
        if first is not one:
            first.steps.append(line.step)
    return list(found.values()), problems


def _lines(folder: Path, problems: list[str]) -> Iterator[Found]:
    file = folder / FINDINGS
    try:
        lines = read_file(file).splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        problems.append(f"{file} cannot be read: {error.strerror}")
        return
    for number, line in enumerate(lines, start=1):
        try:
            yield Found(folder, msgspec.json.decode(line, type=FindingLine))
        except UNREADABLE as error:
            problems.append(f"{file} line {number} is no finding, or is cut off: {error}")
