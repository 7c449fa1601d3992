"""What is observed of a graph break, before anything is concluded from it: the lines of `graph_breaks.jsonl`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from graphprobe.errors import last_line
from graphprobe.records import Int64
from graphprobe.store import layout
from graphprobe.store.schema import lines_of


class UserFrame(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One frame of the program at the place where tracing stopped.

    Attributes:
        file, line, function: as in a traceback.
        source: the text of the line, as far as it can be read.
        statement, code: the statement and the expression at which it is, as `ast.unparse` writes them, found by their
            columns; of a compound statement without its body. Empty where they are not known.
        inside: `torch` or `python` for code of torch or of Python's library; None for anybody else's.
    """

    file: str
    line: Int64 | None
    function: str
    source: str = ""
    statement: str = ""
    code: str = ""
    inside: str | None = None

    @property
    def place(self) -> str:
        """`file:line`."""
        return self.file if self.line is None else f"{self.file}:{self.line}"


class BreakFact(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="fact", tag="break"):
    """Dynamo came upon something that it cannot put into a graph.

    Attributes:
        reason: torch's whole text: type, explanation, hints, context, link.
        gb_type: torch's name of the type of break, where it has one.
        handling: how torch goes on, in the first line of its own words; empty where it says nothing.
        raised: the program gets it as an exception (`fullgraph=True`).
        died: it is no break, but an error that ended the compile of the function, and that the program gets.
        stack: outermost first; the first frame is that of the function being compiled.
        compile_id: torch's id of the compile.
        function, file, first_line: the function being compiled.
    """

    reason: str
    gb_type: str | None = None
    handling: str = ""
    raised: bool = False
    died: bool = False
    stack: list[UserFrame] = []
    compile_id: str | None = None
    function: str = ""
    file: str = ""
    first_line: Int64 | None = None


class UncompiledFact(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="fact", tag="uncompiled"):
    """Dynamo gave up on a function, which runs uncompiled from then on.

    Attributes:
        reason: torch's text, or `Type: message` of the error that torch was told to suppress.
        gb_type: as in BreakFact.
        broke: the reason is a graph break that was noted as such.
        stack: where in the function, if that is known.
        function, file, first_line: the function.
        inside: as in UserFrame.
    """

    reason: str
    gb_type: str | None = None
    broke: bool = False
    stack: list[UserFrame] = []
    function: str = ""
    file: str = ""
    first_line: Int64 | None = None
    inside: str | None = None


class TriedBreak(msgspec.Struct, frozen=True, kw_only=True):
    """A break behind which tracing went on in child processes.

    Attributes:
        remedy: the parts of its remedy with which it is gone, and nothing new breaks; empty for none.
        passed: what comes behind it was looked at.
    """

    fact: BreakFact
    remedy: str
    passed: bool


Fact = BreakFact | UncompiledFact


def facts_from_lines(
    source: Path | bytes, tell: Callable[[str], object]
) -> tuple[list[BreakFact], list[UncompiledFact]]:
    """The facts of a `graph_breaks.jsonl`; `tell` receives which lines of it cannot be read."""
    lines = lines_of(source, msgspec.json.Decoder(Fact), tell=tell, name=layout.BREAKS, noun="graph break")
    facts = [fact for _, _, fact in lines]
    breaks = [fact for fact in facts if isinstance(fact, BreakFact)]
    return breaks, [fact for fact in facts if isinstance(fact, UncompiledFact)]


class HeardBreaks:
    """Observes the breaks of a process, and keeps their facts."""

    def __init__(self) -> None:
        self.breaks: list[BreakFact] = []
        self.uncompiled_functions: list[UncompiledFact] = []
        self.notes: list[str] = []

    def means(self, backend: object) -> bool:
        """Whether breaks of what is compiled with this backend count."""
        return True

    def graph_break(self, fact: BreakFact, backend: object) -> None:
        if self.means(backend):
            self.breaks.append(fact)

    def uncompiled(self, fact: UncompiledFact, backend: object) -> None:
        if self.means(backend):
            self.uncompiled_functions.append(fact)

    def failed(self, what: str, details: str) -> None:
        note = f"{what}: {last_line(details)}"
        if note not in self.notes:
            self.notes.append(note)
