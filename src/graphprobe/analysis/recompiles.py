"""Groups recompilations by cause, says each cause in words, and what to do about it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from graphprobe.analysis.breaks_text import RESUMED
from graphprobe.analysis.recompile_facts import (
    CodeLine,
    FailedGuard,
    ReadGuard,
    Recompile,
    check_from_text,
    readable,
    root_name,
)
from graphprobe.analysis.recompile_rules import RULES
from graphprobe.store import layout
from graphprobe.store.files import read_file
from graphprobe.store.reader import Run
from graphprobe.store.schema import lines_of

Aspect = tuple[str, str, int | None]
Read = tuple[FailedGuard, ReadGuard]

SHARED = "shared-code"
MODES = frozenset(
    {"grad-mode-changed", "autocast-changed", "global-state-changed", "function-mode-changed", "backend-changed"}
)
"""Kinds that are about the process, or the backend, and not about the call."""

ACCUMULATED = "accumulated_recompile_limit"
ANY = "any"
_MADE_DYNAMIC = frozenset({"size-changed", "int-changed", "float-changed"})

_SIZES = frozenset({"size-changed", "size-condition", "size-bounds"})

_OF_A_VARIABLE = frozenset(
    "int-changed float-changed bool-changed string-changed constant-changed none-changed type-changed function-changed "
    "object-changed value-condition".split()
)

_OF_AN_INSTANCE = frozenset({*_OF_A_VARIABLE, "attribute-changed", "length-changed", "keys-changed"})

RECOMPILES_SCHEMA = 1
MAX_CALLERS = 5
"""Calling lines that a group keeps."""

TAP = "recompiles"
_NUMBER = re.compile(r"-?[\d.]+(?:e[+-]?\d+)?")


class Versions(msgspec.Struct):
    """What the compiled versions of one function were made for, by compile id and by what was looked at."""

    values: dict[str, dict[Aspect, str]] = {}
    dynamic: set[Aspect] = set()
    """What has changed once, so that torch makes later versions for any value of it."""

    def add(self, fact: Recompile, checks: Sequence[ReadGuard]) -> None:
        """The version that is compiled for this call."""
        if fact.compile_id is None or fact.limit_hit is not None:
            return
        if fact.dynamic is not False and fact.automatic_dynamic:
            self.dynamic |= {_aspect(check) for check in checks if check.kind in _MADE_DYNAMIC and not check.parameter}
        made_for = {_aspect(check): check.actual for check in checks if check.actual is not None}
        self.values[fact.compile_id] = made_for | dict.fromkeys(self.dynamic, ANY)


class Cause(msgspec.Struct, frozen=True):
    """Why one recompilation took place.

    Attributes:
        kind: slug; more precise than the check's, with what is known of the function.
        check: the guard, read.
        guard: as it was noted; None when torch gave none.
    """

    kind: str
    check: ReadGuard
    guard: FailedGuard | None


def causes_of(fact: Recompile, versions: Versions) -> list[Cause]:
    """The causes of one recompilation; `versions` is that of its function, and is brought up to date.

    Every version that there is failed at a guard of its own. Those count that are nearest to the call: made in the same
    mode, for the same class, for the same object. Of them, what one was made for is no cause: if one fails at the dtype
    and another at the size, and the dtype is that of the second, then the size is what is new. Where nothing is new but
    the values together, the version that was used last decides.
    """
    read = [(guard, _learnt(_completed(check_from_text(guard.text), guard), guard, versions)) for guard in fact.guards]
    if not read:
        return [Cause("unexplained", ReadGuard("unexplained"), None)]
    nearest = _nearest(read, fact)
    fresh = [(guard, check) for guard, check in nearest if _is_new(check, nearest, versions)]
    versions.add(fact, [check for _, check in read])
    causes: dict[tuple[str, int | None], Cause] = {}
    for guard, check in _settled(fresh or nearest[:1], fact):
        cause = _cause(guard, check, fact)
        causes.setdefault((cause.check.source or cause.kind, cause.check.dim), cause)
    return list(causes.values())


def _nearest(read: Sequence[Read], fact: Recompile) -> list[Read]:
    """The guards of the versions that differ the least from what is called now."""
    ranks = [
        (check.kind == "backend-changed", check.kind in MODES, _is_other(guard, fact), guard.same_owner is False)
        for guard, check in read
    ]
    least = [pair for pair, rank in zip(read, ranks, strict=True) if rank == min(ranks)]
    states = [_states(check) for _, check in least]
    return [pair for pair, state in zip(least, states, strict=True) if not any(other < state for other in states)]


def _is_other(guard: FailedGuard, fact: Recompile) -> bool:
    """Whether the version was made for another class, or for another function behind the same decorator."""
    return None not in (guard.owner, fact.owner) and guard.owner != fact.owner


def _states(check: ReadGuard) -> frozenset[str]:
    return frozenset((check.condition or check.kind).split()) if check.kind in MODES else frozenset()


def _aspect(check: ReadGuard) -> Aspect:
    return check.kind, check.source, check.dim


def _is_new(check: ReadGuard, nearest: Sequence[Read], versions: Versions) -> bool:
    made_for = [versions.values.get(guard.entry, {}).get(_aspect(check)) for guard, _ in nearest]
    if check.actual is None:
        return True
    same = {check.actual} if check.actual in ("0", "1") else {check.actual, ANY}
    if check.kind == "keys-changed":
        count = len(check.actual.split(", "))
        same.add("1 key" if count == 1 else f"{count} keys")  # as of a dict of which no more is known
    return same.isdisjoint(made_for)


def _learnt(check: ReadGuard, guard: FailedGuard, versions: Versions) -> ReadGuard:
    """Keep what the guard tells of its version; of keys, what is known already says more than their number."""
    if check.expected is None:
        return check
    values = versions.values.setdefault(guard.entry, {})
    known = values.setdefault(_aspect(check), check.expected)
    if check.kind == "keys-changed" and re.fullmatch(r"\d+ keys?", check.expected):
        return msgspec.structs.replace(check, expected=known)
    values[_aspect(check)] = check.expected
    return check


def _completed(check: ReadGuard, guard: FailedGuard) -> ReadGuard:
    """With the value that came, where torch does not say it; of keys, all those that the guard tells about."""
    if check.kind == "keys-changed" and check.dim is not None and check.expected is not None:
        # A guard on the keys comes behind the one on their number, and those before it were the same.
        came = guard.actual.split(", ") if guard.actual is not None else []
        more = ["…"] * (len(came) > check.dim + 1)
        expected = ", ".join([*came[: check.dim], check.expected, *more])
        return msgspec.structs.replace(check, dim=None, expected=expected, actual=guard.actual)
    if check.actual is not None or guard.actual is None:
        return check
    return msgspec.structs.replace(check, actual=guard.actual)


def _settled(read: Sequence[Read], fact: Recompile) -> list[Read]:
    """One guard for each size: what the code asks of it counts more than that another version has it as a number."""
    sized: dict[tuple[str, int | None], list[Read]] = {}
    for guard, check in read:
        if check.kind in _SIZES:
            sized.setdefault((check.source, check.dim), []).append((guard, check))
    settled = {key: _settled_size(checks, fact) for key, checks in sized.items()}
    return [settled[check.source, check.dim] if check.kind in _SIZES else (guard, check) for guard, check in read]


def _settled_size(read: Sequence[Read], fact: Recompile) -> Read:
    """torch makes versions for 0 and 1 alone, of a size that is dynamic else."""
    sizes = [check.actual for _, check in read if check.actual is not None and check.actual.isdecimal()]
    size = sizes[0] if sizes else None
    special = fact.dynamic or (fact.dynamic is None and fact.automatic_dynamic)
    asked = next((pair for pair in read if pair[1].kind != "size-changed"), None)
    guard, check = asked or read[0]
    if check.kind == "size-bounds":
        check = msgspec.structs.replace(check, kind="size-condition", actual=size)
    if not special or check.parameter:
        return guard, check
    made_for = [value for _, check in read if (value := check.expected) is not None]
    small = [value for value in (*made_for, size) if value in ("0", "1")]
    if size in ("0", "1") or (asked is None and small and len(small) == len(made_for)):
        first, last = (small[0], small[-1]) if len(set(small)) > 1 else (None, small[-1])
        check = msgspec.structs.replace(check, kind="size-zero-one", expected=first, actual=last)
    return guard, check


def _cause(guard: FailedGuard, check: ReadGuard, fact: Recompile) -> Cause:
    if _is_other(guard, fact):
        check = ReadGuard(SHARED, expected=guard.owner, actual=fact.owner)
    if check.kind == "alias-changed" and guard.actual not in (None, "Tensor"):
        # Two objects that are no tensors: the first is compared with the second by identity.
        check = ReadGuard("object-changed", check.source.partition(" and ")[0], actual=guard.actual)
    return Cause(_kind(check, guard, fact), check, guard)


def _kind(check: ReadGuard, guard: FailedGuard, fact: Recompile) -> str:
    root = root_name(check.source)
    if check.kind in _OF_A_VARIABLE and check.source.startswith("G["):
        return "global-changed"
    other = fact.other_instance if guard.same_owner is None else not guard.same_owner
    around = root in fact.free_variables
    part = check.source.startswith((f"{fact.first_argument}.", f"{root}." if around else f"{fact.first_argument}."))
    if other and part and check.kind in _OF_AN_INSTANCE:
        return "instance-changed"
    return "closure-changed" if around and check.kind in _OF_A_VARIABLE else check.kind


def short_name(owner: str) -> str:
    """Classes and functions without their modules: `T5Model` of `transformers.models.t5.T5Model`."""
    return re.sub(r"(?:\w+\.)+(?:<locals>\.)?(?=[\w<])", "", owner)


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

    schema: int = RECOMPILES_SCHEMA
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
    limits: dict[tuple[object, ...], Group] = {}
    for fact in facts:
        if fact.limit_hit is not None:
            limits.setdefault((*_function_key(fact), fact.limit_hit), _group([(fact, _limit(fact))]))
        for key, cause in keyed_causes(fact, versions):
            grouped.setdefault(key, []).append((fact, cause))
    groups = sorted((_group(members) for members in grouped.values()), key=lambda group: -group.count)
    functions = _functions(facts)
    return RecompileReport(
        guard_failures=len(facts),
        recompilations=sum(function.recompilations for function in functions),
        allowed=allowed,
        functions=functions,
        groups=[*limits.values(), *groups],
        complete=complete,
        notes=list(notes),
    )


def keyed_causes(fact: Recompile, versions: dict[object, Versions]) -> Iterator[tuple[tuple[object, ...], Cause]]:
    """The causes of a recompilation, each with what it is grouped by; `versions`: of those before it."""
    code = fact.compile_id.partition("/")[0] if fact.compile_id is not None else _function_key(fact)
    for cause in causes_of(fact, versions.setdefault(code, Versions())):
        yield (*_function_key(fact), cause.kind, cause.check.source, cause.check.dim), cause


def new_causes(fact: Recompile, versions: dict[object, Versions], known: set[tuple[object, ...]]) -> list[Group]:
    """The causes that no earlier recompilation had; `versions` and `known` are of those before it, and are added to."""
    found = {key: cause for key, cause in keyed_causes(fact, versions) if key not in known}
    known.update(found)
    return [_group([(fact, cause)]) for cause in found.values()]


def function_name(function: str) -> str:
    """The function's name; of the rest behind a graph break, with the line of the break."""
    found = RESUMED.match(function)
    return function if found is None else f"{found[1]} (behind the graph break at line {found[2]})"


