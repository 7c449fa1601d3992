"""What is told of a subject: a verdict and sections of facts, tables and texts, which each face shows its way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

Tone = Literal["bad", "warn", "good", "info"]

SIGNS: dict[Tone, str] = {"bad": "✗", "warn": "!", "good": "✓", "info": "i"}
"""A sign for each tone, so that nothing is said by colour alone. The assets' script has the same table."""

_ID = re.compile(r"[a-z][a-z0-9-]*")

Content: TypeAlias = "str | Code | Prose | Muted | SourcePlace | Jump | Badge | Block | Sequence[Content]"
"""A tuple stands in one line; each item of a list is a paragraph or a block. Text is text: no marks are read in it."""


class Code(msgspec.Struct, frozen=True):
    """A name or a piece of a program, shown as it is; `muted` stands back behind what is around it."""

    text: str
    muted: bool = False


class Prose(msgspec.Struct, frozen=True):
    """A sentence in which `…` stands around code, as the messages of graphprobe have it."""

    text: str


class Muted(msgspec.Struct, frozen=True):
    """What stands back."""

    content: Content


class SourcePlace(msgspec.Struct, frozen=True):
    """`file:line`; `anchor` is that of the snippet that the report has of it, `line` its text, both empty without."""

    text: str
    anchor: str = ""
    line: str = ""


class Jump(msgspec.Struct, frozen=True):
    """Leads to the section of this id."""

    to: str
    text: str


class Badge(msgspec.Struct, frozen=True):
    """A coloured word with its sign; the word may be empty."""

    tone: Tone
    word: str


class Excerpt(msgspec.Struct, frozen=True):
    """A line of the program; nothing where it is empty."""

    text: str


class Command(msgspec.Struct, frozen=True):
    """What can be given to a shell as it stands."""

    text: str


class Note(msgspec.Struct, frozen=True):
    """A remark in small letters."""

    content: Content


class Facts(msgspec.Struct, frozen=True):
    """Labels, each with what is known; `large` for a few figures that count most."""

    rows: Sequence[tuple[str, Content]]
    large: bool = False


class Bullets(msgspec.Struct, frozen=True):
    """A list, below a heading if it has one; with a `tone`, each entry has its sign."""

    entries: Sequence[Content]
    title: str = ""
    tone: Tone | None = None


class Grid(msgspec.Struct, frozen=True):
    """A small table.

    Attributes:
        numbers: indices of the columns of numbers, which stand on the right.
        left: rows that are not there, in words; empty if there are none.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Content]]
    numbers: Sequence[int] = ()
    left: str = ""


class Card(msgspec.Struct, frozen=True):
    """What belongs together below a heading."""

    title: Content
    body: Content


class Cards(msgspec.Struct, frozen=True):
    """Cards of one kind."""

    cards: Sequence[Card]


class Folded(msgspec.Struct, frozen=True):
    """What only some want to read."""

    title: str
    body: Content


class Listing(msgspec.Struct, frozen=True):
    """A long text as it is, of a file or a traceback."""

    text: str
    name: str


Block = Excerpt | Command | Note | Facts | Bullets | Grid | Card | Cards | Folded | Listing
"""What stands on lines of its own."""


class DocumentVerdict(msgspec.Struct, frozen=True):
    """The answer.

    Attributes:
        tone: its colour and sign.
        word: one word, such as `FAULT`.
        sentence: what is wrong and where, or that nothing is, in one sentence.
        body: what belongs to it: facts, the command that shows it.
    """

    tone: Tone
    word: str
    sentence: str
    body: Content = ""


class Section(msgspec.Struct, frozen=True):
    """One part.

    Attributes:
        id: lower-case letters, digits and `-`; unique in the report, and the anchor of the section.
        view: name of the view that shows `data`: `assets/view_<name>.js`, with `.css` if there is one; empty for none.
        data: what the view is given; made of dicts, lists, text, numbers, booleans, None and structs of msgspec.
            JSON has neither NaN nor infinity: what msgspec writes for them is null, so hand them over as text.
        body: stands above the view and is there without JavaScript too.
        summary: one line for the contents, such as `3 of 41 passes changed the graph`.
        group: what several sections in a row belong to, such as a function; stands above them in the contents.
    """

    id: str
    title: str
    view: str = ""
    data: object = None
    body: Content = ""
    summary: str = ""
    group: str = ""

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f"the id of a section is lower-case letters, digits and -, not {self.id!r}")
        if self.view and not re.fullmatch(r"[a-z_]+", self.view):
            raise ValueError(f"the name of a view is lower-case letters and _, not {self.view!r}")


def plain(content: Content) -> str:
    """What stands in one line, as text alone."""
    if isinstance(content, tuple):
        return "".join(map(plain, content))
    if isinstance(content, Muted):
        return plain(content.content)
    if isinstance(content, Code | Prose | SourcePlace | Jump | Excerpt | Command):
        return content.text
    if isinstance(content, Badge):
        return content.word
    if isinstance(content, str):
        return content
    raise TypeError(f"{type(content).__name__} stands on lines of its own")


def counted(number: int, noun: str, many: str = "") -> str:
    """`1 call`, `2,000 calls`."""
    return f"{number:,} {noun if number == 1 else many or f'{noun}s'}"
