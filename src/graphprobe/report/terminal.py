"""Views for the terminal: plain text when piped or with NO_COLOR, colours otherwise; and what is being done right now.

The last lines of a command (verdict, where, proof, what to do next) are never more than five.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from graphprobe.findings import NamedStep
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
    plain,
)
from graphprobe.report.visible import one_line, ranked

if TYPE_CHECKING:
    from rich.live import Live

# rich draws a number while it is imported. The generator may be that of a program which is being watched.
_generator = random.getstate()
try:
    from rich import text as rich_text
    from rich.cells import cell_len
    from rich.console import Console as Console
    from rich.tree import Tree as Tree
finally:
    random.setstate(_generator)

_PIPED_WIDTH = 10_000
STYLES: dict[Tone, str] = {"bad": "red", "warn": "yellow", "good": "green", "info": "cyan"}

LINES = 5
"""A terminal that was scrolled by a long story still shows this many."""

WHOLE = ("where", "proof", "case", "report", "next")
"""Labels of paths and commands, which are not broken, so that they can be copied."""

Words = Sequence[str]
"""A command as its words; `graphprobe` is printed as the shell finds it."""

STEPS = {
    "uncompiled": "running it uncompiled",
    "float64": "running it in float64",
    "dynamo": "running Dynamo's graphs",
    "aot": "running AOTAutograd's graphs",
    "passes": "looking into the passes",
    "kernels": "looking into the generated code",
    "plain": "running it compiled, not looked into",
    "bits": "comparing it bit for bit",
    "culprit": "looking for the operation",
    "workaround": "trying changes of the program",
    "proof": "making the program its own proof",
    "rounded": "running it with narrow values rounded as uncompiled",
}
"""The steps of a diagnosis, in words."""

LINE_EVERY_S = 30.0
"""How often a line is written where none can be drawn anew."""

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
        for line in content.text.splitlines():
            yield line, True, "cyan"
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


def near(path: str, base: Path | None = None) -> str:
    """A path, or a `file:line`, as short as it can be and still lead there from `base` (the working directory)."""
    base = base or Path.cwd()
    return str(Path(path).relative_to(base)) if Path(path).is_relative_to(base) else path


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
    shown = [(label, _line(text)) for label, text in facts if text][: LINES - 2]
    shown.append(("next", f"{once}{', then: ' * bool(once)}{command_line(follow)}"))
    rows = [(label, Code(text) if label in WHOLE else text) for label, text in shown]
    Paper(console, width=console.width, label=max(len(label) for label, _ in rows) + 2).show(Facts(rows), indent=2)


def _line(text: str) -> str:
    return " ".join(text.split())


class ProgressLine:
    """Shows what is being done, from the first time that it is told something to `stop`.

    It draws when it is told something and has no thread: programs are forked while it shows, and a child must not
    inherit a lock that is held. Standard output and error stay the program's own; nothing is redirected.
    """

    def __init__(self, file: IO[str] | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`file`: standard error by default."""
        self._file, self._clock = file, clock
        self._live: Live | None = None
        self._began = self._written = clock()

    def tell(self, what: str) -> None:
        """Show `what`, on one line as wide as the terminal; elsewhere nothing."""
        if self._stream.isatty():
            self._draw(f"graphprobe: {what} … {self._clock() - self._began:.0f} s")

    def tell_step(self, name: str, step: NamedStep) -> None:
        """Show a step of what is called `name`: at once on a terminal, in other files each half a minute.

        A fact is written at once, and stays.
        """
        text, file = self.line_of(name, step), self._stream
        if step.fact:
            self.stop()
            text = f"graphprobe: {name}: {step.fact}"
        elif file.isatty():
            self._draw(text)
            return
        elif self._clock() - self._written < LINE_EVERY_S:
            return
        else:
            self._written = self._clock()
        file.write(f"{one_line(text)}\n")
        file.flush()

    def line_of(self, name: str, step: NamedStep) -> str:
        """The step in words, with its seconds, what it does, and the seconds since the beginning."""
        what, doing = STEPS.get(str(step), str(step)), f", {step.doing}" if step.doing else ""
        total_s = self._clock() - self._began
        before = f"; {total_s:.0f} s in all" if total_s - step.seconds >= 1 else ""
        return f"graphprobe: {name}: {what} … {step.seconds:.0f} s{doing}{before}"

    @property
    def _stream(self) -> IO[str]:
        return self._file if self._file is not None else ranked(sys.stderr)

    def _draw(self, text: str) -> None:
        from rich.live import Live

        line = Text(text, "dim", no_wrap=True, overflow="ellipsis")
        if self._live is None:
            self._live = Live(
                console=Console(file=self._stream, highlight=False, force_jupyter=False),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(line, refresh=True)

    def stop(self) -> None:
        """Take the line away; the next `tell` shows it again."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextlib.contextmanager
def shown_in_notebook(
    instead: Callable[[Any], None] | None = None, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[Any], None] | None]:
    """What shows the steps of a diagnosis in a notebook, as one line of text that is written over.

    `instead` of it where that is given, and where this is no notebook.
    """
    if instead is not None or not _in_notebook():
        yield instead
        return
    lines, longest = ProgressLine(clock=clock), 0

    def tell(step: NamedStep) -> None:
        nonlocal longest
        text = one_line(lines.line_of("diagnosing", step))
        longest = max(longest, len(text))
        sys.stderr.write(f"\r{text:{longest}}")
        sys.stderr.flush()

    try:
        yield tell
    finally:
        if longest:
            sys.stderr.write(f"\r{'':{longest}}\r")
            sys.stderr.flush()


def _in_notebook() -> bool:
    """Whether the cells of a notebook run in this process; IPython on a terminal is none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")
