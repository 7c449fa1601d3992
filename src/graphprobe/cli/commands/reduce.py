"""`graphprobe reduce`: the smallest case that still fails in the same way."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphprobe.cli.shared_options import JsonTo, exit_code, filtered, json_option, only_function_option, write_json
from graphprobe.cli.target import TargetCommand, TypedTarget, import_first
from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, UsageError
from graphprobe.report.terminal import ProgressLine, command_line, print_closing
from graphprobe.report.visible import echo

if TYPE_CHECKING:
    from graphprobe.diagnose.reduction.reduce_case import CaseReduction
    from graphprobe.diagnose.reduction.watched import Asked, WatchOutcome
    from graphprobe.probe.script import Ended, ScriptTarget
    from graphprobe.reduce.outcome import Progress

GIGABYTE = 1024**3


@click.command(cls=TargetCommand, takes="CASE [ARGS]...", reads=lambda word: not _is_script(word))
@click.option(
    "-o",
    "--out",
    "out_dir",
    metavar="DIR",
    help="Folder for the reduction. Default: CASE-reduced; of a script a new one in graphprobe-reduced.",
)
@click.option(
    "--after",
    type=click.Choice(["dynamo", "aot"]),
    help="Of a script: reduce Dynamo's graphs, or those that AOTAutograd gives to Inductor. Default: dynamo.",
)
@click.option(
    "--level",
    type=click.Choice(["2", "3", "4"]),
    help="Of a script: 2 exceptions, 3 also crashes and hangs, 4 also wrong values. Default: 4.",
)
@click.option(
    "--check",
    metavar="CMD",
    help="Ask this command: it runs in a folder with the repro; exit code 0 passes, 125 is unresolved, else fails.",
)
@click.option("--fail-regex", metavar="RE", help="Look only for failures whose text matches.")
@click.option(
    "--timeout", "timeout_s", type=float, metavar="SECONDS", default=300.0, show_default=True, help="For one candidate."
)
@click.option(
    "--memory", "memory_gb", type=float, metavar="GB", help="For one candidate. Default: 3/4 of what is free."
)
@click.option(
    "--budget",
    "budget_s",
    type=float,
    metavar="SECONDS",
    help="End after so many seconds, with the smallest case so far.",
)
@click.option("--max-calls", type=click.IntRange(min=1), metavar="N", help="End after N candidates.")
@click.option("--import", "modules", metavar="MODULE", multiple=True, help="Import first: it registers operators.")
@click.option("--hint", "hints", metavar="NODE", multiple=True, help="Name of a node that you suspect.")
@click.option("--resume", is_flag=True, help="Go on with the reduction in the folder.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the order of some tries.")
@json_option
@only_function_option
def command(
    out_dir: str | None,
    after: str | None,
    level: str | None,
    memory_gb: float | None,
    modules: tuple[str, ...],
    json_to: JsonTo,
    only_function: tuple[str, ...],
    target: TypedTarget,
    **options: Any,  # of the function `reduce`
) -> int:
    """Cut a failing graph down to the smallest one that still fails in the same way, and write a repro of it.

    CASE is a dossier of `graphprobe diagnose`, a graph of a run as Python, or the folder of a reduction. It may also
    be a script, which runs with its own arguments. Then its first failing graph is taken. The repro of the smallest
    case so far is on disk at any moment. Ctrl-C ends the search and keeps it; --resume goes on.

    \b
    Examples:
      graphprobe reduce graphprobe-diagnosis/lowering-aten.relu.default
      graphprobe reduce --check "python repro.py" --fail-regex "off by" CASE
      graphprobe reduce -o small --resume CASE
      graphprobe reduce --after aot train.py --epochs 1

    Options stand before a script. TORCHDYNAMO_REPRO_AFTER and TORCHDYNAMO_REPRO_LEVEL say the same as --after and
    --level.

    Exit codes: 0 the case does not fail, 1 it fails and was reduced, 2 wrong usage, 125 undecided, or the repro alone
    does not show the fault.
    """
    amounts = (("--timeout", options["timeout_s"]), ("--memory", memory_gb), ("--budget", options["budget_s"]))
    for name, value in amounts:
        if value is not None and not value > 0:
            raise UsageError(f"{name} {value:g}: it takes a number above 0")
    if options["fail_regex"] is not None:
        _check_regex(options["fail_regex"])
    case = "" if target.named else _existing(target.words)
    for name in modules:
        import_first(name)
    options["memory_bytes"] = None if memory_gb is None else int(memory_gb * GIGABYTE)
    if target.named or _is_script(case):
        with filtered(only_function) as only:
            ended = _program(target.program(), target.typed, _asked(after, level), out_dir, options, json_to)
        return exit_code(only, ended)
    arguments = target.words[1:]
    if arguments or after or level or only_function:
        what = f"the arguments {' '.join(arguments)!r}" if arguments else "--after, --level and --only-function"
        raise UsageError(f"{case} is a case, and {what} are for a script")
    return _case(case, out_dir, options, json_to)


def _case(case: str, out_dir: str | None, options: Mapping[str, Any], json_to: JsonTo) -> int:
    from graphprobe.api import reduce

    with ProgressLine() as line:
        line.tell("is it failing, and how?")
        reduction = reduce(case, out=out_dir, **options, on_progress=lambda p: line.tell(_line(p)))
    if not json_to.replaces_text(lambda: _document(reduction)):
        show(reduction)
    return _exit_code(reduction)


def _existing(words: tuple[str, ...]) -> str:
    """The script or the case that the first word names."""
    if not words:
        raise UsageError("nothing to reduce", hint="graphprobe reduce DOSSIER, or SCRIPT [ARGS]")
    if not os.path.exists(words[0]):
        raise UsageError(
            f"no script and no case at {words[0]!r} (looked in {os.getcwd()})",
            hint="name a Python file, or the folder that diagnose or reduce has written for a fault",
        )
    return words[0]


def _is_script(case: str) -> bool:
    """Whether this is a program, and not a graph or a repro that graphprobe wrote.

    Those have a `build()`, or, where the repro is a short one, its exact form beside them.
    """
    path = Path(case)
    if path.name == "repro.py" and (path.parent / "exact" / "repro.py").is_file():
        return False
    if path.suffix != ".py" or not path.is_file():
        return False
    text = path.read_text("utf-8", "replace")
    return not ("graphprobe" in text and re.search(r"^def build\(", text, re.M))


def _asked(after: str | None, level: str | None) -> Asked:
    from graphprobe.diagnose.reduction.watched import LEVEL, Asked, asked_by

    known = asked_by(os.environ)
    found = int(level or (os.environ.get(LEVEL) if known is not None else None) or 4)
    return Asked(after or (known.after if known is not None else "dynamo"), found)


def _program(
    program: ScriptTarget,
    typed: list[str],
    asked: Asked,
    out_dir: str | None,
    options: Mapping[str, Any],
    json_to: JsonTo,
) -> int:
    """Run a program, and reduce its first failing graph."""
    from graphprobe.diagnose.reduction.case_folder import is_new
    from graphprobe.diagnose.reduction.watch_script import ScriptWatch
    from graphprobe.probe import script

    out = Path(out_dir).absolute() if out_dir is not None else None
    if out is not None:
        is_new(out, resume=options["resume"])
    script.check(program)
    path = program.name
    line = ProgressLine()

    def note(text: str) -> None:
        line.stop()
        say(text)

    def done(reduction: CaseReduction) -> None:
        # At once, for what the script does when it is left may fail; the whole comes behind what it prints.
        note(f"reduced from {reduction.before} calls to {reduction.after}: {reduction.folder / 'repro'}")
        write_json(json_to.file, _document(reduction))

    options = {**options, "on_progress": lambda p: line.tell(_line(p))}
    watch = ScriptWatch(asked, out=out, on_note=note, on_reduction=done, options=options, exit=True)
    watch.install()
    try:
        with line:
            ran = script.run(program)
    finally:
        watch.remove()
    sys.stdout.flush()
    ended = watch.ended
    if ended.folder is not None:
        reduction = ended.reduction
        if reduction is None:
            _say_end("REDUCED: a graph was reduced", ["graphprobe", "issue", os.path.relpath(ended.folder)], json_to)
            return EXIT_FOUND
        if not json_to.replaces_text(lambda: _document(reduction)):
            show(reduction)
        return _exit_code(reduction)
    if ran.error is None and not ended.graphs:
        raise UsageError(f"{path} compiled nothing")
    text = _not_reduced(path, ran, ended)
    _say_end(text, ["graphprobe", "diagnose", *typed], json_to)
    return EXIT_UNDECIDED if ran.code != 0 or ended.notes else EXIT_OK


def _not_reduced(path: str, ran: Ended, ended: WatchOutcome) -> str:
    what = f"{ended.graphs} graphs"
    if ran.interrupted:
        return f"UNDECIDED: {path}: {ran.problem}; none of {what} was seen to fail"
    if ran.code != 0:
        return f"NOT REDUCED: {path}: the script ended with exit code {ran.code}, and none of {what} fails by itself"
    if ended.notes:
        return f"UNDECIDED: {path}: no graph of {what} was seen to fail, but not all could be judged"
    return f"NOT REDUCED: {path}: nothing fails: {what}"


def _say_end(text: str, follow: list[str], json_to: JsonTo) -> None:
    print_closing(text, follow=follow, file=sys.stderr if json_to.printed else None)


def say(text: str) -> None:
    """Tell what happens, on stderr, so that the program's own output stays as it is."""
    echo(f"graphprobe: {text}", err=True)


