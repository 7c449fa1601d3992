"""`graphprobe reduce`: the smallest case that still fails in the same way."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, UsageError

if TYPE_CHECKING:
    from graphprobe.diagnose.case import Case
    from graphprobe.diagnose.reduction.reduce_case import CaseReduction
    from graphprobe.reduce.progress import Progress

GIGABYTE = 1024**3


@click.command(name="reduce", short_help="Make a failing case as small as it gets.")
@click.option("-o", "--out", "out_dir", metavar="DIR", help="Folder for the reduction. Default: CASE-reduced.")
@click.option(
    "--check",
    metavar="CMD",
    help="Ask this command: it runs in a folder with the repro; exit code 0 passes, 125 is unresolved, else fails.",
)
@click.option("--fail-regex", metavar="RE", help="Only a failure whose text matches is the one looked for.")
@click.option(
    "--timeout", "timeout_s", type=float, metavar="SECONDS", default=300.0, show_default=True, help="For one candidate."
)
@click.option(
    "--memory", "memory_gb", type=float, metavar="GB", help="For one candidate. Default: 3/4 of what is free."
)
@click.option("--budget", "budget_s", type=float, metavar="SECONDS", help="End after this with what was found.")
@click.option("--max-calls", type=click.IntRange(min=1), metavar="N", help="End after N candidates were asked.")
@click.option("--import", "modules", metavar="MODULE", multiple=True, help="Import first: it registers operators.")
@click.option("--hint", "hints", metavar="NODE", multiple=True, help="Name of a node that is suspected.")
@click.option("--resume", is_flag=True, help="Go on with the reduction in the folder.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of some tries.")
@click.option("--json", "json_path", metavar="FILE", help="Also write the result to FILE, which must not exist yet.")
@click.argument("case", metavar="CASE")
@click.pass_context
def command(
    ctx: click.Context,
    out_dir: str | None,
    check: str | None,
    fail_regex: str | None,
    timeout_s: float,
    memory_gb: float | None,
    budget_s: float | None,
    max_calls: int | None,
    modules: tuple[str, ...],
    hints: tuple[str, ...],
    resume: bool,
    seed: int,
    json_path: str | None,
    case: str,
) -> None:
    """Cut a failing graph down to what still fails in the same way, and write a repro of it.

    CASE is a dossier that graphprobe diagnose wrote, a graph of a run as Python, or the folder of a reduction. The
    repro is on disk from the first moment on, always of the smallest case so far; Ctrl-C ends with it, and --resume
    goes on.

    \b
    Examples:
      graphprobe reduce graphprobe-diagnosis/lowering-aten.relu.default
      graphprobe reduce -o small --check "python repro.py" --fail-regex "off by" CASE
      graphprobe reduce -o small --resume CASE

    Exit codes: 1 the case fails and was reduced, 0 it does not fail, 2 wrong usage, 125 undecided.
    """
    for name, value in (("--timeout", timeout_s), ("--memory", memory_gb), ("--budget", budget_s)):
        if value is not None and not value > 0:
            raise UsageError(f"{name} {value:g}: it takes a number above 0")
    if fail_regex is not None:
        _check_regex(fail_regex)
    result = _new_file(json_path)
    for module in modules:
        _import(module)
    source = _source(case)
    out = Path(out_dir).absolute() if out_dir is not None else _beside(case, resume=resume)
    from graphprobe.diagnose.reduction.reduce_case import reduce_case

    with _watched() as on_progress:
        reduction = reduce_case(
            source,
            out,
            check=check,
            fail_regex=fail_regex,
            timeout_s=timeout_s,
            memory_bytes=None if memory_gb is None else int(memory_gb * GIGABYTE),
            budget_s=budget_s,
            max_calls=max_calls,
            resume=resume,
            seed=seed,
            hints=hints,
            on_progress=on_progress,
        )
    _show(reduction)
    if result is not None:
        from graphprobe.store.files import replace_file

        replace_file(result, (json.dumps(_document(reduction), indent=2, allow_nan=False) + "\n").encode())
    ctx.exit(_exit_code(reduction))


def _source(case: str) -> Case:
    path = Path(case)
    if path.suffix == ".py" and path.is_file() and "graphprobe" not in path.read_text("utf-8", "replace"):
        return _script(path)
    from graphprobe.diagnose.reduction.load_case import load_case

    return load_case(path)


def _script(path: Path) -> Case:
    """The first failing graph of a script."""
    raise UsageError(
        f"{path} is a script, and not a case", hint="graphprobe diagnose finds what fails in it, and writes a case."
    )


def _check_regex(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--fail-regex {pattern!r} is no regular expression: {error}") from error


def _new_file(path: str | None) -> Path | None:
    if path is None:
        return None
    file = Path(path).absolute()
    if not file.parent.is_dir():
        raise UsageError(f"--json {path}: there is no folder {file.parent}")
    if file.exists():
        raise UsageError(f"--json {path}: it exists already", hint="remove it, or name another file")
    return file


def _import(module: str) -> None:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(module)
    except Exception as error:
        raise UsageError(f"--import {module}: {type(error).__name__}: {error}") from error


def _beside(case: str, *, resume: bool) -> Path:
    """Where a reduction goes that was given no folder: where it was, on resume, else beside the case."""
    path = Path(case).absolute()
    if resume and (path / "reduction.json").is_file():
        return path
    return path.with_name(f"{path.stem if path.is_file() else path.name}-reduced")


@contextlib.contextmanager
def _watched() -> Iterator[Callable[[Progress], None]]:
    """Shows progress on a terminal: a line that is drawn anew, elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.status import Status

    with Status("graphprobe: is it failing, and how? …", console=Console(stderr=True)) as status:
        yield lambda p: status.update(_line(p))