def _function_key(fact: Recompile) -> tuple[str, int, str]:
    return fact.file, fact.line, fact.function


def _group(members: list[tuple[Recompile, Cause]]) -> Group:
    fact, first = members[0]
    seen = (value for _, cause in members for value in (cause.check.expected, cause.check.actual))
    values = _ordered(value for value in seen if value is not None)
    name = readable(first.check.source)
    place = next((cause.guard for _, cause in members if cause.guard is not None and cause.guard.where), None)
    where = None if place is None else place.where
    cause, remedies = RULES[first.kind].told(_names(fact, first, name, values, where), _true(fact, members, values))
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
        cause=cause,
        remedies=remedies,
        count=len(members),
        compile_ids=[member.compile_id for member, _ in members if member.compile_id is not None],
        callers=list(dict.fromkeys(member.caller for member, _ in members if member.caller is not None))[:MAX_CALLERS],
        torch_says="" if first.guard is None else first.guard.text,
    )


def _names(fact: Recompile, cause: Cause, name: str, values: list[str], where: CodeLine | None) -> dict[str, str]:
    """What the sentences of a rule may name."""
    seen = ("; " if cause.kind == "keys-changed" else ", ").join(values)
    owner, _, attribute = name.rpartition(".")
    function = function_name(fact.function)
    return {
        "name": name or "it",
        "dim": str(cause.check.dim),
        "values": seen,
        "first": values[0] if values else name,
        "seen": str(len(values)),
        "either": " or ".join(values) or "0 or 1",
        "which": f": {seen}" if seen else "",
        "condition": re.sub(r"\s+", " ", cause.check.condition or ""),
        "owner": owner or "self",
        "attribute": attribute,
        "classes": ", ".join(map(short_name, values)),
        "of_limit": "" if fact.limit is None else f" of {fact.limit}",
        "versions": str(fact.all_versions if name == ACCUMULATED else fact.versions),
        "where": function if where is None else f"line {where.line} of {os.path.basename(where.file)}",
        "function": function,
    }