def _check_regex(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--fail-regex {pattern!r} is no regular expression: {error}") from error


def _line(progress: Progress) -> str:
    verdict = f"{progress.by}: {progress.verdict.value}"
    size = f"{progress.size[2]} of {progress.original[2]} calls"
    rate = f"{progress.calls_per_s:.1f} per s"
    known = f" + {progress.replayed} known" if progress.replayed else ""
    return f"{size}, {progress.calls}{known} asked, {rate}, {verdict}"


def show(result: CaseReduction, *, err: bool = False) -> None:
    """Print what came of a reduction, the verdict in the last five lines; `err`: on stderr."""
    for line in _lines(result):
        echo(f"graphprobe: {line}" if err else line, err=err)


def _lines(result: CaseReduction) -> Iterator[str]:
    reduction = result.reduction
    asked = f"{reduction.calls} candidates in {reduction.seconds:.0f} s"
    if not reduction.failed:
        last = reduction.answers[-1].detail if reduction.answers else reduction.stopped
        yield from f"last answer: {last}".splitlines() if last else ()
        undecided = _exit_code(result) == EXIT_UNDECIDED
        words = (
            "UNDECIDED: whether the case fails could not be told"
            if undecided
            else "NOT REDUCED: the case does not fail"
        )
        yield f"{words} ({asked})"
        yield f"  next: {command_line(['graphprobe', 'doctor'])}"
        return
    if result.unproven:
        yield f"no proof: {result.unproven}"
    ended = "" if reduction.minimal else f"; it may get smaller: {reduction.stopped}"
    calls = "1 call" if result.before == 1 else f"{result.before} calls"
    yield f"REDUCED: {calls} -> {result.after} ({asked}{ended})"
    flaky = f", in {reduction.rate:.0%} of the repeats" if reduction.rate is not None else ""
    yield f"  failure: {result.signature}{flaky}"
    if result.finding is not None:
        ops = [result.finding.op] if result.finding.op else result.finding.also
        yield f"  ops:     {', '.join(str(op) for op in ops) or 'see graph.txt'}"
        folder = shlex.quote(os.path.relpath(str(result.finding.dossier)))
        yield f"  case:    {folder}" if result.unproven else f"  proof:   python {folder}/repro.py"
    case = str(result.folder) if result.finding is None else str(result.finding.dossier)
    yield f"  next:    {command_line(['graphprobe', 'issue', os.path.relpath(case)])}"


def _document(result: CaseReduction) -> dict[str, Any]:
    reduction = result.reduction
    return {
        "failed": reduction.failed,
        "signature": reduction.signature,
        "minimal": reduction.minimal,
        "stopped": reduction.stopped,
        "before": result.before,
        "after": result.after,
        "rate": reduction.rate,
        "asked": reduction.calls,
        "replayed": reduction.replayed,
        "seconds": round(reduction.seconds, 3),
        "folder": str(result.folder),
        "repro": result.finding.dossier if result.finding is not None else None,
        "repro_exit": result.repro_exit,
        "problems": result.problems,
        "unproven": result.unproven or None,
        "other_failures": reduction.others,
        "passes": reduction.passes,
    }


def _exit_code(result: CaseReduction) -> int:
    reduction = result.reduction
    if reduction.failed:
        return EXIT_UNDECIDED if result.unproven else EXIT_FOUND
    undecided = not reduction.answers or any(answer.verdict.value == "unresolved" for answer in reduction.answers)
    return EXIT_UNDECIDED if undecided or reduction.stopped else EXIT_OK
