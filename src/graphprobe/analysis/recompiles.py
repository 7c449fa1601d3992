"""Recompilations, grouped by what caused them, with what to do about each group.

The recompilations of a run on disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from graphprobe.analysis.recompile_cause import Cause, Versions, causes_of, short_name
from graphprobe.analysis.recompile_facts import CodeLine, FailedGuard, Recompile, check_from_text, readable, tidy
from graphprobe.analysis.recompile_remedies import RemedyCase, remedies
from graphprobe.store import layout
from graphprobe.store.files import read_file
from graphprobe.store.reader import Model, Run
from graphprobe.store.schema import UNREADABLE

SCHEMA = 1
MAX_CALLERS = 5
"""Calling lines that a group keeps."""


class Group(msgspec.Struct, kw_only=True):
    """Guard failures of one function with one cause. A failure that has two causes counts in two groups.

    Attributes:
        kind: stable slug, see docs/recompiles.md.
        function, file, line: what was recompiled, and the line of its `def`.
        where: the program's line that made the guard necessary; None when unknown.
        where_from: `torch` or `first use`, see `FailedGuard`.
        name: what changed, as the program writes it; empty for the state of the process.
        dim: dimension of the tensor, for sizes and strides.
        values: those seen, in order.
        cause: one sentence.
        remedies: what to do, the best first.
        count: guard failures.
        compile_ids: of the compiles that followed.
        callers: lines that made the calls, the first ones.
        torch_says: the guard of the first failure, in torch's words.
    """

    kind: str
    function: str
    file: str
    line: int
    where: CodeLine | None = None
    where_from: str | None = None
    name: str = ""
    dim: int | None = None
    values: list[str] = []
    cause: str = ""
    remedies: list[str] = []
    count: int = 0
    compile_ids: list[str] = []
    callers: list[CodeLine] = []
    torch_says: str = ""


class Function(msgspec.Struct, kw_only=True):
    """One function that was recompiled.

    Attributes:
        recompilations: compiles after its first one.
        versions: compiled versions at the end.
        limit: how many torch allows.
        limit_hit: name of the limit that was reached; None otherwise.
        owners: the classes, or the functions behind one decorator, that share it; empty where it is one.
    """

    function: str
    file: str
    line: int
    recompilations: int = 0
    versions: int | None = None
    limit: int | None = None
    limit_hit: str | None = None
    owners: list[str] = []


class RecompileReport(msgspec.Struct, kw_only=True):
    """What a run recompiled, and why.

    Attributes:
        guard_failures: calls that no compiled version fitted.
        recompilations: those of them that were compiled anew; the others ran into a limit.
        allowed: recompilations of a function that are as wanted.
        functions: the most often recompiled first.
        groups: the largest first; limits that were reached come before all others.
        complete: False when recompilations may be missing; `notes` say why.
        notes: what could not be known.
    """

    schema: int = SCHEMA
    guard_failures: int = 0
    recompilations: int = 0
    allowed: int = 0
    functions: list[Function] = []
    groups: list[Group] = []
    complete: bool = True
    notes: list[str] = []

    @property
    def unwanted(self) -> bool:
        """Whether a function was recompiled more often than allowed, or reached a limit."""
        return any(f.limit_hit is not None or f.recompilations > self.allowed for f in self.functions)


def report_from_facts(
    facts: Iterable[Recompile], *, allowed: int = 0, complete: bool = True, notes: Sequence[str] = ()
) -> RecompileReport:
    """Group the recompilations of a run, given in the order in which they happened.

    Args:
        allowed: recompilations of a function that are as wanted; they are listed all the same.
        complete, notes: go into the report as they are.
    """
    facts = list(facts)
    versions: dict[object, Versions] = {}  # of each code, which models of several names may share
    grouped: dict[tuple[object, ...], list[tuple[Recompile, Cause]]] = {}
    for fact in facts:
        code = fact.compile_id.partition("/")[0] if fact.compile_id is not None else _function_key(fact)
        for cause in causes_of(fact, versions.setdefault(code, Versions())):
            key = (*_function_key(fact), cause.kind, cause.check.source, cause.check.dim)
            grouped.setdefault(key, []).append((fact, cause))
    groups = sorted((_group(members) for members in grouped.values()), key=lambda group: -group.count)
    functions = _functions(facts)
    limits = [_limit_group(fact) for fact in _first_limits(facts)]
    return RecompileReport(
        guard_failures=len(facts),
        recompilations=sum(function.recompilations for function in functions),
        allowed=allowed,
        functions=functions,
        groups=[*limits, *groups],
        complete=complete,
        notes=list(notes),
    )


def function_name(function: str) -> str:
    """The function's name; of the rest behind a graph break, with the line of the break."""
    found = re.match(r"torch_dynamo_resume_in_(.+)_at_(\d+)$", function)
    return function if found is None else f"{found[1]} (behind the graph break at line {found[2]})"


