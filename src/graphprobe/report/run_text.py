"""What commands say of a run: its summary, its recompilations, its logs, and the replay of a frame.

The verdict of a replay itself comes from the record's own `replay.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from graphprobe.analysis.recompile_facts import CodeLine
from graphprobe.analysis.recompiles import Function, Group, RecompileReport, function_name
from graphprobe.analysis.steps import LogRecord, StepReport, described
from graphprobe.report.document import counted
from graphprobe.report.terminal import print_closing
from graphprobe.settings import text_from_size
from graphprobe.store.frame_record import FrameRecord
from graphprobe.store.reader import Run
from graphprobe.store.step_file import StepRecord

VERDICTS = {"reproduced": "REPRODUCED", "gone": "GONE"}


def replay_lines(folder: str, record: FrameRecord, result: Mapping[str, Any]) -> list[str]:
    """What was recorded, what happened now, and the verdict.

    Args:
        result: `verdict`, `text`, `error`, `differences`, `caveats`, `seconds`, as `replay.py --json` writes them.
    """
    lines = [f"record    {folder}", f"frame     {record.function} ({_where_it_failed(record.file, record.line)})"]
    lines.append(f"recorded  {record.failure.type}: {_first_line(record.failure.message)}")
    user = record.user_line
    if user is not None:
        text = f": {user.text}" if user.text else ""
        lines.append(f"          {_where_it_failed(user.file, user.line)} in {user.function}{text}")
    error = result.get("error")
    if error is not None:
        lines.append(f"now       {error['type']}: {_first_line(error['message'])}")
        if error.get("line"):
            line = error["line"]
            lines.append(f"          {_where_it_failed(line['file'], line['line'])} in {line['function']}")
    lines += [f"different {line}" for line in result.get("differences", ())]
    lines += _caveats(result.get("caveats", ()), result.get("verdict") == "reproduced")
    seconds = result.get("seconds")
    took = f" ({seconds:.1f} s)" if isinstance(seconds, int | float) else ""
    lines.append(f"{VERDICTS.get(str(result.get('verdict')), 'CANNOT DECIDE')}: {result.get('text')}{took}")
    return lines


def _caveats(caveats: Sequence[str], reproduced: bool) -> list[str]:
    """All of them where they may explain something, else how many there are."""
    if reproduced and len(caveats) > 3:
        return [f"not recorded: {len(caveats)} values or settings, which did not matter"]
    return [f"not recorded: {line}" for line in caveats]


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _where_it_failed(file: str, line: int) -> str:
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return f"{file if relative.startswith('..') else relative}:{line}"


def step_lines(report: StepReport) -> Iterator[str]:
    """The conclusion in words."""
    ended = {"finished": "the program has finished", "failed": "the program was ended by an exception"}
    state = {"killed": "the process was killed or crashed", "running": "the process is running"} | ended
    if report.state is not None:
        yield f"{state[report.state]}; {report.steps} steps began"
    if report.open:
        yield f"last step begun and not ended: {described(report.open[-1])}"
        yield from _when(report, report.open[-1])
        for outer in reversed(report.open[:-1]):
            yield f"  inside: {described(outer)}"
        for other in report.elsewhere:
            yield f"  open in another thread: {described(other)}"
    elif report.failed is not None:
        yield f"last step that the exception left: {described(report.failed)}"
        yield f"  {report.failed.error}"
        yield from _when(report, report.failed)
    elif report.last is not None:
        yield "no step is open: every step that began has ended"
        yield f"  the last to end: {described(report.last)}"
        if report.state == "killed":
            yield "  so it was in code that is not watched: the program's own, or a compiled graph after its first call"
    yield from (f"note: {note}" for note in report.notes)


def print_end_of_steps(report: StepReport, follow: Sequence[str]) -> None:
    """Print the last lines: the step that did not end, if there is one, why, and the next command."""
    failed = None if report.open else report.failed
    if report.open:
        print_closing(f"OPEN: {described(report.open[-1])}", follow=follow, style="bold red")
    elif failed is not None:
        facts = [("error", failed.error or "")]
        print_closing(f"FAILED: {described(failed)}", facts, follow=follow, style="bold red")
    elif report.steps or report.state is not None:
        print_closing("ENDED: no step is open", follow=follow, style="bold green")
    else:
        print_closing("UNDECIDED: the text has no step of the compiler", follow=follow, style="bold yellow")


def log_lines(records: Iterable[LogRecord]) -> Iterator[str]:
    """The records as they stand in the file, line by line."""
    for record in records:
        yield from record.raw.split("\n")


def document(report: StepReport, records: Iterable[LogRecord], *, source: str, component: str | None) -> dict[str, Any]:
    """The same as JSON: times in nanoseconds since the epoch (of torch's format, only differences mean something)."""
    return {
        "source": source,
        "state": report.state,
        "open": [_step(report, step) for step in report.open],
        "elsewhere": [_step(report, step) for step in report.elsewhere],
        "failed": None if report.failed is None else _step(report, report.failed),
        "last_ended": None if report.last is None else _step(report, report.last),
        "steps": report.steps,
        "end_ns": report.end_ns,
        "end_is": report.end_is,
        "notes": report.notes,
        "component": component,
        "lines": [msgspec.to_builtins(record) for record in records],
    }


def _step(report: StepReport, step: StepRecord) -> dict[str, Any]:
    return {**msgspec.to_builtins(step), "text": described(step), "before_end_s": report.before_end_s(step)}


def _when(report: StepReport, step: StepRecord) -> Iterator[str]:
    before = report.before_end_s(step)
    if before is None:
        return
    what = {"now": f"begun {before:.1f} s ago", "end": f"begun {before:.1f} s before the end of the program"}
    yield "  " + what.get(report.end_is, f"begun {before:.1f} s before the {report.end_is}")


def recompile_lines(report: RecompileReport, *, base: Path | None = None) -> list[str]:
    """The report line by line; files below `base` (default: the working directory) are named from there."""
    base = Path.cwd() if base is None else base
    if not report.functions:
        lines = ["no recompilations"]
    else:
        lines = [_counts(report)]
        if report.allowed:
            lines.append(f"allowed: {report.allowed} of each function; {'exceeded' if report.unwanted else 'kept'}")
    for function in report.functions:
        lines += ["", _function_line(function, base)]
        for group in report.groups:
            if (group.file, group.line, group.function) == (function.file, function.line, function.function):
                lines += _group_lines(group, base)
    if report.notes or not report.complete:
        lines.append("")
        lines += [f"note: {note}" for note in report.notes]
    if not report.complete:
        lines.append("incomplete: there may be more recompilations than are listed")
    return lines


def _counts(report: RecompileReport) -> str:
    recompilations, functions = report.recompilations, len(report.functions)
    return (
        f"{counted(recompilations, 'recompilation')} of {counted(functions, 'function')}, "
        f"{counted(len(report.groups), 'cause')}"
    )


def print_end_of_recompiles(report: RecompileReport, target: Sequence[str], *, problem: str | None, run: bool) -> None:
    """Print the last lines: the verdict, the first cause with its remedy, and the next command.

    Args:
        target: the program, or the run, as it was typed.
        problem: what the program failed with.
        run: `target` is a run.
    """
    follow = ["graphprobe", "report" if run else "recompiles", *target]
    causes = [group for group in report.groups if group.kind != "limit-reached"]  # which is what comes of the others
    first = next(iter(causes or report.groups), None)
    facts = [] if first is None else [("first", group_line(first))]
    facts += [] if first is None else [("remedy", remedy) for remedy in first.remedies[:1]]
    if report.unwanted:
        once = "" if run else "remove the first cause"
        print_closing(f"RECOMPILES: {_counts(report)}", facts, follow=follow, once=once, style="bold red")
        return
    if problem is not None or not report.complete:
        why = problem or "there may be more recompilations than are listed"
        follow = ["graphprobe", "logs" if run else "run", *target]
        print_closing(f"UNDECIDED: {why}", facts, follow=follow, style="bold yellow")
        return
    verdict = f"ALLOWED: {_counts(report)}" if report.functions else "STEADY: nothing was compiled again"
    follow = ["graphprobe", "explain" if run else "profile", *target]
    print_closing(verdict, facts, follow=follow, style="bold green")


def _function_line(function: Function, base: Path) -> str:
    versions = "" if function.versions is None else f", {counted(function.versions, 'version')}"
    limit = "" if function.limit is None or function.versions is None else f" of at most {function.limit}"
    place = _place(CodeLine(function.file, function.line), base)
    text = counted(function.recompilations, "recompilation")
    shared = f", shared by {', '.join(function.owners)}" if function.owners else ""
    return f"{function_name(function.function)} ({place}): {text}{versions}{limit}{shared}"


def group_line(group: Group) -> str:
    """A cause in one line."""
    return f"{group.kind} in {function_name(group.function)}: {group.cause}"


def _group_lines(group: Group, base: Path) -> list[str]:
    lines = [f"  {group.kind} ×{group.count}: {group.cause}"]
    if group.where is not None and group.kind != "limit-reached":
        lines.append(
            f"    {'first used' if group.where_from == 'first use' else 'guard'} at {_place(group.where, base)}"
        )
    lines += [f"    called from {_place(caller, base)}" for caller in group.callers]
    lines += [f"    {'        ' if number else 'remedy: '}{text}" for number, text in enumerate(group.remedies)]
    if group.kind in ("other", "unexplained") and group.torch_says:
        lines.append(f"    torch: {group.torch_says}")
    return lines


def _place(place: CodeLine, base: Path) -> str:
    file = place.file
    if os.path.isabs(file) and Path(file).is_relative_to(base):
        file = str(Path(file).relative_to(base))
    return f"{file}:{place.line}" + (f" in {place.function}" if place.function else "")


def summary_lines(run: Run, base: Path, *, eager: bool = False) -> list[str]:
    """Plain lines: what is missing or worth knowing, at the end how much was collected, and where (from `base`).

    `eager`: calls of a program that compiles nothing were dumped, which has been told.
    """
    manifest = run.manifest
    who = f"rank {manifest.rank}: " if manifest.world_size > 1 else ""
    if manifest.models == 0 and not manifest.missing:
        lines = [f"graphprobe: {who}nothing was compiled in this process, so nothing was collected"]
    else:
        plural = "" if manifest.models == 1 else "s"
        predicted = (
            f", {text_from_size(manifest.predicted_bytes)} predicted" if manifest.predicted_bytes is not None else ""
        )
        lines = [
            f"graphprobe: {who}{manifest.models} compiled graph{plural}, {manifest.collected_files} files, "
            f"{text_from_size(manifest.collected_bytes)}{predicted}"
        ]
    lines.append(f"graphprobe: in {os.path.relpath(run.run_dir, base)}")
    lines = [] if eager and not manifest.missing else lines
    before = [f"graphprobe: note: {note}" for note in manifest.notes]
    before += [f"graphprobe: missing: {entry}" for entry in manifest.missing]
    return before + lines
