"""`graphprobe report`: what was collected, as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from graphprobe.cli.shared_options import new_file
from graphprobe.errors import UsageError
from graphprobe.report.terminal import STYLES, print_closing
from graphprobe.report.visible import echo
from graphprobe.settings import text_from_size
from graphprobe.store import layout

DEFAULT = "report.html"


@click.command()
@click.argument("source", metavar="[RUN | DIAGNOSIS | COMPARISON | DUMP | PROFILE | DRIFT]", default=layout.ROOT)
@click.option("-o", "--out", metavar="FILE", default=DEFAULT, show_default=True, help="The file to write.")
@click.option("--force", is_flag=True, help="Overwrite an earlier report.")
@click.option(
    "--source-root",
    "source_roots",
    multiple=True,
    metavar="FOLDER",
    help="Show lines of files below FOLDER, too. Repeat it for more.",
)
def command(source: str, out: str, force: bool, source_roots: tuple[str, ...]) -> None:
    """Make one HTML file of what was collected. It loads nothing, so you can send it to somebody.

    RUN is a run folder, or a folder with runs: then the newest is taken. RUN defaults to torch_compile_debug. DIAGNOSIS
    is the JSON of `graphprobe diagnose --json`, a folder that it wrote for a fault, or the folder of these. COMPARISON
    is the folder of `graphprobe compare --out`, or its comparison.json. DUMP is what `graphprobe compare` takes.
    PROFILE is the JSON of `graphprobe profile`, DRIFT that of `graphprobe drift`.

    A dump may name any file of this machine. So the report shows lines only of files below the working directory, in
    the Python installation, or below a --source-root.

    \b
    Examples:
      graphprobe report
      graphprobe report result.json -o fault.html
      graphprobe report graphprobe-diagnosis -o fault.html
      graphprobe report ~/model/torch_compile_debug --source-root ~/model
    """
    from graphprobe.report.subject import MARKS, page_of, write_page_to

    if out == "-":
        raise UsageError("--out -: the report is not written to the standard output", hint="name a file")
    target = new_file("--out", out, *MARKS, force=force)
    report = page_of(Path(source), source_roots=[_root(folder) for folder in source_roots])
    write_page_to(target, report, named=f"--out {out}")
    echo(f"Wrote {out} ({text_from_size(target.stat().st_size)})")
    if report.sources is not None and (elsewhere := report.sources.elsewhere):
        more = f" and {len(elsewhere) - 1} more" if len(elsewhere) > 1 else ""
        echo(f"Not shown: lines of {elsewhere[0]}{more}; show them with --source-root {elsewhere[0].parent}")
    verdict, follow = report.verdict, ["python", "-m", "webbrowser", out]
    print_closing(f"{verdict.word}: {verdict.sentence}", follow=follow, style=f"bold {STYLES[verdict.tone]}")


def _root(folder: str) -> Path:
    if not Path(folder).is_dir():
        raise UsageError(f"--source-root {folder}: there is no such folder")
    return Path(folder)
