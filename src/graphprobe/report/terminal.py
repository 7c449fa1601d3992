"""Views for the terminal: plain text when piped or with NO_COLOR, colours otherwise.

The last lines of a command (verdict, where, proof, what to do next) are never more than five.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import msgspec

from graphprobe.analysis.recompiles import function_name
from graphprobe.records import Event
from graphprobe.report.document import (
    Bullets,
    Card,
    Code,
    Command,
    Content,
    Excerpt,
    Facts,
    Folded,
    Grid,
    Note,
    SourcePlace,
    Tone,
    counted,
    plain,
)
from graphprobe.report.graph_diff import GraphDiff, Node, NodeDiff
from graphprobe.report.visible import one_line, ranked
from graphprobe.settings import text_from_size
from graphprobe.store.layout import DUMPS, addresses_from_events
from graphprobe.store.reader import Model, Run

# rich draws a number while it is imported. The generator may be that of a program which is being watched.
_generator = random.getstate()
try:
    from rich import text as rich_text
    from rich.cells import cell_len
    from rich.console import Console as Console
    from rich.tree import Tree
finally:
    random.setstate(_generator)

_CACHE_ENTRY = re.compile(r"\W*\d+/\d+: ")
"""How a reason for a recompilation begins: with the entry of the cache whose guard failed."""

_PIPED_WIDTH = 10_000
STYLES: dict[Tone, str] = {"bad": "red", "warn": "yellow", "good": "green", "info": "cyan"}
STATE_STYLE = {"finished": "green", "running": "cyan", "failed": "red", "killed": "red"}

LINES = 5
"""A terminal that was scrolled by a long story still shows this many."""

WHOLE = ("where", "proof", "case", "report", "next")
"""Labels of paths and commands, which are not broken, so that they can be copied."""

Words = Sequence[str]
"""A command as its words; `graphprobe` is printed as the shell finds it."""

RUNS_A_PROGRAM = ("diagnose", "explain", "profile", "recompiles", "run")
"""Commands that run a script; one that torchrun has started needs torchrun again."""


class Text(rich_text.Text):
    """rich's text on one line, with what would steer the terminal, or begin a line, spelled out.

    It is the one way in which text gets on a console.
    """

    def __init__(self, text: str = "", *args: Any, **options: Any) -> None:
        super().__init__(one_line(text), *args, **options)

    def append(self, text: Any, *args: Any, **options: Any) -> rich_text.Text:
        """See rich's."""
        return super().append(one_line(text) if isinstance(text, str) else text, *args, **options)

    def append_line(self, text: str, *args: Any, **options: Any) -> None:
        """Append on a line of its own."""
        super().append("\n")
        self.append(text, *args, **options)


def console_for(file: IO[str] | None = None) -> Console:
    """A console on `file` (standard output); it wraps nothing when piped, so that lines can be searched."""
    stream = ranked(file or sys.stdout) if file in (None, sys.stdout, sys.stderr) else file
    kind, width = (_Wrapping, None) if stream.isatty() else (Console, _PIPED_WIDTH)
    wide = width is not None
    return kind(
        file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=wide, force_jupyter=False
    )


