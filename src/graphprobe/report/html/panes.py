"""The data of the view `code`: source, FX graph and kernel side by side, and which lines of them belong together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from graphprobe.report.html.launches import LaunchRow, places_of
from graphprobe.report.html.sources import Sources, cut

MOST_LINES = 4_000
"""Of one pane: what lies beyond is left out, and the pane says how much."""

COMMENT = re.compile(
    r"^(?P<indent>\s*)# File: (?P<place>.+?:\d{1,9})(?: in (?P<function>[^,]*))?(?:, code: (?P<code>.*))?$"
)
_DEFINED = re.compile(r"(\w+) = async_compile\.")
"""Where generated code defines a kernel."""


class Pane(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the texts.

    Attributes:
        title: what it is, such as `FX graph`.
        name: of the file.
        lines: what stands before the line (a number or nothing), the line, and its place in the program or nothing.
        left: lines that are not there.
    """

    title: str
    name: str
    lines: list[tuple[str, str, str]]
    left: int = 0


class Link(msgspec.Struct, frozen=True):
    """What belongs together: `marks` has the indices of lines for each pane."""

    label: str
    marks: list[list[int]]


class CodeView(msgspec.Struct, frozen=True):
    """One graph in the view: `first` is the link that is shown first."""

    title: str
    panes: list[Pane]
    links: list[Link]
    first: int = 0


def text_pane(title: str, name: str, text: str) -> Pane:
    """A text as it is, with line numbers."""
    lines = text.splitlines()
    kept = [(str(number), cut(line), "") for number, line in enumerate(lines[:MOST_LINES], 1)]
    return Pane(title, name, kept, left=max(0, len(lines) - MOST_LINES))


def graph_pane(title: str, name: str, text: str, sources: Sources) -> tuple[Pane, dict[str, int]]:
    """A printed graph whose comments link to the lines they name, and the index of the line of each node."""
    found: list[tuple[str, str, str]] = []
    nodes: dict[str, int] = {}
    lines = text.splitlines()
    for index, line in enumerate(lines[:MOST_LINES]):
        comment = COMMENT.match(line)
        if comment is not None:
            short = sources.short(comment["place"])
            sources.link(short)
            code = f"  {comment['code']}" if comment["code"] else ""
            found.append(("", cut(f"{comment['indent']}# {short}{code}"), short))
            continue
        given, assigned, _ = line.strip().partition(" = ")
        node = given.partition(": ")[0]
        if assigned and node.isidentifier():
            nodes.setdefault(node, index)
        found.append(("", cut(line), ""))
    return Pane(title, name, found, left=max(0, len(lines) - MOST_LINES)), nodes


def source_pane(places: Sequence[str], sources: Sources, *, around: int) -> tuple[Pane, dict[str, int]]:
    """The program's lines at `file:line`, with some around each, and the index of each place."""
    by_file: dict[str, dict[int, str]] = {}
    for place in places:
        file, _, digits = place.rpartition(":")
        if digits.isdecimal():
            by_file.setdefault(file, {}).setdefault(int(digits), place)
    lines: list[tuple[str, str, str]] = []
    marks: dict[str, int] = {}
    for file, hits in by_file.items():
        text = sources.text(file)
        if not text:
            continue
        if lines:
            lines.append(("", "", ""))
        lines.append(("", file, ""))
        last = 0
        for hit in sorted(hits):
            first = max(hit - around, last + 1, 1)
            if last and first > last + 1:
                lines.append(("⋯", "", ""))
            for number in range(first, min(hit + around, len(text)) + 1):
                lines.append((str(number), cut(text[number - 1]), ""))
                if number in hits:
                    marks[hits[number]] = len(lines) - 1
                last = number
    return Pane("Source", ", ".join(by_file), lines), marks


def links_from(
    launches: Sequence[LaunchRow], marks: Mapping[str, int], nodes: Mapping[str, int], code: Pane, sources: Sources
) -> list[Link]:
    """Launches as links between source, FX graph and generated code.

    Of the code the launch itself is marked, and where its kernel is defined.
    """
    defined = {found[1]: index for index, (_, text, _) in enumerate(code.lines) if (found := _DEFINED.match(text))}
    links = []
    for launch in launches:
        args = launch.args
        in_source = sorted({marks[place] for place in places_of(launch, sources.short) if place in marks})
        in_graph = sorted({nodes[node.name] for node in args.fx_nodes if node.name in nodes})
        in_code = [args.output_code_line - 1] if args.output_code_line is not None else []
        in_code += [defined[launch.name]] if launch.name in defined else []
        links.append(Link(launch.name, [in_source, in_graph, in_code]))
    return links
