"""`graphprobe show`: one artifact of a run."""

from __future__ import annotations

import json
import sys

import click

from graphprobe.errors import UsageError
from graphprobe.report.visible import echo, one_line, write
from graphprobe.store import layout


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN] ADDRESS")
@click.option("--raw", is_flag=True, help="Print the file of launches itself, which is a Chrome trace.")
@click.option("--json", "as_json", is_flag=True, help="Print the event and the text as JSON.")
def command(words: tuple[str, ...], raw: bool, as_json: bool) -> None:
    """Print the artifact at ADDRESS: of `ops` the launches as a list, of everything else the file as it lies on disk.

    On a terminal, characters that would steer it are spelled out; into a file or a pipe goes every byte as it is.

    An address is what `ls` shows, such as model__0/forward/graph, model__0/forward/after:PASS, model__0/dynamo,
    model__0/compile, model__0/backward/code, ops, original, optimized; a file name; or the unique beginning or end of
    one. RUN defaults to the newest run in torch_compile_debug.

    \b
    Example:
      graphprobe show model__0/forward/graph
      graphprobe show torch_compile_debug model__0/backward/code > output_code.py
    """
    import msgspec

    from graphprobe.store.reader import Run

    if len(words) not in (1, 2):
        raise UsageError(f"show takes [RUN] ADDRESS, not {len(words)} arguments", hint="graphprobe ls lists addresses")
    run = Run.open(words[0] if len(words) == 2 else layout.ROOT)
    event = run.find(words[-1])
    text = run.text(event)
    if as_json:
        document = {"run": str(run.run_dir), "event": msgspec.to_builtins(event), "text": text}
        echo(json.dumps(document, indent=2))
        return
    if event.kind == "ops" and not raw:
        from graphprobe.report.html.launches import launch_lines, launches_of

        launches = launches_of(run, event)
        if launches:
            for line in launch_lines(launches):
                echo(one_line(line))
            return
    text += "" if text.endswith("\n") else "\n"
    if sys.stdout.isatty():
        echo(text, nl=False)
    else:
        write(text)
