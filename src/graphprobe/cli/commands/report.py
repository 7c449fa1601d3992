"""`graphprobe report`: what was collected, as one HTML file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphprobe.errors import UsageError
from graphprobe.report.visible import echo
from graphprobe.store import layout
from graphprobe.store.files import check_replaced

if TYPE_CHECKING:
    from graphprobe.report.html.section import Report

DEFAULT = "report.html"
MARKS = (b"<title>graphprobe",)
"""What every report has."""


@click.command()
@click.argument("source", metavar="[RUN | DIAGNOSIS | COMPARISON | DUMP | PROFILE]", default=layout.ROOT)
@click.option("-o", "--out", metavar="FILE", default=DEFAULT, show_default=True, help="The file to write.")
@click.option("--force", is_flag=True, help="Overwrite an earlier report.")
@click.option(
    "--source-root",
    "source_roots",
    multiple=True,
    metavar="FOLDER",
    help="Show lines of files below FOLDER, too. May be repeated.",
)
def command(source: str, out: str, force: bool, source_roots: tuple[str, ...]) -> None:
    """Make one HTML file of what was collected, for a browser. It loads nothing and can be sent on.

    RUN is a run folder, or a folder with runs, of which the newest is taken (default: torch_compile_debug). DIAGNOSIS
    is the JSON of `graphprobe diagnose --json`, or a folder that it wrote for a fault, or the folder of these.
    COMPARISON is the folder of `graphprobe compare --out`, or its comparison.json. DUMP is what `graphprobe compare`
    takes. PROFILE is the JSON of `graphprobe profile`.

    Lines of the program are shown if they lie below the working directory, in the Python installation, or below a
    --source-root: what a dump names may be any file of this machine.

    \b
    Examples:
      graphprobe report
      graphprobe report result.json -o fault.html
      graphprobe report graphprobe-diagnosis -o fault.html
      graphprobe report ~/model/torch_compile_debug --source-root ~/model
    """
    target = _target(out, force)
    report = _report(Path(source), [_root(folder) for folder in source_roots])
    from graphprobe.report.html.page import write_page

    temporary = target.with_name(f"{layout.TEMPORARY_PREFIX}{os.getpid()}-{target.name}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            write_page(report, file)
        temporary.replace(target)
    except OSError as error:
        raise UsageError(f"--out {out}: it cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    echo(f"{report.verdict.word}: {report.verdict.sentence}")
    echo(f"Wrote {out} ({_size(target)})")
    if report.sources is not None and (elsewhere := report.sources.elsewhere):
        more = f" and {len(elsewhere) - 1} more" if len(elsewhere) > 1 else ""
        echo(f"Not shown: lines of {elsewhere[0]}{more}; show them with --source-root {elsewhere[0].parent}")


def _target(out: str, force: bool) -> Path:
    if out == "-":
        raise UsageError("--out -: the report is not written to the standard output", hint="name a file")
    file = Path(out).absolute()
    if not file.parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {file.parent}")
    if file.is_dir():
        raise UsageError(f"--out {out}: it is a folder", hint="name a file, such as report.html")
    if file.exists() and not force:
        raise UsageError(f"--out {out}: it exists already", hint="name another file, or overwrite it with --force")
    check_replaced(file, f"--out {out}", *MARKS)
    return file


def _root(folder: str) -> Path:
    if not Path(folder).is_dir():
        raise UsageError(f"--source-root {folder}: there is no such folder")
    return Path(folder)


def _report(source: Path, source_roots: list[Path]) -> Report:
    """The report of whatever `source` is; only what that needs is imported."""
    from graphprobe.report.html.detect import kind_of

    kind = kind_of(source)
    if kind == "run":
        from graphprobe.report.html.sections_run import report_from
    elif kind == "diagnosis":
        from graphprobe.report.html.sections_diagnosis import report_from
    elif kind == "profile":
        from graphprobe.report.html.sections_profile import report_from
    elif kind == "comparison":
        from graphprobe.report.html.sections_comparison import report_from
    else:
        from graphprobe.report.html.sections_dump import report_from
    return report_from(source, source_roots=source_roots)


def _size(path: Path) -> str:
    from graphprobe.settings import text_from_size

    return text_from_size(path.stat().st_size)