def _line(progress: Progress) -> str:
    verdict = f"{progress.by}: {progress.verdict.value}"
    size = f"{progress.size[2]} of {progress.original[2]} calls"
    rate = f"{progress.calls_per_s:.1f} per s"
    known = f" + {progress.replayed} known" if progress.replayed else ""
    return f"graphprobe: {size}, {progress.calls}{known} asked, {progress.elapsed_s:.0f} s, {rate}, {verdict}"


def _show(result: CaseReduction) -> None:
    reduction = result.reduction
    asked = f"{reduction.calls} candidates in {reduction.seconds:.0f} s"
    if not reduction.failed:
        last = reduction.answers[-1].detail if reduction.answers else reduction.stopped
        click.echo(f"not reduced: the case does not fail ({asked}){f': {last}' if last else ''}")
        return
    ended = "" if reduction.minimal else f"; it may get smaller: {reduction.stopped}"
    click.echo(f"{result.before} calls -> {result.after} ({asked}{ended})")
    click.echo(f"failure: {result.signature}")
    if reduction.rate is not None:
        click.echo(f"flaky: it fails in {reduction.rate:.0%} of the repeats")
    if result.finding is not None:
        ops = [result.finding.op] if result.finding.op else result.finding.also
        click.echo(f"ops: {', '.join(str(op) for op in ops)}" if ops else "ops: see graph.txt")
        click.echo(f"repro: {os.path.relpath(str(result.finding.dossier))}/repro.py")
    for problem in result.problems:
        click.echo(f"the repro cannot be run elsewhere: {problem}")
    if result.repro_exit == EXIT_OK:
        click.echo("run by itself, the repro shows no fault: it needs something of this process that cannot be saved")
    elif result.repro_exit == EXIT_UNDECIDED:
        click.echo("run by itself, the repro cannot tell; if it needs operators of a program, give it --import MODULE")


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
        "other_failures": reduction.others,
        "passes": {
            name: {key: getattr(stats, key) for key in stats.__struct_fields__}
            for name, stats in reduction.passes.items()
        },
    }


def _exit_code(result: CaseReduction) -> int:
    reduction = result.reduction
    if reduction.failed:
        return EXIT_FOUND
    undecided = not reduction.answers or any(answer.verdict.value == "unresolved" for answer in reduction.answers)
    return EXIT_UNDECIDED if undecided or reduction.stopped else EXIT_OK
