"""What a report is made of: a verdict, and sections that are plain HTML or a view over data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal

from jinja2 import Environment, StrictUndefined, Template

if TYPE_CHECKING:
    from graphprobe.report.html.sources import Sources

Tone = Literal["bad", "warn", "good", "info"]

SIGNS: dict[Tone, str] = {"bad": "✗", "warn": "!", "good": "✓", "info": "i"}
"""A sign for each tone, so that nothing is said by colour alone. The assets' script has the same table."""

_ID = re.compile(r"[a-z][a-z0-9-]*")


class Html(str):
    """Text that is HTML already: templates put it in as it is, all other text they escape."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


NOTHING = Html("")


@cache
def _template(text: str) -> Template:
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined).from_string(
        text
    )


def html(template: str, /, **values: object) -> Html:
    """The HTML of a Jinja template. Every value is escaped unless it is `Html`; a name that is missing is an error."""
    return Html(_template(template).render(**values))


def joined(parts: list[Html], between: str = "") -> Html:
    """The parts, one behind the other."""
    return Html(between.join(parts))


def prose(text: str) -> Html:
    """A sentence in which `…` stands around code, as the messages of graphprobe have it."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an odd number of marks: they mean something else
        return html("{{ text }}", text=text)
    return joined(
        [html("<code>{{ t }}</code>" if index % 2 else "{{ t }}", t=part) for index, part in enumerate(parts)]
    )


def badge(tone: Tone, word: str) -> Html:
    """A coloured word with its sign."""
    return html(
        '<span class="badge {{ tone }}"><span class="sign" aria-hidden="true">{{ sign }}</span>{{ word }}</span>',
        tone=tone,
        sign=SIGNS[tone],
        word=word,
    )


@dataclass(frozen=True)
class Verdict:
    """What stands at the top of the page.

    Attributes:
        tone: its colour and sign.
        word: one word, such as `FAULT`.
        sentence: what is wrong and where, or that nothing is, in one sentence.
        html: what belongs to it: facts, the command that shows it.
    """

    tone: Tone
    word: str
    sentence: str
    html: Html = NOTHING


@dataclass(frozen=True)
class Section:
    """One part of the page.

    Attributes:
        id: lower-case letters, digits and `-`; unique in the page, and the anchor of the section.
        title: its heading.
        view: name of the view that shows `data`: `assets/view_<name>.js`, with `.css` if there is one; empty for none.
        data: what the view is given; made of dicts, lists, text, numbers, booleans, None and structs of msgspec.
            JSON has neither NaN nor infinity: what msgspec writes for them is null, so hand them over as text.
        html: stands above the view and is there without JavaScript too.
        summary: one line for the contents, such as `3 of 41 passes changed the graph`.
        group: what several sections in a row belong to, such as a function; stands above them in the contents.
    """

    id: str
    title: str
    view: str = ""
    data: object = None
    html: Html = NOTHING
    summary: str = ""
    group: str = ""

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f"the id of a section is lower-case letters, digits and -, not {self.id!r}")
        if self.view and not re.fullmatch(r"[a-z_]+", self.view):
            raise ValueError(f"the name of a view is lower-case letters and _, not {self.view!r}")


@dataclass(frozen=True)
class Report:
    """A whole page.

    Attributes:
        title: of the document, such as `graphprobe: FAULT in train.py`.
        subject: what was looked at, as the user would name it; stands above the verdict.
        verdict: the answer.
        sections: in the order of the page. Source snippets are appended by the page.
        sources: the lines of code that the sections link to; None where they name none.
        facts: label and value of what stands in the foot: versions, command line.
    """

    title: str
    subject: str
    verdict: Verdict
    sections: list[Section] = field(default_factory=list)
    sources: Sources | None = None
    facts: list[tuple[str, str]] = field(default_factory=list)
