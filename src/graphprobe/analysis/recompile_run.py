"""The recompilations of a run on disk."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from graphprobe.analysis.recompile_facts import CodeLine, FailedGuard, Recompile
from graphprobe.analysis.recompile_guards import check_from_text, tidy
from graphprobe.analysis.recompiles import RecompileReport, report_from_facts
from graphprobe.store import layout
from graphprobe.store.files import read_file
from graphprobe.store.reader import Model, Run
from graphprobe.store.schema import UNREADABLE

TAP = "recompiles"


def report_from_run(run: Run, *, allowed: int = 0) -> RecompileReport:
    """Group the recompilations that a run recorded; torch is not needed.

    A run of a graphprobe that did not record them is read from `compile.json`: one guard each, no values that torch
    does not name, and nothing of limits.
    """
    notes: list[str] = []
    complete = True
    status = run.manifest.taps.get(TAP)
    if status is None:
        notes.append("recorded before recompilations were: one guard of each is known, and limits are not")
        facts = [fact for model in run.models() if (fact := _fact_from_model(model)) is not None]
    else:
        facts = _recorded(run, notes)
        complete = not notes
        if status.startswith("missing"):
            complete = False
            notes.append(f"nothing of recompilations could be recorded: {status}")
    lost = [entry for entry in run.manifest.missing if layout.RECOMPILES in entry or "recompilation" in entry]
    if lost:
        complete = False
        notes += lost
    if run.state in ("running", "killed"):
        notes.append(f"the run is {run.state}: what came until now is counted")
    return report_from_facts(facts, allowed=allowed, complete=complete, notes=notes)


def _recorded(run: Run, notes: list[str]) -> list[Recompile]:
    """The lines of the file that the event names; a line that was torn by a crash is told."""
    paths = {event.path for event in run.events() if event.name == TAP and event.kind == "log" and event.path}
    facts: list[Recompile] = []
    for path in paths:
        try:
            lines = read_file(run.tool_dir / path, below=run.tool_dir).splitlines()
        except OSError as error:
            notes.append(f"{path} cannot be read: {error.strerror}")
            continue
        for number, line in enumerate(lines, 1):
            try:
                facts.append(msgspec.json.decode(line, type=Recompile))
            except UNREADABLE as error:
                notes.append(f"{path}, line {number} cannot be read: {error}")
    return facts


def _fact_from_model(model: Model) -> Recompile | None:
    compiled: dict[str, Any] = model.compile
    reason = compiled.get("recompile_reason")
    if not isinstance(reason, str) or compiled.get("restart_of") is not None:
        return None
    entry, _, rest = reason.partition(": ")
    text, _, stack = rest.partition("\nUser stack trace:\n")
    lines = re.findall(r'File "(.+?)", line (\d{1,9}), in (.+)', stack)
    where = CodeLine(lines[-1][0], int(lines[-1][1]), lines[-1][2]) if lines else None
    text = tidy(text)
    guard = FailedGuard(entry, text, where, "torch" if where else None, check_from_text(text).actual)
    number = str(compiled.get("compile_id")).rpartition("/")[2]
    return Recompile(
        function=str(compiled.get("function")),
        file=str(compiled.get("file")),
        line=int(compiled.get("line") or 0),
        guards=(guard,),
        compile_id=compiled.get("compile_id"),
        versions=int(number) if number.isdecimal() and len(number) < 10 else None,
    )
