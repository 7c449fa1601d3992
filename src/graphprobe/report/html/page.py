"""Makes one HTML file of a report: the verdict, the contents, the sections, and only the assets that they use."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import IO

import msgspec
from jinja2 import Template

from graphprobe.report.document import SIGNS, DocumentVerdict, Section
from graphprobe.report.html.render import Html, template
from graphprobe.report.html.sources import Sources

_ASSETS = "assets"


class Report(msgspec.Struct, frozen=True):
    """All that is told of a subject.

    Attributes:
        title: of the document, such as `graphprobe: FAULT in train.py`.
        subject: what was looked at, as the user would name it; stands above the verdict.
        sections: in order. Source snippets are appended by the page.
        sources: the lines of code that the sections link to; None where they name none.
        facts: label and value of what stands in the foot: versions, command line.
    """

    title: str
    subject: str
    verdict: DocumentVerdict
    sections: list[Section] = []
    sources: Sources | None = None
    facts: list[tuple[str, str]] = []


def write_page(report: Report, file: IO[str]) -> None:
    """Write the page, section by section, so that no more than one section's data is in memory as text."""
    for piece in pieces(report):
        file.write(piece)


def pieces(report: Report) -> Iterator[str]:
    """The document, piece by piece."""
    sections = list(report.sections)
    if report.sources is not None and (snippets := report.sources.section()) is not None:
        sections.append(snippets)
    ids = [section.id for section in sections]
    if len(set(ids)) != len(ids):
        raise ValueError(f"two sections have one id: {ids}")
    views = list(dict.fromkeys(section.view for section in sections if section.view))
    scripts = {view: asset(f"view_{view}.js") for view in views}
    if lacking := [view for view, text in scripts.items() if not text]:
        raise ValueError(f"a section uses the view {lacking[0]!r}, and there is no {_ASSETS}/view_{lacking[0]}.js")
    head, body, foot = _document()
    css = Html("\n".join(map(asset, ["page.css", "parts.css", *(f"view_{view}.css" for view in views)])))
    yield head.render(report=report, sections=sections, sign=SIGNS[report.verdict.tone], css=css)
    for section in sections:
        yield body.render(section=section)
        if section.view:
            yield data_script(f"data-{section.id}", section.data)
        yield "</section>\n"
    yield foot.render(report=report)
    yield data_script("data-page", {"sources": report.sources.anchors if report.sources else {}})
    script = "\n".join([asset("page.js"), *scripts.values(), "GP.start();\n"])
    yield f"<script>\n{script}</script>\n</body>\n</html>\n"


def data_script(element_id: str, data: object) -> str:
    """`data` as JSON in an element that no browser runs and no text in it can end."""
    # `<` stands inside of strings only, where JSON has an escape for it.
    text = msgspec.json.encode(data).decode().replace("<", "\\u003c")
    return f'<script type="application/json" id="{element_id}">{text}</script>\n'


def asset(name: str) -> str:
    """The text of a file of `assets`; empty for one that is not there."""
    resource = files("graphprobe.report.html") / _ASSETS / name
    return resource.read_text("utf-8") if resource.is_file() else ""


@cache
def _document() -> tuple[Template, Template, Template]:
    """Head, section and foot: the three parts of `page.html`, which marks where one ends."""
    head, body, foot = (template(part) for part in asset("page.html").split("<!-- part -->\n"))
    return head, body, foot
