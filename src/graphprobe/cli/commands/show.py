"""`graphprobe show`: one artifact of a run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from graphprobe.cli.shared_options import JsonCommand, JsonTo, json_option
from graphprobe.cli.target import is_saved
from graphprobe.errors import UsageError
from graphprobe.records import Event
from graphprobe.report.terminal import print_closing
from graphprobe.report.visible import echo, one_line, write
from graphprobe.store import layout
from graphprobe.store.reader import Run


@click.command(cls=JsonCommand)
@click.argument("words", nargs=-1, metavar="[RUN] ADDRESS")
@click.option("--raw", is_flag=True, help="Print the file of launches as it is: a Chrome trace.")
@json_option
def command(words: tuple[str, ...], raw: bool, json_to: JsonTo) -> None:
    """Print the artifact at ADDRESS: the file as it is on disk, or for `ops` a list of the launches.

    On a terminal, control characters are spelled out. A file or a pipe gets every byte as it is. The last lines go
    to the standard error.

    An address is what `ls` shows: model__0/forward/graph, model__0/forward/after:PASS, model__0/dynamo,
    model__0/compile, model__0/backward/code, ops, original, optimized. A file name will do, and so will the unique
    beginning or end of either. RUN defaults to the newest run in torch_compile_debug. A file of torch.export.save will
    do, too: its graph is printed.

    \b
    Examples:
      graphprobe show model__0/forward/graph
      graphprobe show torch_compile_debug model__0/backward/code > output_code.py
    """
    if len(words) == 1 and is_saved(words[0]):
        from graphprobe.diagnose.ways.saved import text_of

        graph = text_of(Path(words[0]))
        if not json_to.replaces_text(lambda: {"file": words[0], "text": graph}):
            _print_text(graph)
        return
    if len(words) not in (1, 2):
        raise UsageError(f"show takes [RUN] ADDRESS, not {len(words)} arguments", hint="graphprobe ls lists addresses")
    named = words[0] if len(words) == 2 else layout.ROOT
    run = Run.open(named)
    event = run.find(words[-1])
    text = run.text(event)
    if json_to.replaces_text(lambda: {"run": str(run.run_dir), "event": event, "text": text}):
        return
    _print(run, event, text, raw=raw)
    sys.stdout.flush()
    _end(run, named, event)


def _print(run: Run, event: Event, text: str, *, raw: bool) -> None:
    if event.kind == "ops" and not raw:
        from graphprobe.report.html.panes import launch_lines, launches_of

        launches = launches_of(run, event)
        if launches:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            for line in launch_lines(launches, width=width):
                echo(one_line(line))
            return
    _print_text(text)


def _print_text(text: str) -> None:
    text += "" if text.endswith("\n") else "\n"
    if sys.stdout.isatty():
        echo(text, nl=False)
    else:
        write(text)


def _end(run: Run, named: str, event: Event) -> None:
    """On stderr, for the output is the artifact: which one it was, and the command for the one behind it."""
    addresses = list(run.artifacts())
    at = next((at for at, other in enumerate(run.artifacts().values()) if other.seq == event.seq), len(addresses) - 1)
    further = addresses[at + 1 : at + 2]
    follow = ["graphprobe", "show", named, *further] if further else ["graphprobe", "report", named]
    print_closing(f"SHOWN: {addresses[at]}", follow=follow, file=sys.stderr)
