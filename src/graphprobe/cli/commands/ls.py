"""`graphprobe ls`: what a run holds."""

from __future__ import annotations

import json

import click

from graphprobe.report.visible import echo
from graphprobe.store import layout


@click.command()
@click.argument("run", default=layout.ROOT, type=click.Path())
@click.option("--all", "show_all", is_flag=True, help="Also the passes that changed nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(run: str, show_all: bool, as_json: bool) -> None:
    """List what RUN holds: models, why they were compiled, and the files of each direction.

    RUN is a run folder, its graphprobe folder, or a folder with runs, of which the newest is taken (default:
    torch_compile_debug in the working directory). The first word of a line is what `show` takes.

    \b
    Example:
      graphprobe ls
      graphprobe ls torch_compile_debug/run_2026_01_31_12_00_00_000000-pid_7 --all
    """
    from graphprobe.report.terminal import json_from_run, print_run
    from graphprobe.store.reader import Run

    opened = Run.open(run)
    if as_json:
        echo(json.dumps(json_from_run(opened, show_all=show_all), indent=2))
    else:
        print_run(opened, show_all=show_all)
