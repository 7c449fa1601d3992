"""Graph breaks of a program, judged: kind, cause, remedy, the user's line; one row for a cause on a line."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from graphprobe.analysis.breaks_facts import BreakFact, TriedBreak, UncompiledFact, UserFrame, facts_from_lines
from graphprobe.analysis.breaks_rules import CONSEQUENCES, RULES
from graphprobe.analysis.breaks_text import RESUMED, BreakLine, Part, parts_of, plain_name
from graphprobe.store import layout
from graphprobe.store.reader import Model, Run

Outcome = Literal["behind", "continued", "rest", "function", "died", "raised"]
OUTCOMES: tuple[Outcome, ...] = ("behind", "continued", "rest", "function", "died", "raised")
"""From the mildest on: not come to, for the breaks before it; compiled on both sides of the break; the rest of the
function not; all of it not; compiling the rest ended in an error of Dynamo; the break itself is an error."""

CONVERTING = frozenset({"__bool__", "__len__", "__int__", "__float__", "__index__"})
"""Methods that must return a number of Python's."""

FAILED = "Dynamo failed with"
MAX_CHARACTERS = 400
"""Of an error that is told in one line."""

ERRORS = frozenset({"dynamo-error", "backend-failure"})
"""Kinds of what is no break: the compile itself ended in an error."""

REST = "cannot resume from"
"""Of torch's words on how it goes on: it compiles up to the break, and not behind it."""

TAP = "graph_breaks"