def _true(fact: Recompile, members: list[tuple[Recompile, Cause]], values: list[str]) -> set[str]:
    """What is true of the group, as far as remedies depend on it."""
    checks = [cause.check for _, cause in members]
    several = len({check.expected for check in checks}) > 1
    facts = {
        "parameter": any(check.parameter for check in checks),
        "specialized": several and fact.automatic_dynamic and fact.dynamic is not False,
        "static": fact.dynamic is False,
        "numbers": bool(values) and all(_NUMBER.fullmatch(value) for value in values),
        "static int": any(check.static_module_int for check in checks),
        "absent": "absent" in values,
    }
    return {name for name, holds in facts.items() if holds}


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


def _limit(fact: Recompile) -> Cause:
    """The limit that the call ran into."""
    limit = fact.accumulated_limit if fact.limit_hit == ACCUMULATED else fact.limit
    check = ReadGuard("limit-reached", str(fact.limit_hit), actual=None if limit is None else str(limit))
    return Cause(check.kind, check, FailedGuard("", "", CodeLine(fact.file, fact.line, fact.function)))


def report_from_run(run: Run, *, allowed: int = 0) -> RecompileReport:
    """Group the recompilations that a run recorded; torch is not needed."""
    notes: list[str] = []
    facts = _recorded(run, notes)
    status = run.manifest.taps.get(TAP)
    if status is None:
        notes.append("recompilations were not recorded")
    elif status.startswith("missing"):
        notes.append(f"nothing of recompilations could be recorded: {status}")
    notes += [entry for entry in run.manifest.missing if layout.RECOMPILES in entry or "recompilation" in entry]
    complete = not notes
    if run.state in ("running", "killed"):
        notes.append(f"the run is {run.state}: what came until now is counted")
    return report_from_facts(facts, allowed=allowed, complete=complete, notes=notes)


def _recorded(run: Run, notes: list[str]) -> list[Recompile]:
    """The lines of the file that the event names; a line that was torn by a crash is told."""
    paths = {event.path for event in run.events() if event.name == TAP and event.kind == "log" and event.path}
    facts: list[Recompile] = []
    decoder = msgspec.json.Decoder(Recompile)
    for path in paths:
        try:
            data = read_file(run.tool_dir / path, below=run.tool_dir)
        except OSError as error:
            notes.append(f"{path} cannot be read: {error.strerror}")
            continue
        facts += [fact for _, _, fact in lines_of(data, decoder, tell=notes.append, name=path, noun="recompilation")]
    return facts