class _Wrapping(Console):
    """On a terminal: lines are broken between words, and what is left of one stands below where it began.

    A word that is too long, such as a path, is left whole, so that it can be copied.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """See rich's; several objects are one line. With `soft_wrap`, lines stay whole, so that they can be copied."""
        if options.get("soft_wrap") or not objects or not all(isinstance(one, rich_text.Text) for one in objects):
            super().print(*objects, **options)
            return
        for line in rich_text.Text(" ").join(objects).split("\n", allow_blank=True):
            lead = len(line.plain) - len(line.plain.lstrip())
            if line.cell_len <= self.width or lead > self.width // 2:
                super().print(line, **options)
                continue
            indent = " " * min(lead + 2, self.width // 2)
            body = line[lead:]
            for number, part in enumerate(body.divide(_breaks(body.plain, self.width - len(indent)))):
                part.rstrip()
                super().print(rich_text.Text(indent if number else " " * lead) + part, soft_wrap=True, **options)


def _breaks(text: str, width: int) -> list[int]:
    """Where to break a line: in front of each word that would reach beyond the width."""
    found, column = [], 0
    for word in re.finditer(r"\S+\s*", text):
        if column and column + cell_len(word[0].rstrip()) > width:
            found.append(word.start())
            column = 0
        column += cell_len(word[0])
    return found


def print_lines(lines: Iterable[str], *, file: IO[str] | None = None) -> None:
    """Print lines of plain text, wrapped where a terminal is."""
    console = console_for(file)
    for line in lines:
        console.print(Text(line))


class Paper:
    """Shows content on a console: prose broken at a width, labels in a column of their own.

    Paths, names and commands stand on one line, whole, so that they can be copied.
    """

    def __init__(self, console: Console, *, width: int, label: int, indent: int = 3) -> None:
        """`label`: columns of a label with its colon; `indent`: of what stands below a heading."""
        self._console, self._label, self._indent = console, label, indent
        self._width = min(width, console.width)

    def gap(self) -> None:
        """An empty line."""
        self._console.print()

    def show(self, content: Content, *, indent: int = 0) -> None:
        """Show a block, or one block or paragraph below the other; what is folded away outside of facts is left out."""
        if isinstance(content, list):
            for one in content:
                self.show(one, indent=indent)
        elif isinstance(content, Card):
            self.gap()
            self.prose(plain(content.title), indent=indent, hang=3, style="bold")
            self.show(content.body, indent=indent + self._indent)
        elif isinstance(content, Bullets):
            self.prose(f"{content.title}:", indent=indent)
            for entry in content.entries:
                self.prose(f"- {plain(entry)}", indent=indent + 2, hang=2)
        elif isinstance(content, Facts):
            for label, value in content.rows:
                self._fact(f"{label}:" if label else "", value, indent)
        elif not isinstance(content, Folded):
            self.prose(plain(content.content if isinstance(content, Note) else content), indent=indent)

    def prose(self, text: str, *, indent: int = 0, hang: int = 0, style: str = "") -> None:
        """Paragraphs, wrapped between words. Words that are longer than a line, as paths are, stay whole."""
        for paragraph in text.splitlines() or [""]:
            for line in wrapped(paragraph, self._width, " " * indent, " " * (indent + hang)):
                self._console.print(Text(line, style))

    def _fact(self, label: str, value: Content, indent: int) -> None:
        if isinstance(value, Folded):
            return
        head = f"{' ' * indent}{label:<{self._label}}"
        for text, whole, style in lines_of(value):
            for line in [text] if whole else wrapped(text, self._width - len(head)):
                self._console.print(Text.assemble((head, "dim"), (line, style)), soft_wrap=True)
                head = " " * len(head)


def lines_of(content: Content) -> Iterator[tuple[str, bool, str]]:
    """The lines of a fact: text, whether it is to stay whole, and style."""
    if isinstance(content, list):
        for one in content:
            yield from lines_of(one)
    elif isinstance(content, Note):
        yield f"({plain(content.content)})", False, ""
    elif isinstance(content, Excerpt | Command):
        if content.text:
            yield content.text, True, "cyan"
    else:
        yield plain(content), isinstance(content, Code | SourcePlace), ""


def grid_lines(grid: Grid, *, indent: int = 0) -> list[str]:
    """A table as lines: columns of numbers to the right, the others to the left; of rows that are left out, nothing."""
    lines = [tuple(grid.head), *(tuple(map(plain, row)) for row in grid.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = [str.rjust if index in grid.numbers else str.ljust for index in range(len(widths))]
    cells = [[side(cell, width) for side, cell, width in zip(sides, line, widths, strict=True)] for line in lines]
    return [f"{' ' * indent}{'  '.join(line)}".rstrip() for line in cells]


def wrapped(text: str, width: int, first: str = "", further: str = "") -> list[str]:
    """The lines of a paragraph, broken between words; a word that is too long for a line is left whole."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_run(run: Run, *, show_all: bool = False, file: IO[str] | None = None) -> None:
    """The tree of a run; `show_all` also lists the passes that changed nothing."""
    console = console_for(file)
    console.print(tree_from_run(run, show_all=show_all))


def print_diff(diff: GraphDiff, *, before_name: str, after_name: str, file: IO[str] | None = None) -> None:
    """A diff by node, each with its source line; the lines of a text diff as they are."""
    console = console_for(file)
    if not diff.different:
        console.print(Text(f"no difference between {before_name} and {after_name}"))
        return
    if diff.kind == "graphs":
        console.print(Text(f"--- {before_name}", "bold"))
        console.print(Text(f"+++ {after_name}", "bold"))
        for graph in diff.graphs:
            if graph.different:
                _print_nodes(console, graph)
    for line in diff.lines:
        console.print(Text(line, _line_style(line)))


def tree_from_run(run: Run, *, show_all: bool) -> Tree:
    """The run as a tree: header, what is missing, then models, directions and files."""
    tree = Tree(_header(run), guide_style="dim")
    models = run.models()
    for model in models:
        branch = tree.add(_model_title(model))
        for line in _compile_lines(model):
            branch.add(Text(line, "dim"))
        # Addresses are told apart over the whole model, as `find` does.
        addresses = {event.seq: address for address, event in addresses_from_events(model.events).items()}
        for event in model.events:
            if event.where.direction is None and event.path is not None:
                branch.add(_event_line(run, event, addresses))
        for direction, events in model.directions().items():
            shown = [event for event in events if show_all or _is_shown(event)]
            twig = branch.add(Text(direction, "bold"))
            listed: set[str | None] = {None}
            for event in shown:
                twig.add(_event_line(run, event, addresses, again=event.path in listed and event.path is not None))
                listed.add(event.path)
            hidden = len(events) - len(shown)
            if hidden:
                twig.add(Text(f"{counted(hidden, 'pass', 'passes')} changed nothing (--all lists them)", "dim"))
    addresses = {event.seq: address for address, event in run.artifacts().items()}
    for event in run.events():
        if event.where.model is None:
            tree.add(_event_line(run, event, addresses))
    for name, what in DUMPS.items():
        if (run.run_dir / name).is_dir():
            tree.add(Text.assemble(name, (f"  a dump of {what}", "dim")))
    if not models:
        tree.add(Text("no graph was collected", "yellow"))
    for problem in run.problems:
        tree.add(Text(f"problem: {problem}", "yellow"))
    return tree


def json_from_run(run: Run, *, show_all: bool) -> dict[str, Any]:
    """What `print_run` shows, as plain data."""
    addresses = {event.seq: address for address, event in run.artifacts().items()}
    return {
        "run": str(run.run_dir),
        "state": run.state,
        "manifest": {"schema": run.manifest.schema} | msgspec.to_builtins(run.manifest),
        "models": [
            {
                "model": model.number,
                "compile_id": model.compile_id,
                "compile": model.compile,
                "events": [
                    {"address": addresses.get(event.seq)} | msgspec.to_builtins(event)
                    for event in model.events
                    if show_all or _is_shown(event)
                ],
            }
            for model in run.models()
        ],
        "events": [msgspec.to_builtins(event) for event in run.events() if event.where.model is None],
        "problems": run.problems,
    }


def _header(run: Run) -> Text:
    manifest, state = run.manifest, run.state
    rank = f", rank {manifest.rank} of {manifest.world_size}" if manifest.world_size > 1 else ""
    text = Text()
    text.append(run.run_dir.name, "bold")
    text.append_line(f"torch {manifest.torch or 'not imported'}, Python {manifest.python}{rank}, ")
    text.append(state, STATE_STYLE.get(state, ""))
    if state == "killed":
        text.append(f" (process {manifest.pid} is gone and did not close the run)")
    if manifest.ended_ns is not None:
        text.append(f" after {(manifest.ended_ns - manifest.started_ns) / 1e9:.1f} s")
    files, size_bytes = manifest.collected_files, manifest.collected_bytes
    if manifest.state == "running":
        # The counts of a run that was not closed are stale; the events are fresher.
        artifacts = run.artifacts().values()
        files, size_bytes = len(artifacts), sum(run.size_bytes(event) or 0 for event in artifacts)
    text.append_line(f"{shlex.join(manifest.argv)}")
    text.append_line(f"{files} files, {text_from_size(size_bytes)}")
    if manifest.exception:
        text.append_line(f"ended by: {manifest.exception}", "red")
    for entry in manifest.missing:
        text.append_line(f"missing: {entry}", "yellow")
    for note in manifest.notes:
        text.append_line(f"note: {note}", "dim")
    return text


def _model_title(model: Model) -> Text:
    text = Text(f"model__{model.number}", "bold")
    place = ":".join(str(model.compile[key]) for key in ("file", "line") if model.compile.get(key) is not None)
    if model.compile.get("function"):
        text.append(f"  {function_name(str(model.compile['function']))}", "cyan")
    if place:
        text.append(f"  {place}", "dim")
    if model.compile_id is not None:
        text.append(f"  compile {model.compile_id}", "dim")
    if model.compile.get("mode"):
        text.append(f"  mode {model.compile['mode']}", "dim")
    return text


def _compile_lines(model: Model) -> list[str]:
    labels = {"reason": "compiled", "recompile_reason": "recompiled", "graph_break": "graph break"}
    if model.compile.get("recompile_reason"):
        del labels["reason"]
    return [f"{label}: {_one_line(model.compile[key])}" for key, label in labels.items() if model.compile.get(key)]


def _one_line(fact: Any) -> str:
    """A reason as one line; that of a graph break with the place where it broke. `compile.json` has it whole."""
    if not isinstance(fact, dict):
        lines = str(fact).splitlines()
        entries = [
            line for line in lines if _CACHE_ENTRY.match(line)
        ]  # a guard of each; the rest is where it came from
        return "; ".join(" ".join(line.split()) for line in entries or lines[:1])
    first = str(fact.get("reason", "")).partition("\n")[0]
    stack = fact.get("user_stack") or []
    return f"{first}, at {stack[-1]}" if stack else first


def _is_shown(event: Event) -> bool:
    return event.kind != "pass" or event.changed is not False


def _event_line(run: Run, event: Event, addresses: dict[int, str], *, again: bool = False) -> Text:
    """One event; `again` for one whose file stands in a line above: a pass around the one that made the change."""
    failed, idle = event.kind == "failure", event.kind == "pass" and event.changed is False
    text = Text(style="red" if failed else "dim" if idle else "")
    if event.seq in addresses and not again:
        text.append(addresses[event.seq], "" if failed or idle else "blue")
    elif event.path is not None and again:
        text.append(f"the same file, after {event.where.pass_name or event.name}, which holds the pass above")
    elif event.path is not None:
        text.append(event.path)
    else:
        text.append(f"{event.kind} {event.where.pass_name or event.name}")
        if not idle and event.kind not in ("note", "failure"):
            text.append("  (not written)", "yellow")
    size_bytes = run.size_bytes(event) if event.path is not None and not again else None
    if size_bytes is not None:
        text.append(f"  {text_from_size(size_bytes)}", "dim")
    if event.kind == "pass":
        text.append(f"  +{len(event.added)} −{len(event.removed)} nodes" if not idle else "  unchanged", "cyan")
    if event.elapsed_ns is not None:
        text.append(f"  {event.elapsed_ns / 1e6:.1f} ms", "dim")
    if event.where.subgraph:
        text.append(f"  in {event.where.subgraph}", "dim")
    if event.message:
        text.append("  " + event.message.strip().splitlines()[-1])
    if event.path is not None:
        text.append("  " + event.path.rsplit("/", 1)[-1], "dim")
    return text


def _print_nodes(console: Console, graph: NodeDiff) -> None:
    counts = (
        f"{len(graph.removed)} removed, {len(graph.added)} added, {len(graph.changed)} changed, "
        f"{len(graph.renamed)} renamed, {len(graph.moved)} moved, {graph.unchanged} unchanged"
    )
    console.print(Text(f"@@ {graph.graph}: {counts}", "cyan"))
    # In the order of the graphs, so that what belongs together stands together.
    entries: list[tuple[int, str, Node]] = [(node.line, "-", node) for node in graph.removed]
    entries += [(node.line, "+", node) for node in graph.added]
    for pair in graph.changed:
        entries += [(pair.after.line, "-~", pair.before), (pair.after.line, "+~", pair.after)]
    source = ""
    for _, sign, node in sorted(entries, key=lambda entry: entry[0]):
        if node.source and node.source != source:
            console.print(Text(f"  # {node.source}", "dim"))
        source = node.source
        console.print(Text(f"{sign:<3}{_node_text(node)}", "red" if sign[0] == "-" else "green"))
    for pair in graph.renamed:
        comment = f"  # {pair.after.source}" if pair.after.source else ""
        console.print(Text(f"= {pair.before.name} -> {pair.after.name}{comment}", "yellow"))
    for pair in graph.moved:
        comment = f"  # {pair.after.source}" if pair.after.source else ""
        console.print(
            Text(f"> {pair.after.name} moved from line {pair.before.line} to {pair.after.line}{comment}", "yellow")
        )


def _node_text(node: Node) -> str:
    if node.name == "output":
        return f"return {node.expression}"
    return f'{node.name}: "{node.type}" = {node.expression}' if node.type else f"{node.name} = {node.expression}"


def _line_style(line: str) -> str:
    if line.startswith("@@"):
        return "cyan"
    return {"-": "red", "+": "green"}.get(line[:1], "")


def command_line(words: Words) -> str:
    """A command as it can be typed, on one line."""
    own = words[:1] == ["graphprobe"]
    name = _own_name()
    if own and words[1] in RUNS_A_PROGRAM and any(word == "-m" or word.endswith(".py") for word in words[2:]):
        ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
        launcher = "torchrun" if shutil.which("torchrun") else f"{shlex.quote(sys.executable)} -m torch.distributed.run"
        name = f"{launcher} --nproc-per-node {ranks} -m graphprobe" if ranks.isdecimal() else name
    return " ".join([*([name] if own else []), *map(_quoted, words[1:] if own else words)])


def _quoted(word: str) -> str:
    if "\n" not in word:
        return shlex.quote(word)
    for part, escaped in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n")):
        word = word.replace(part, escaped)
    return f"$'{word}'"


def _own_name() -> str:
    """`graphprobe`, or how it was called where the shell would not find it: the environment is not activated."""
    called = next(iter(sys.orig_argv[1:]), "")
    if os.path.basename(called) != "graphprobe":
        return "graphprobe"
    found = shutil.which("graphprobe")
    if found is not None and os.path.realpath(found) == os.path.realpath(called):
        return "graphprobe"
    return shlex.quote(called)


def print_closing(
    verdict: str,
    facts: Sequence[tuple[str, str]] = (),
    *,
    follow: Words,
    once: str = "",
    style: str = "bold",
    file: IO[str] | None = None,
) -> None:
    """Print the verdict on a line, each fact with its label on a line below, and last the next command.

    Args:
        facts: label and text; those without a text are left out, and so are those beyond the third.
        follow: the next command, as its words.
        once: what to do before it.
        style: of the verdict, as rich names it.
        file: standard output by default.
    """
    console = console_for(file)
    console.print(Text(_line(verdict), style))
    shown = [
        *[fact for fact in facts if fact[1]][: LINES - 2],
        ("next", f"{once}{', then: ' * bool(once)}{command_line(follow)}"),
    ]
    width = max((len(label) for label, _ in shown), default=0) + 2
    for label, fact in shown:
        head = f"  {label + ':':<{width}}"
        text = fact if label == "next" else _line(fact)  # spaces count in the program of a -c
        for line in [text] if label in WHOLE else wrapped(text, console.width - len(head)):
            console.print(Text.assemble((head, "dim"), line), soft_wrap=True)
            head = " " * len(head)


def _line(text: str) -> str:
    return " ".join(text.split())
