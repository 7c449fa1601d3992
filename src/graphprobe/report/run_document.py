"""A run in words and as JSON: its tree of files, its summary, the steps of the compiler, the replay of a frame.

The verdict of a replay itself comes from the record's own `replay.py`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from graphprobe.analysis.recompiles import function_name
from graphprobe.analysis.steps import LogRecord, StepReport, described
from graphprobe.records import Event
from graphprobe.report.document import counted
from graphprobe.report.terminal import Text, Tree, console_for, near, print_closing
from graphprobe.settings import text_from_size
from graphprobe.store.frame_record import FrameRecord
from graphprobe.store.layout import DUMPS, addresses_from_events
from graphprobe.store.reader import Model, Run
from graphprobe.store.step_file import StepRecord

VERDICTS = {"reproduced": "REPRODUCED", "gone": "GONE"}
STATE_STYLE = {"finished": "green", "running": "cyan", "failed": "red", "killed": "red"}

_CACHE_ENTRY = re.compile(r"\W*\d+/\d+: ")
"""How a reason for a recompilation begins: with the entry of the cache whose guard failed."""


def replay_lines(folder: str, record: FrameRecord, result: Mapping[str, Any]) -> list[str]:
    """What was recorded, what happened now, and the verdict.

    Args:
        result: `verdict`, `text`, `error`, `differences`, `caveats`, `seconds`, as `replay.py --json` writes them.
    """
    lines = [f"record    {folder}", f"frame     {record.function} ({near(f'{record.file}:{record.line}')})"]
    lines.append(f"recorded  {record.failure.type}: {_first_line(record.failure.message)}")
    user = record.user_line
    if user is not None:
        text = f": {user.text}" if user.text else ""
        lines.append(f"          {near(f'{user.file}:{user.line}')} in {user.function}{text}")
    error = result.get("error")
    if error is not None:
        lines.append(f"now       {error['type']}: {_first_line(error['message'])}")
        if error.get("line"):
            place = near("{file}:{line}".format_map(error["line"]))
            lines.append(f"          {place} in {error['line']['function']}")
    lines += [f"different {line}" for line in result.get("differences", ())]
    caveats = result.get("caveats", ())
    if result.get("verdict") == "reproduced" and len(caveats) > 3:
        caveats = [f"{len(caveats)} values or settings, which did not matter"]
    lines += [f"not recorded: {line}" for line in caveats]
    seconds = result.get("seconds")
    took = f" ({seconds:.1f} s)" if isinstance(seconds, int | float) else ""
    lines.append(f"{VERDICTS.get(str(result.get('verdict')), 'CANNOT DECIDE')}: {result.get('text')}{took}")
    return lines


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


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


def summary_lines(run: Run, base: Path, *, eager: bool = False) -> list[str]:
    """Plain lines: what is missing or worth knowing, at the end how much was collected, and where (from `base`).

    `eager`: calls of a program that compiles nothing were dumped, which has been told.
    """
    manifest = run.manifest
    who = f"rank {manifest.rank}: " if manifest.world_size > 1 else ""
    if manifest.models == 0 and not manifest.missing:
        what = "nothing was compiled in this process, so nothing was collected"
    else:
        predicted = manifest.predicted_bytes
        what = (
            f"{counted(manifest.models, 'compiled graph')}, {manifest.collected_files} files, "
            f"{text_from_size(manifest.collected_bytes)}"
            f"{'' if predicted is None else f', {text_from_size(predicted)} predicted'}"
        )
    lines = [f"note: {note}" for note in manifest.notes] + [f"missing: {entry}" for entry in manifest.missing]
    if not eager or manifest.missing:
        lines += [f"{who}{what}", f"in {os.path.relpath(run.run_dir, base)}"]
    return [f"graphprobe: {line}" for line in lines]


def print_run(run: Run, *, show_all: bool = False, file: IO[str] | None = None) -> None:
    """Print the run as a tree: header, what is missing, then models, directions and files.

    `show_all` also lists the passes that changed nothing.
    """
    tree = Tree(_header(run), guide_style="dim")
    models = run.models()
    for model in models:
        branch = tree.add(_model_title(model))
        for line in _compile_lines(model):
            branch.add(Text(line, "dim"))
        # Addresses are told apart over the whole model, as `find` does.
        addresses = {event.seq: address for address, event in addresses_from_events(model.events).items()}
        for event in model.events:
            if event.where.direction is None and event.path is not None:
                branch.add(_event_line(run, event, addresses))
        for graph, events in model.graphs().items():
            shown = [event for event in events if show_all or _is_shown(event)]
            twig = branch.add(Text(graph, "bold"))
            listed: set[str | None] = {None}
            for event in shown:
                twig.add(_event_line(run, event, addresses, again=event.path in listed and event.path is not None))
                listed.add(event.path)
            hidden = len(events) - len(shown)
            if hidden:
                twig.add(Text(f"{counted(hidden, 'pass', 'passes')} changed nothing (--all lists them)", "dim"))
    addresses = {event.seq: address for address, event in run.artifacts().items()}
    for event in run.events():
        if event.where.model is None:
            tree.add(_event_line(run, event, addresses))
    for name, what in DUMPS.items():
        if (run.run_dir / name).is_dir():
            tree.add(Text.assemble(name, (f"  a dump of {what}", "dim")))
    if not models:
        tree.add(Text("no graph was collected", "yellow"))
    for problem in run.problems:
        tree.add(Text(f"problem: {problem}", "yellow"))
    console_for(file).print(tree)


def json_from_run(run: Run, *, show_all: bool) -> dict[str, Any]:
    """What `print_run` shows, as plain data."""
    addresses = {event.seq: address for address, event in run.artifacts().items()}
    return {
        "run": str(run.run_dir),
        "state": run.state,
        "manifest": {"schema": run.manifest.schema} | msgspec.to_builtins(run.manifest),
        "models": [
            {
                "model": model.number,
                "compile_id": model.compile_id,
                "compile": model.compile,
                "events": [
                    {"address": addresses.get(event.seq)} | msgspec.to_builtins(event)
                    for event in model.events
                    if show_all or _is_shown(event)
                ],
            }
            for model in run.models()
        ],
        "events": [msgspec.to_builtins(event) for event in run.events() if event.where.model is None],
        "problems": run.problems,
    }


def _header(run: Run) -> Text:
    manifest, state = run.manifest, run.state
    rank = f", rank {manifest.rank} of {manifest.world_size}" if manifest.world_size > 1 else ""
    text = Text()
    text.append(run.run_dir.name, "bold")
    text.append_line(f"torch {manifest.torch or 'not imported'}, Python {manifest.python}{rank}, ")
    text.append(state, STATE_STYLE.get(state, ""))
    if state == "killed":
        text.append(f" (process {manifest.pid} is gone and did not close the run)")
    if manifest.ended_ns is not None:
        text.append(f" after {(manifest.ended_ns - manifest.started_ns) / 1e9:.1f} s")
    files, size_bytes = manifest.collected_files, manifest.collected_bytes
    if manifest.state == "running":
        # The counts of a run that was not closed are stale; the events are fresher.
        artifacts = run.artifacts().values()
        files, size_bytes = len(artifacts), sum(run.size_bytes(event) or 0 for event in artifacts)
    text.append_line(f"{shlex.join(manifest.argv)}")
    text.append_line(f"{files} files, {text_from_size(size_bytes)}")
    if manifest.exception:
        text.append_line(f"ended by: {manifest.exception}", "red")
    for entry in manifest.missing:
        text.append_line(f"missing: {entry}", "yellow")
    for note in manifest.notes:
        text.append_line(f"note: {note}", "dim")
    return text


def _model_title(model: Model) -> Text:
    text = Text(f"model__{model.number}", "bold")
    place = ":".join(str(model.compile[key]) for key in ("file", "line") if model.compile.get(key) is not None)
    if model.compile.get("function"):
        text.append(f"  {function_name(str(model.compile['function']))}", "cyan")
    if place:
        text.append(f"  {place}", "dim")
    if model.compile_id is not None:
        text.append(f"  compile {model.compile_id}", "dim")
    if model.compile.get("mode"):
        text.append(f"  mode {model.compile['mode']}", "dim")
    return text


def _compile_lines(model: Model) -> list[str]:
    labels = {"reason": "compiled", "recompile_reason": "recompiled", "graph_break": "graph break"}
    if model.compile.get("recompile_reason"):
        del labels["reason"]
    return [f"{label}: {_one_line(model.compile[key])}" for key, label in labels.items() if model.compile.get(key)]


def _one_line(fact: Any) -> str:
    """A reason as one line; that of a graph break with the place where it broke. `compile.json` has it whole."""
    if not isinstance(fact, dict):
        lines = str(fact).splitlines()
        # A guard of each; the rest is where it came from.
        entries = [line for line in lines if _CACHE_ENTRY.match(line)]
        return "; ".join(" ".join(line.split()) for line in entries or lines[:1])
    first = str(fact.get("reason", "")).partition("\n")[0]
    stack = fact.get("user_stack") or []
    return f"{first}, at {stack[-1]}" if stack else first


def _is_shown(event: Event) -> bool:
    return event.kind != "pass" or event.changed is not False


def _event_line(run: Run, event: Event, addresses: dict[int, str], *, again: bool = False) -> Text:
    """One event; `again` for one whose file stands in a line above: a pass around the one that made the change."""
    failed, idle = event.kind == "failure", event.kind == "pass" and event.changed is False
    text = Text(style="red" if failed else "dim" if idle else "")
    if event.seq in addresses and not again:
        text.append(addresses[event.seq], "" if failed or idle else "blue")
    elif event.path is not None and again:
        text.append(f"the same file, after {event.where.pass_name or event.name}, which holds the pass above")
    elif event.path is not None:
        text.append(event.path)
    else:
        text.append(f"{event.kind} {event.where.pass_name or event.name}")
        if not idle and event.kind not in ("note", "failure"):
            text.append("  (not written)", "yellow")
    size_bytes = run.size_bytes(event) if event.path is not None and not again else None
    if size_bytes is not None:
        text.append(f"  {text_from_size(size_bytes)}", "dim")
    if event.kind == "pass":
        text.append(f"  +{len(event.added)} −{len(event.removed)} nodes" if not idle else "  unchanged", "cyan")
    if event.elapsed_ns is not None:
        text.append(f"  {event.elapsed_ns / 1e6:.1f} ms", "dim")
    if event.where.subgraph:
        text.append(f"  in {event.where.subgraph}", "dim")
    if event.message:
        text.append("  " + event.message.strip().splitlines()[-1])
    if event.path is not None:
        text.append("  " + event.path.rsplit("/", 1)[-1], "dim")
    return text