class GraphBreak(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of graph breaks on one line.

    Attributes:
        kind: stable name, e.g. `data-dependent-branch`; `unsupported` where no rule knows it.
        cause: one sentence.
        remedy: what to write instead; of one that was tried what was seen to work, and empty if nothing was.
        tried: tracing went on behind it in child processes, and the remedy was tried there.
        file, line, function, source: the innermost place in the program that is not code of torch or Python's library.
        count: how often tracing stopped there.
        outcome: the worst that came of it.
        error: of the outcome `died`, the error and where it came up; else empty.
        consequence: why it came to that, where torch could not go on behind the break; else empty.
        functions: the functions whose compiling it stopped.
        stack: `file:line in function` of the first time, outermost first.
        inside: `torch` or `python` where no frame is the program's: what is called there was compiled by itself.
        title, gb_id, url, explanation, hints: torch's own words on it.
    """

    kind: str
    cause: str
    remedy: str
    file: str
    line: int | None
    function: str
    source: str
    tried: bool = False
    count: int = 1
    outcome: Outcome = "continued"
    error: str = ""
    consequence: str = ""
    functions: list[str] = []
    stack: list[str] = []
    inside: str | None = None
    title: str = ""
    gb_id: str | None = None
    url: str | None = None
    explanation: str = ""
    hints: list[str] = []

    @property
    def where(self) -> str:
        """`file:line in function`."""
        return f"{self.file}{'' if self.line is None else f':{self.line}'} in {self.function}"


class UncompiledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function that Dynamo gave up on.

    Attributes:
        function, file, line: the function, and where it begins.
        kind, cause, remedy: as of a break; `break` where a graph break is the cause.
        count: how often it was tried.
        inside: `torch` or `python` for a function of torch or of Python's library.
    """

    function: str
    file: str
    line: int | None
    kind: str
    cause: str
    remedy: str
    count: int = 1
    inside: str | None = None


class GraphSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One graph that Dynamo gave to a backend.

    Attributes:
        compile_id: torch's id.
        ops: how many calls it has; None where that is not known.
        where: `file:line in function` of its first op, or of the function.
        function: what was compiled, as Dynamo calls it; of a module its class.
        guards: how many conditions its code is used under; None where that is not known.
        broken: a break ended it.
    """

    compile_id: str | None
    ops: int | None
    where: str | None
    guards: int | None
    broken: bool
    function: str | None = None


class BreakReport(msgspec.Struct, kw_only=True):
    """Graphs, breaks and functions left uncompiled, of one call or of a whole run.

    Attributes:
        all_seen: tracing went on behind each break.
    """

    graphs: list[GraphSeen] = []
    breaks: list[GraphBreak] = []
    uncompiled: list[UncompiledFunction] = []
    all_seen: bool = False

    @property
    def break_count(self) -> int:
        """How often tracing stopped and went on, or was not wanted to."""
        return sum(row.count for row in self.breaks if row.kind not in ERRORS and row.outcome != "behind")

    @property
    def behind_count(self) -> int:
        """How many places break once those before them are mended."""
        return sum(row.outcome == "behind" for row in self.breaks)

    @property
    def died(self) -> list[GraphBreak]:
        """Those behind which Dynamo ended in an error of its own."""
        return [row for row in self.breaks if row.outcome == "died"]

    @property
    def hidden(self) -> bool:
        """Whether more breaks may be behind those that were found, in code that Dynamo did not look at."""
        left = any(row.outcome in ("rest", "function") for row in self.breaks if row.inside is None)
        return left and not self.all_seen

    @property
    def own_uncompiled(self) -> list[UncompiledFunction]:
        """Those that are neither torch's nor Python's."""
        return [row for row in self.uncompiled if row.inside is None]

    @property
    def found(self) -> bool:
        """Whether there is anything to mend."""
        return bool(self.breaks or self.own_uncompiled)

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, with its counts."""
        counts = {
            "graph_count": len(self.graphs),
            "op_count": sum(graph.ops or 0 for graph in self.graphs),
            "break_count": self.break_count,
        }
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return {"schema": 1, **counts, **fields}


def report_from_facts(
    graphs: Iterable[GraphSeen],
    breaks: Sequence[BreakFact],
    uncompiled: Sequence[UncompiledFact],
    tried: Sequence[TriedBreak] = (),
) -> BreakReport:
    """Judge and group what was observed. The program's own lines come first, and of them the worst."""
    given_up = {_key(fact) for fact in uncompiled if fact.broke}
    rows: dict[tuple[Any, ...], GraphBreak] = {}
    errors = {at: fact for fact in breaks if fact.died and (at := _break_before(fact, breaks)) is not None}
    tied = list(errors.values())
    for number, fact in enumerate(breaks):
        if any(fact is error for error in tied):
            continue
        row = judge(fact, gave_up=_key(fact) in given_up)
        if number in errors:
            row = msgspec.structs.replace(row, outcome="died", error=_error(errors[number]))
        key = (row.kind, row.cause, row.file, row.line)
        rows[key] = _merged(rows[key], row) if key in rows else row
    frames: dict[tuple[Any, ...], UncompiledFunction] = {}
    for left in uncompiled:
        seen = _uncompiled(left)
        what = (seen.function, seen.file, seen.line, seen.kind, seen.cause)
        count = frames[what].count + 1 if what in frames else 1
        frames[what] = msgspec.structs.replace(seen, count=count)
    # What goes on behind a break is a function that begins on its line.
    left_behind = {(row.file, row.line) for row in frames.values()}
    for key, row in rows.items():
        if row.outcome == "continued" and (row.file, row.line) in left_behind:
            rows[key] = msgspec.structs.replace(row, outcome="rest")
    for one in tried:
        row = msgspec.structs.replace(judge(one.fact), outcome="behind")
        key = (row.kind, row.cause, row.file, row.line)
        if not row.error or all(row.error != known.error for known in rows.values()):
            rows[key] = msgspec.structs.replace(rows.get(key, row), tried=True, remedy=one.remedy)
    told = [(row.file, row.line) for row in rows.values() if row.title not in CONSEQUENCES]
    rows = {k: row for k, row in rows.items() if row.title not in CONSEQUENCES or (row.file, row.line) not in told}
    ordered = sorted(rows.values(), key=lambda row: (row.inside is not None, -OUTCOMES.index(row.outcome), -row.count))
    all_seen = bool(tried) and all(one.passed for one in tried)
    return BreakReport(graphs=list(graphs), breaks=ordered, uncompiled=list(frames.values()), all_seen=all_seen)


def _break_before(died: BreakFact, facts: Sequence[BreakFact]) -> int | None:
    """Number of the break behind which the function goes on that died; None where it is no such function."""
    resumed = RESUMED.match(died.function)
    if resumed is None:
        return None
    files = {died.file, *(frame.file for frame in died.stack[:1])}  # a method behind a decorator may have two
    places = {(file, int(resumed.group(2))) for file in files}
    found = [n for n, fact in enumerate(facts) if any((frame.file, frame.line) in places for frame in fact.stack)]
    return next((number for number in reversed(found) if not facts[number].died), None)


def _error(fact: BreakFact) -> str:
    """In one line, with the place."""
    place = user_frame(fact.stack)
    error = _error_text(fact)
    return error if place is None else f"{error} (at {place.place} in {plain_name(place.function)})"


def _error_text(fact: BreakFact) -> str:
    """Its first paragraph; what torch adds behind it is for torch's developers."""
    return textwrap.shorten(fact.reason.partition("\n\n")[0], MAX_CHARACTERS, placeholder=" …")


def judge(fact: BreakFact, *, gave_up: bool = False) -> GraphBreak:
    """Kind, cause and remedy of one break. `gave_up`: torch left the whole function uncompiled."""
    parts = [Part(f"{FAILED} {_error_text(fact)}")] if fact.died else parts_of(fact.reason)
    place = user_frame(fact.stack) or UserFrame(file=fact.file, line=fact.first_line, function=fact.function)
    function = plain_name(fact.function or place.function)
    kind, cause, remedy = _judged(parts[0], place, plain_name(place.function), fact.stack)
    outcome: Outcome = "rest" if REST in fact.handling else "continued"
    happened: dict[Outcome, bool] = {"died": fact.died, "raised": fact.raised, "function": gave_up}
    outcome = next((name for name, is_so in happened.items() if is_so), outcome)
    return GraphBreak(
        kind=kind,
        cause=cause,
        remedy=remedy,
        file=place.file,
        line=place.line,
        function=plain_name(place.function),
        source=place.source,
        outcome=outcome,
        error=_error(fact) if fact.died else "",
        consequence=_consequence(parts[1:]),
        functions=[function],
        inside=place.inside,
        stack=[f"{frame.place} in {plain_name(frame.function)}" for frame in fact.stack],
        title=parts[0].title,
        gb_id=parts[0].gb_id,
        url=parts[0].url,
        explanation=parts[0].explanation,
        hints=list(parts[0].hints),
    )


def user_frame(stack: Sequence[UserFrame]) -> UserFrame | None:
    """The innermost frame that is neither torch's nor Python's; of a stack that has none, the innermost."""
    own = [frame for frame in stack if frame.inside is None]
    found = own or stack
    return found[-1] if found else None


def _uncompiled(fact: UncompiledFact) -> UncompiledFunction:
    function = plain_name(fact.function)
    place = user_frame(fact.stack)
    part = parts_of(fact.reason)[0]
    if fact.broke:
        at = f" at {place.place}" if place is not None else ""
        kind, cause, remedy = "break", f"the graph break{at}", "mend that break"
    else:
        kind, cause, remedy = _judged(part, place, function, fact.stack)
    return UncompiledFunction(
        function=function,
        file=fact.file,
        line=fact.first_line,
        kind=kind,
        cause=cause,
        remedy=remedy,
        inside=fact.inside,
    )


def _judged(part: Part, place: UserFrame | None, function: str, stack: Sequence[UserFrame]) -> tuple[str, str, str]:
    line = BreakLine("") if place is None else BreakLine(place.source, place.statement, place.code)
    use = "conversion" if function in CONVERTING else line.use
    inner = "".join(f"\nin {frame.function}" for frame in stack if frame.inside is not None)
    text = f"{part.explanation}\n{part.context}{inner}"
    for rule in RULES:
        groups = rule.match(part.title, text, line.form, line.code, use)
        if groups is not None:
            names = _names(part, line, function, rule.source, groups)
            return rule.kind, fill(rule.cause, names), fill(rule.remedy, names)
    raise AssertionError("the last rule matches everything")


def _names(part: Part, line: BreakLine, function: str, pattern: str, groups: Mapping[str, str]) -> dict[str, str]:
    """What the sentences of a rule may name, with plain words where the line does not have it."""
    found = re.search(pattern, line.code) if pattern else None
    on_line = next(filter(None, found.groups()), "") if found is not None else ""
    name = groups.get("name") or groups.get("other") or on_line
    call = line.call(name) or line.named or f"{name}()"
    qualified = f"{groups['module']}.{name}" if "module" in groups and name else name
    owner = line.owner(name)
    masked, mask = line.mask()
    number, tensor = line.number
    holder, indexed = line.indexed
    names = {
        "title": part.title or part.explanation or "torch gives no reason",
        "hint": part.hints[0] if part.hints else "move the line out of the compiled function",
        "function": function,
        "condition": line.condition or "the condition",
        "choice": line.choice or "the condition",
        "number": number or call,
        "holder": holder or "the tensor",
        "indexed": indexed or call,
        "tensor": tensor or owner or "the tensor",
        "name": qualified or "the function",
        "class": "a tensor",
        "line": line.named or "the line",
        "layer": "on this line",
        "call": call,
        "method": call.partition("(")[0],
        "owner": owner or "the tensor",
        "argument": line.owner(name, operand=False) or "the tensor",
        "target": line.target or "an attribute",
        "assigned": line.assigned or "…",
        "statement": line.statement,
        "owner_of_target": line.target.rpartition(".")[0] or "the tensor",
        "manager": line.manager or groups.get("class", "the context manager"),
        "defined": line.defined or "…",
        "masked": masked or "the tensor",
        "mask": mask or "the mask",
    }
    return names | {key: value for key, value in groups.items() if key not in ("name", "other", "module")}


def fill(sentence: str, names: Mapping[str, str]) -> str:
    """The sentence with each `{name}` replaced; other braces stay."""
    return re.sub(r"\{(\w+)\}", lambda match: names.get(match.group(1), match.group(0)), sentence)


def _consequence(followed: Sequence[Part]) -> str:
    known = (CONSEQUENCES[part.title] for part in followed if part.title in CONSEQUENCES)
    return next(known, followed[-1].title if followed else "")


def _merged(first: GraphBreak, other: GraphBreak) -> GraphBreak:
    worse = max(first, other, key=lambda row: OUTCOMES.index(row.outcome))
    functions = [*first.functions, *(name for name in other.functions if name not in first.functions)]
    return msgspec.structs.replace(
        first,
        count=first.count + 1,
        outcome=worse.outcome,
        error=first.error or other.error,
        consequence=first.consequence or other.consequence,
        functions=functions,
    )


def _key(fact: BreakFact | UncompiledFact) -> tuple[Any, ...]:
    return (fact.reason, fact.function, fact.file, fact.first_line)


def report_from_run(run: Run) -> tuple[BreakReport, list[str]]:
    """The report, and in words what the run cannot tell."""
    models = run.models()
    superseded = {model.compile.get("restart_of") for model in models}
    graphs = [_graph(model) for model in models if model.number not in superseded]
    notes: list[str] = []
    path = run.tool_dir / layout.BREAKS
    recorded = not run.manifest.taps.get(TAP, "missing").startswith("missing")
    if not recorded:
        notes.append("graph breaks and functions left uncompiled were not recorded")
    # Without a file nothing broke.
    breaks, uncompiled = facts_from_lines(path if recorded and path.exists() else b"", notes.append)
    return report_from_facts(graphs, breaks, uncompiled), [*notes, *run.problems]


def _graph(model: Model) -> GraphSeen:
    facts = model.compile
    where = facts.get("begins")
    if where is None and facts.get("file"):
        where = f"{facts['file']}:{facts.get('line')} in {facts.get('function')}"
    guards = facts.get("guards")
    return GraphSeen(
        compile_id=model.compile_id,
        ops=facts.get("ops"),
        where=where,
        guards=None if guards is None else len(guards),
        broken=bool(facts.get("graph_break")),
        function=facts.get("function"),
    )