def _function_key(fact: Recompile) -> tuple[str, int, str]:
    return fact.file, fact.line, fact.function


def _group(members: list[tuple[Recompile, Cause]]) -> Group:
    fact, first = members[0]
    checks = [cause.check for _, cause in members]
    values = _ordered([value for _, cause in members for value in cause.values])
    name = readable(first.check.source)
    place = next((cause.guard for _, cause in members if cause.guard is not None and cause.guard.where), None)
    where = None if place is None else place.where
    expected = {cause.check.expected for _, cause in members}
    case = RemedyCase(
        name=name or "it",
        dim=first.check.dim,
        values=tuple(values),
        where="" if where is None else f"line {where.line} of {os.path.basename(where.file)}",
        function=function_name(fact.function),
        count=len(members),
        dynamic=fact.dynamic,
        automatic_dynamic=fact.automatic_dynamic,
        specialized=len(expected) > 1 and fact.automatic_dynamic and fact.dynamic is not False,
        parameter=any(check.parameter for check in checks),
        static_module_int=any(check.static_module_int for check in checks),
    )
    return Group(
        kind=first.kind,
        function=fact.function,
        file=fact.file,
        line=fact.line,
        where=where,
        where_from=None if place is None else place.where_from,
        name=name,
        dim=first.check.dim,
        values=values,
        cause=first.sentence(name, values, fact.limit),
        remedies=remedies(first.kind, case),
        count=len(members),
        compile_ids=[member.compile_id for member, _ in members if member.compile_id is not None],
        callers=list(dict.fromkeys(member.caller for member, _ in members if member.caller is not None))[:MAX_CALLERS],
        torch_says=fact.guards[0].text if first.guard is None and fact.guards else _text(first),
    )


def _text(cause: Cause) -> str:
    return "" if cause.guard is None else cause.guard.text


def _ordered(values: Iterable[str]) -> list[str]:
    """Without repeats; numbers by size, everything else as it came."""
    kept = list(dict.fromkeys(values))
    try:
        return sorted(kept, key=float)
    except ValueError:
        return kept


def _functions(facts: Sequence[Recompile]) -> list[Function]:
    found: dict[tuple[str, int, str], Function] = {}
    for fact in facts:
        function = found.setdefault(
            _function_key(fact), Function(function=fact.function, file=fact.file, line=fact.line)
        )
        function.limit = fact.limit
        shared = dict.fromkeys(name for name in (*(guard.owner for guard in fact.guards[::-1]), fact.owner) if name)
        if len(shared) > len(function.owners) and len(shared) > 1:
            function.owners = list(map(short_name, shared))
        if fact.limit_hit is not None:
            function.limit_hit = fact.limit_hit
            function.versions = fact.versions
            continue
        function.recompilations += 1
        function.versions = None if fact.versions is None else fact.versions + 1
    return sorted(found.values(), key=lambda function: -function.recompilations)


def _first_limits(facts: Sequence[Recompile]) -> list[Recompile]:
    firsts: dict[tuple[object, ...], Recompile] = {}
    for fact in facts:
        if fact.limit_hit is not None:
            firsts.setdefault((*_function_key(fact), fact.limit_hit), fact)
    return list(firsts.values())


def _limit_group(fact: Recompile) -> Group:
    accumulated = fact.limit_hit == "accumulated_recompile_limit"
    limit = fact.accumulated_limit if accumulated else fact.limit
    versions = fact.all_versions if accumulated else fact.versions
    name = function_name(fact.function)
    case = RemedyCase(
        name=name,
        function=name,
        count=versions or 0,
        dynamic=fact.dynamic,
        automatic_dynamic=fact.automatic_dynamic,
        limit=fact.limit_hit,
    )
    return Group(
        kind="limit-reached",
        function=fact.function,
        file=fact.file,
        line=fact.line,
        where=CodeLine(fact.file, fact.line, fact.function),
        name=str(fact.limit_hit),
        values=[] if limit is None else [str(limit)],
        cause=f"{name} has {versions} compiled versions, and torch._dynamo.config.{fact.limit_hit} is {limit}: "
        "calls that none of them fits run uncompiled from here on (with fullgraph=True they raise)",
        remedies=remedies("limit-reached", case),
        count=1,
        compile_ids=[] if fact.compile_id is None else [fact.compile_id],
        callers=[] if fact.caller is None else [fact.caller],
    )


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
