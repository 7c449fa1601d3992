"""Every answer of an oracle, on disk as soon as it is given, so that a reduction that was killed goes on from there."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

import msgspec

from graphprobe.errors import UsageError
from graphprobe.reduce.outcome import Answer, OracleVerdict
from graphprobe.store.schema import UNREADABLE

VERSION = 1


class JournalHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line: what the journal belongs to.

    Attributes:
        reduce_journal: version of the format.
        identity: of the case and whatever else decides the answers.
    """

    reduce_journal: int
    identity: str


class JournalLine(msgspec.Struct, frozen=True):
    """One answer: the case's digest, the pass that asked, and what was answered."""

    digest: str
    by: str
    verdict: OracleVerdict
    signature: str = ""
    detail: str = ""
    seconds: float = 0.0


class Journal:
    """An append-only file of JSON lines. A process that is killed loses the answer it was writing at most."""

    def __init__(self, path: Path, lines: list[JournalLine]) -> None:
        """Use `open`."""
        self.path = path
        self.known = len(lines)
        self._answers: dict[str, deque[Answer]] = {}
        for line in lines:
            answer = Answer(line.verdict, line.signature, line.detail, line.seconds)
            self._answers.setdefault(line.digest, deque()).append(answer)
        self._file = path.open("ab")
        self._encoder = msgspec.json.Encoder()

    @classmethod
    def open(cls, path: Path | str, *, identity: str, resume: bool = False) -> Journal:
        """A journal to append to. With `resume` its answers are kept, else the file is begun anew.

        Args:
            path: of the file; it need not exist.
            identity: says what the answers are answers to. It goes to the first line.
            resume: keep what the file holds. A last line that was cut off is removed.

        Raises:
            UsageError: on `resume`, if the file is of another identity or version, or is no journal.
        """
        path = Path(path)
        if resume and path.exists() and path.stat().st_size:
            lines = _read(path, identity)
            if lines is not None:
                return cls(path, lines)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        journal = cls(path, [])
        journal._append(JournalHead(VERSION, identity))
        return journal

    def replay(self, digest: str) -> Answer | None:
        """The next answer for that case among those found at the start, in the order in which they were given."""
        answers = self._answers.get(digest)
        return answers.popleft() if answers else None

    def write(self, digest: str, by: str, answer: Answer) -> None:
        """Append an answer. It is on the disk when this returns."""
        self._append(JournalLine(digest, by, answer.verdict, answer.signature, answer.detail, answer.seconds))

    def close(self) -> None:
        """May be called more than once."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, line: JournalHead | JournalLine) -> None:
        self._file.write(self._encoder.encode(line) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _read(path: Path, identity: str) -> list[JournalLine] | None:
    """The lines after the first; None if not even that one was finished. Removes a last line that was cut off."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if not whole:
        if data.startswith(b'{"reduce_journal"'[: len(data)]):
            return None
        raise UsageError(f"{path} is not a journal of a reduction", hint="name another file, or do not resume")
    first, *rest = whole.splitlines()
    try:
        head = msgspec.json.decode(first, type=JournalHead)
    except UNREADABLE as error:
        raise UsageError(
            f"{path} is not a journal of a reduction: {error}", hint="name another file, or do not resume"
        ) from error
    if head.reduce_journal != VERSION or head.identity != identity:
        raise UsageError(
            f"the journal {path} belongs to another reduction: version {head.reduce_journal}, identity "
            f"{head.identity!r}; this one has version {VERSION}, identity {identity!r}",
            hint="resume with the case and the options that it was begun with, or begin anew",
        )
    decoder = msgspec.json.Decoder(JournalLine)
    lines = []
    for number, text in enumerate(rest, 2):
        try:
            lines.append(decoder.decode(text))
        except UNREADABLE as error:
            raise UsageError(
                f"line {number} of the journal {path} cannot be read: {error}", hint="begin anew, without resuming"
            ) from error
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    return lines
