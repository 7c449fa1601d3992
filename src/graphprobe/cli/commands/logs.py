"""`graphprobe logs`: the last step begun and not ended, and torch's log lines."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from graphprobe.analysis import steps
from graphprobe.analysis.steps import LogRecord, StepReport
from graphprobe.cli.shared_options import JsonCommand, JsonTo, json_option
from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, UsageError
from graphprobe.report import run_document as view
from graphprobe.report.terminal import print_lines
from graphprobe.report.visible import echo
from graphprobe.store import layout
from graphprobe.store.reader import Run

TAIL = 10


@click.command(cls=JsonCommand)
@click.argument("run", default=layout.ROOT)
@click.option("--component", metavar="NAME", help="Only the lines of dynamo, aot, inductor, fx, or an artifact.")
@click.option("--level", metavar="LEVEL", help="Only lines of this level or worse: debug, info, warning, error.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help=f"Only the last N records. Default: {TAIL}.")
@json_option
def command(run: str, component: str | None, level: str | None, tail: int | None, json_to: JsonTo) -> int:
    """Name the last step of the compiler that began and did not end, with the last lines of its log.

    RUN is a run, as for `ls`. It may also be a text file that torch logged to (TORCH_LOGS=dynamo,aot,inductor), or -
    for standard input. RUN defaults to the newest run in torch_compile_debug. With --component, the command prints
    all lines of that component, and nothing else.

    \b
    Examples:
      graphprobe logs
      graphprobe logs --component graph_breaks
      TORCH_LOGS=dynamo,inductor python train.py 2>&1 | graphprobe logs -

    Exit codes: 0 no step is open, or the process still runs, 1 a step did not end, 2 wrong usage, 125 a text without
    any step. A step that an exception ended, with the program, counts as one that did not end.
    """
    if level is not None and level not in steps.LEVELS:
        raise UsageError(f"--level {level}: there is no such level", hint=f"levels: {', '.join(steps.LEVELS)}")
    report, records, shown, source = _read(run, component)
    if component is None:
        records = _around_the_step(report, records, unasked=tail is None and level is None)
    if level is not None:
        records = list(steps.at_least(records, level))
    if tail is not None or component is None:
        kept = TAIL if tail is None else tail
        records = records[len(records) - kept :] if kept < len(records) else records
    if not json_to.replaces_text(lambda: view.document(report, records, source=source, component=shown)):
        if component is None:
            echo(f"{source}:")
            print_lines(view.step_lines(report))
            if records:
                echo(f"\nlast lines of {shown or 'the log'}:")
        print_lines(line for record in records for line in record.raw.split("\n"))
        if component is None:
            echo()
            view.print_end_of_steps(report, _follow(report, run))
    return EXIT_OK if component is not None else _exit_code(report)


def _follow(report: StepReport, run: str) -> list[str]:
    """The next command: the report of a run; of a text all lines of the part of torch that speaks of the step."""
    if report.state is not None:
        return ["graphprobe", "report", run]
    if run == "-":
        return ["graphprobe", "help", "run"]
    return ["graphprobe", "logs", run, "--component", _component_of(report) or "dynamo"]


def _read(run: str, component: str | None) -> tuple[StepReport, list[LogRecord], str | None, str]:
    """What the steps say, lines of the log, whose they are (None: all), and where they are from."""
    if run != "-" and not Path(run).is_file():
        opened = Run.open(run)
        report = steps.report_from_run(opened)
        shown = _component_of(report) if component is None else component
        return report, steps.component_records(opened, shown), shown, str(opened.run_dir)
    records = steps.records_from_text(sys.stdin.read()) if run == "-" else steps.records_from_file(Path(run))
    report = steps.report_from_records(records)
    shown = _component_of(report) if component is None else component
    return report, records if shown is None else steps.text_records(records, shown), shown, run


def _around_the_step(report: StepReport, records: list[LogRecord], *, unasked: bool) -> list[LogRecord]:
    """The lines up to the failure that ended the program, after which comes its end; none where nothing is to be told.

    `unasked`: neither `--level` nor `--tail` asks for lines.
    """
    failed = report.failed if not report.open else None
    if failed is not None:
        return [one for one in records if one.time_ns is None or one.time_ns <= (failed.end_ns or 0)]
    return [] if unasked and report.culprit is None and report.steps else records


def _exit_code(report: StepReport) -> int:
    if report.state is None and not report.steps:
        return EXIT_UNDECIDED
    return EXIT_FOUND if report.found else EXIT_OK


def _component_of(report: StepReport) -> str | None:
    """Whose log belongs to the step that is told."""
    step = report.culprit
    return step.component if step is not None and step.component in steps.LOGGERS else None
