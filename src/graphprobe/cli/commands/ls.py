"""`graphprobe ls`: what a run holds."""

from __future__ import annotations

import click

from graphprobe.cli.shared_options import JsonCommand, JsonTo, json_option
from graphprobe.report.document import counted
from graphprobe.report.run_document import STATE_STYLE, json_from_run, print_run
from graphprobe.report.terminal import print_closing
from graphprobe.store import layout
from graphprobe.store.reader import Run


@click.command(cls=JsonCommand)
@click.argument("run", default=layout.ROOT, type=click.Path())
@click.option("--all", "show_all", is_flag=True, help="List passes that changed nothing, too.")
@json_option
def command(run: str, show_all: bool, json_to: JsonTo) -> None:
    """List what RUN holds: models, why they were compiled, and the files of each direction.

    RUN is a run folder, its graphprobe folder, or a folder with runs: then the newest is taken. RUN defaults to
    torch_compile_debug in the working directory. `show` takes the first word of a line.

    \b
    Examples:
      graphprobe ls
      graphprobe ls torch_compile_debug/run_2026_01_31_12_00_00_000000-pid_7 --all
    """
    opened = Run.open(run)
    if not json_to.replaces_text(lambda: json_from_run(opened, show_all=show_all)):
        print_run(opened, show_all=show_all)
        addresses = list(opened.artifacts())
        gaps = len(opened.problems) + len(opened.manifest.missing)
        told = [counted(len(opened.models()), "model"), counted(len(addresses), "file"), counted(gaps, "gap")]
        follow = ["graphprobe", "show", run, addresses[0]] if addresses else ["graphprobe", "logs", run]
        style = f"bold {STATE_STYLE.get(opened.state, '')}".rstrip()
        print_closing(f"{opened.state.upper()}: {', '.join(told)}", follow=follow, style=style)
