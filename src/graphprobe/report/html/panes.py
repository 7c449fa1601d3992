"""The data of the view `code`: source, FX graph and kernels side by side, with the lines that belong together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.records import Event
from graphprobe.report.document import Grid, Note, Section
from graphprobe.report.html.sources import Sources, cut
from graphprobe.report.html.table import Column, Table
from graphprobe.report.terminal import grid_lines, near, wrapped
from graphprobe.store.reader import Model, Run
from graphprobe.store.schema import UNREADABLE

MOST_ROWS = 100_000

COLUMNS = (
    Column(name="graph", help="The compiled graph that launches it."),
    Column(name="#", kind="number", help="Its place in the order in which the launches ran."),
    Column(name="launch", wide=True, help="The generated kernel, or the function of a library."),
    Column(name="line", kind="source", help="The first line of the program that it stems from."),
    Column(name="kind", help="kernel: generated; extern: a library call; op: through the dispatcher."),
    Column(name="µs", kind="number", help="How long the launch took on the host: on a GPU the time to enqueue it."),
    Column(name="operations", wide=True, help="What the launch computes, by the names that ATen has for it."),
    Column(name="arguments", wide=True),
)

MOST_LINES = 4_000
"""Of one pane: what lies beyond is left out, and the pane says how much."""

COMMENT = re.compile(
    r"^(?P<indent>\s*)# File: (?P<place>.+?:\d{1,9})(?: in (?P<function>[^,]*))?(?:, code: (?P<code>.*))?$"
)
_DEFINED = re.compile(r"(\w+) = async_compile\.")
"""Where generated code defines a kernel."""


class LaunchNode(msgspec.Struct):
    """An FX node that a launch stems from."""

    name: str = ""
    target: str = ""


class LaunchArgs(msgspec.Struct):
    """What `captured_ops.json` says of a launch; see `docs/formats/run.md`."""

    output_code_line: int | None = None
    fx_nodes: list[LaunchNode] = []
    sources: list[str] = []
    arguments: list[str] = []


class LaunchRow(msgspec.Struct):
    """One entry of `captured_ops.json`; `ph` is `X` for a launch, `dur` in microseconds."""

    name: str
    ph: str
    cat: str = ""
    dur: float = 0.0
    args: LaunchArgs = msgspec.field(default_factory=LaunchArgs)

    @property
    def targets(self) -> str:
        """What it computes, by the names of the FX nodes' operators."""
        return ", ".join(dict.fromkeys(node.target for node in self.args.fx_nodes if node.target))


class Launches(msgspec.Struct, rename={"events": "traceEvents"}):
    """The whole file."""

    events: list[LaunchRow] = []


def launches_of(run: Run, ops: Event | None) -> list[LaunchRow]:
    """The launches of a graph, in order; none where the file is gone or damaged."""
    if ops is None:
        return []
    try:
        found = msgspec.json.decode(run.content(ops), type=Launches)
    except (ArtifactNotFoundError, *UNREADABLE):
        return []
    return [event for event in found.events if event.ph == "X"]


def launch_lines(launches: Sequence[LaunchRow], *, width: int | None = None) -> list[str]:
    """The launches as lines of a table.

    `width`: of a terminal, on which place and operations of a launch are below it, for a line would be too long.
    """
    rows: list[tuple[str, ...]] = []
    for number, launch in enumerate(launches):
        place = next(iter(places_of(launch, near)), "")
        rows.append((str(number), f"{launch.dur:.0f}", launch.name, launch.targets, place))
    if width is None:
        return grid_lines(Grid(("#", "µs", "launch", "computes", "line"), rows, (0, 1)))
    head, *lines = grid_lines(Grid(("#", "µs", "launch"), [row[:3] for row in rows], (0, 1)))
    indent = " " * head.index("launch")
    shown = [head]
    for line, (*_, targets, place) in zip(lines, rows, strict=True):
        shown += [line, *wrapped(f"{place}: {targets}" if place else targets, width, indent, indent)]
    return shown


def places_of(launch: LaunchRow, short: Callable[[str], str]) -> list[str]:
    """The places of a launch: `file:line in function: code` without what follows the line."""
    found = (re.match(r"(.+?:\d{1,9})(?: in |$)", text) for text in launch.args.sources)
    return [short(place[1]) for place in found if place is not None]


def launches_section(run: Run, models: Sequence[Model], sources: Sources) -> Section | None:
    """The table of all launches; None where none were recorded."""
    table = Table("Launches", COLUMNS)
    left = 0
    for model in models:
        for graph, events in model.graphs().items():
            for ops in (event for event in events if event.kind == "ops"):
                for number, launch in enumerate(launches_of(run, ops)):
                    if table.rows >= MOST_ROWS:
                        left += 1
                        continue
                    place = sources.linked(next(iter(places_of(launch, str)), ""))
                    row = (f"model__{model.number} {graph}", number, launch.name, place, launch.cat, launch.dur)
                    table.add((*row, launch.targets, ", ".join(launch.args.arguments)))
    if not table.rows:
        return None
    note = Note(f"{left} more are in the run." if left else "")
    return Section("launches", "Launches", "table", table.data(), note, f"{table.rows} in order")


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
    """One graph in the view."""

    title: str
    panes: list[Pane]
    links: list[Link]


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
            short = sources.linked(comment["place"])
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
