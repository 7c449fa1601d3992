"""`graphprobe logs`: the last step begun and not ended, and torch's log lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, UsageError
from graphprobe.report.visible import echo
from graphprobe.store import layout

TAIL = 10


@click.command()
@click.argument("run", default=layout.ROOT)
@click.option("--component", metavar="NAME", help="Only the lines of dynamo, aot, inductor, fx, or an artifact.")
@click.option("--level", metavar="LEVEL", help="Only lines of this level or worse: debug, info, warning, error.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help=f"Only the last N records. Default: {TAIL}.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(
    ctx: click.Context, run: str, component: str | None, level: str | None, tail: int | None, as_json: bool
) -> None:
    """Name the last step of the compiler that began and did not end, with the last lines of its log.

    RUN is a run, as for `ls` (default: the newest in torch_compile_debug), or a text file that torch logged to
    (TORCH_LOGS=dynamo,aot,inductor), or - for standard input. With --component all of its lines are printed, and
    nothing else.

    \b
    Examples:
      graphprobe logs
      graphprobe logs --component graph_breaks
      TORCH_LOGS=dynamo,inductor python train.py 2>&1 | graphprobe logs -

    Exit codes: 0 nothing is open, or the process is still running; 1 a step was not ended, or left by the exception
    that ended the program; 2 wrong usage; 125 a text without any step.
    """
    from graphprobe.analysis import log_lines, steps, torch_steps
    from graphprobe.report import logs
    from graphprobe.report.terminal import print_lines
    from graphprobe.store.reader import Run

    if level is not None and level not in log_lines.LEVELS:
        raise UsageError(f"--level {level}: there is no such level", hint=f"levels: {', '.join(log_lines.LEVELS)}")
    if run == "-" or Path(run).is_file():
        own = run == "-"
        records = log_lines.records_from_text(sys.stdin.read()) if own else log_lines.records_from_file(Path(run))
        report = torch_steps.report_from_records(records)
        shown = _component_of(report) if component is None else component
        if shown is not None:
            records = log_lines.text_records(records, shown)
        source = run
    else:
        opened = Run.open(run)
        report = steps.report_from_run(opened)
        shown = _component_of(report) if component is None else component
        records = log_lines.component_records(opened, shown)
        source = str(opened.run_dir)
    failed = report.failed if component is None and not report.open else None
    if failed is not None:  # what came after it is the end of the program
        records = [one for one in records if one.time_ns is None or one.time_ns <= (failed.end_ns or 0)]
    elif component is None and report.culprit is None and tail is None and level is None and report.steps:
        records = []
    if level is not None:
        records = list(log_lines.at_least(records, level))
    if tail is not None or component is None:
        kept = TAIL if tail is None else tail
        records = records[len(records) - kept :] if kept < len(records) else records
    if as_json:
        echo(json.dumps(logs.document(report, records, source=source, component=shown), indent=1))
    else:
        if component is None:
            echo(f"{source}:")
            print_lines(logs.step_lines(report))
            if records:
                echo(f"\nlast lines of {shown or 'the log'}:")
        print_lines(logs.log_lines(records))
    if component is not None:
        ctx.exit(EXIT_OK)
    if report.state is None and not report.steps:
        ctx.exit(EXIT_UNDECIDED)
    ctx.exit(EXIT_FOUND if report.found else EXIT_OK)


def _component_of(report: object) -> str | None:
    """Whose log belongs to the step that is told."""
    from graphprobe.analysis.log_lines import LOGGERS

    step = getattr(report, "culprit", None)
    return step.component if step is not None and step.component in LOGGERS else None
