"""Tells a comparison in words, on the terminal, as JSON, and as CSV: the columns of ptdbg_ascend, then ours."""

from __future__ import annotations

import csv
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import msgspec

from graphprobe.compare.result import UNDECIDED_KINDS, CallName, CallResult, SlotResult, SlotSide, Summary, WrongCall
from graphprobe.report.document import (
    Badge,
    Card,
    Code,
    Content,
    Excerpt,
    Facts,
    Folded,
    Listing,
    SourcePlace,
    Tone,
    counted,
)
from graphprobe.report.terminal import STYLES, Console, Paper, Text, console_for, print_closing

OUTCOMES: dict[str, tuple[str, Tone, str]] = {
    "same": ("SAME", "good", "no difference beyond the noise of the dtypes"),
    "different": ("DIFFERENT", "bad", ""),
    "undecided": ("UNDECIDED", "warn", "it could not be told whether the two differ"),
}

BASIS = {
    "values": "by values",
    "statistics": "by statistics only",
    "digest": "equal bit for bit",
    "mixed": "by values where both have them, else by statistics",
    "sample": "by samples of the values",
    "none": "nothing could be compared",
}

DIFFERENCES_IN_WORDS = {
    "wrong_value": "gives another result than its inputs explain",
    "wrong_gradient": "gives another gradient than its inputs explain",
    "nonfinite": "gives NaN or infinity on one side only",
    "state": "gets a weight, a buffer or data that differs from the start",
    "scalar": "is called with another argument that is no tensor",
    "dtype": "runs in another precision than the calls like it",
    "shape": "has a tensor of another shape",
    "replaced_call": "stands where the reference calls another operation",
    "extra_call": "is called by the candidate only, and changes what follows",
    "missing_call": "is called by the reference only, and changes what follows",
    "moved_call": "has another input: it is called in another order, or wired to another result",
    "changed_unseen": "gets a value that was changed in between, and no record shows by what",
    "lost_gradient": "gives a gradient on one side only",
    "parameters": "steps a parameter that the other side does not step",
    "data_order": "has data that the other side has at another call",
    "unpaired": "gives something that the other side does not give, and that nothing recorded uses",
    "growth": "gives a result that is too far off to be noise, though no call is to blame",
    "unrecorded_origin": "gets another input, and no record tells from where",
    "not_bitwise": "gives other last bits, no further off than noise",
}

WORSE = {
    "candidate_worse": "the candidate is the worse side",
    "candidate_better": "the reference is the worse side",
    "differs": "the two do different things; nothing tells which is right",
    "inconclusive": "which side is worse cannot be told",
    "ok": "",
}

BARS = "▁▂▃▄▅▆▇█"
SHOWN = 4
"""Calls of the same cause that the terminal names."""

LABEL = 11
"""Columns of a label with its colon."""

LISTED = 20
"""Findings and unpaired calls that the terminal shows."""

SOURCE_COLUMNS = (
    "NPU Name", "Bench Name", "NPU Tensor Dtype", "Bench Tensor Dtype", "NPU Tensor Shape", "Bench Tensor Shape",
    "Cosine", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio", "Five Thousandths Err Ratio", "NPU max",
    "NPU min", "NPU mean", "NPU l2norm", "Bench max", "Bench min", "Bench mean", "Bench l2norm",
    "Accuracy Reached or Not", "Err_message",
)  # fmt: skip
STACK_COLUMN = "NPU_Stack_Info"
OUR_COLUMNS = (
    "Verdict", "Blame", "Noise Level", "Max Z", "Max ULP", "Worst Element", "Basis", "Rule", "Module", "Source",
    "Step", "Rank",
)  # fmt: skip
NOT_THERE = "N/A"


def document_from(summary: Summary, unpaired: Iterable[CallResult] = ()) -> dict[str, Any]:
    """The JSON document: the summary, and the calls without a partner. docs/formats/comparison.md describes it."""
    listed = [
        {
            "side": "candidate" if row.candidate is not None else "reference",
            "rank": row.rank,
            "step": row.step,
            "call": msgspec.to_builtins(row.candidate or row.reference),
            "reason": row.reason,
        }
        for row in unpaired
    ]
    return {**msgspec.to_builtins(summary), "unpaired": listed}


def print_comparison(summary: Summary, unpaired: Iterable[CallResult] = (), *, file: IO[str] | None = None) -> None:
    """Print what a comparison found, the first divergence first, and the first few of the rows without a partner."""
    console = console_for(file)
    word, tone, said = outcome_of(summary)
    console.print(Text(word, f"bold {STYLES[tone]}"), Text(said))
    sides = {"candidate": summary.candidate, "reference": summary.reference}
    rows = {name: f"{side.title} ({side.format})" for name, side in sides.items()}
    rows["compared"] = f"{summary.counts.pairs} pairs of calls, {BASIS.get(summary.basis, summary.basis)}"
    if any(a != b for a, b in (pair.split(" -> ") for pair in summary.precision)):
        rows["precision"] = ", ".join(f"{pair} ({n})" for pair, n in list(summary.precision.items())[:4])
    if any(summary.growth):
        rows["growth"] = f"{bars_from(summary.growth)}  up to {max(summary.growth):.3g} units of noise"
    for name, text in rows.items():
        console.print(Text(f"  {name:<9}  {text}"))
    paper = Paper(console, width=console.width, label=LABEL, indent=2)
    for title, finding in titled(summary.findings[:LISTED]):
        paper.show(card_of(title, finding, SourcePlace, also=SHOWN))
    if len(summary.findings) > LISTED:
        console.print()
        console.print(Text(f"{len(summary.findings) - LISTED} more findings; --json has them", "dim"))
    _print_unpaired(console, summary, unpaired)
    if notes := notes_of(summary):
        console.print()
    for note in notes:
        console.print(Text(f"note: {note}", "dim"))


def print_end(
    summary: Summary, candidate: str, reference: str, *, out: str | None = None, file: IO[str] | None = None
) -> None:
    """The last lines: the outcome, the call that is to blame, and how to look at it.

    Args:
        candidate, reference: the dumps as they were named, for the command that shows the call.
        out: the folder that has the whole comparison; None if it was not written.
    """
    word, tone, said = outcome_of(summary)
    facts: list[tuple[str, str]] = []
    follow = ["graphprobe", "compare", candidate, reference, "--out", "comparison"]
    if out is not None:
        follow = ["graphprobe", "report", out]
    for finding in sorted(summary.findings, key=_undecided)[:1]:
        call = call_of(finding)
        told = "call" if _undecided(finding) else "first"
        facts.append((told, f"{call.label} {what_is_wrong(finding)}"))
        at = ", ".join(f"{name} {n}" for name, n in (("step", finding.step), ("rank", finding.rank)) if n)
        place = " in ".join(part for part in (call.source, call.module) if part)
        facts.append(("where", ", ".join(part for part in (place, at) if part)))
        follow = ["graphprobe", "parse", candidate if finding.candidate is not None else reference, call.label]
        follow += ["--step", str(finding.step)]
        several = summary.reference.facts.get("ranks", "1") != "1"  # else each rank is held against that one
        follow += ["--rank", str(finding.rank)] if finding.candidate is not None or several else []
    print_closing(f"{word}: {said}", facts, follow=follow, style=f"bold {STYLES[tone]}", file=file)


def _undecided(finding: WrongCall) -> bool:
    return finding.kind in UNDECIDED_KINDS


def accusing(summary: Summary) -> int:
    """How many findings name a cause."""
    return sum(finding.kind not in UNDECIDED_KINDS for finding in summary.findings)


def titled(findings: Iterable[WrongCall]) -> Iterator[tuple[str, WrongCall]]:
    """Each finding with a heading: the first that accuses is the first divergence; others are not decided."""
    number = 0
    for finding in findings:
        if finding.kind in UNDECIDED_KINDS:
            yield "Not decided", finding
        else:
            number += 1
            yield "First divergence" if number == 1 else f"Cause {number}", finding


def what_is_wrong(finding: WrongCall) -> str:
    """In words, after the name of the call: what it does, and what stands in its place on the other side."""
    other = finding.reference
    if finding.kind == "replaced_call" and other is not None and finding.candidate is not None:
        return f"stands where the reference calls {other.label}"
    return DIFFERENCES_IN_WORDS[finding.kind]


def outcome_of(summary: Summary) -> tuple[str, Tone, str]:
    """The verdict in a word, its tone, and what it means."""
    word, tone, meaning = OUTCOMES[summary.outcome]
    return word, tone, meaning or f"{counted(accusing(summary), 'cause')} found"


def call_of(finding: WrongCall | CallResult) -> CallName:
    """The call in the candidate, or in the reference where the candidate has none."""
    call = finding.candidate or finding.reference
    assert call is not None
    return call


def notes_of(summary: Summary) -> list[str]:
    """What a reader should know: of the comparison, and of both sides."""
    return [*summary.notes, *summary.candidate.problems, *summary.reference.problems]


def card_of(title: str, finding: WrongCall, place: Callable[[str], SourcePlace], *, also: int) -> Card:
    """All that is known of a finding.

    Args:
        title: as `titled` gives it.
        place: of a `file:line` of the program, the form in which the face shows it.
        also: how many other calls of the same cause are named.
    """
    call, other = call_of(finding), finding.reference
    at, more = place(call.source), finding.also_count - also
    elsewhere = finding.candidate is not None and other is not None and other.label != call.label
    noise = f"{finding.level:.3g} units of rounding noise in what it gave, {finding.inherited:.3g} in what it got"
    facts: dict[str, Content] = {
        "module": Code(call.module) if call.module else "",
        "line": [at, Excerpt(at.line)] if call.source else "",
        "value": _value(finding),
        "reference": Code(other.label) if elsewhere and other is not None else "",
        "also": f"{', '.join(finding.also[:also])}{f' and {more} more' if more > 0 else ''}",
        "error": noise if finding.level or finding.inherited else "",
        "evidence": list(finding.evidence),
    }
    where = {"step": finding.step, "rank": finding.rank}
    head = ", ".join([finding.direction, *(f"{name} {number}" for name, number in where.items() if number)])
    said: Content = (Code(call.api), f" {what_is_wrong(finding)}")
    stack = Listing("\n".join(call.stack), "Stack of the call")
    return Card(
        (f"{title}: ", Code(call.label), f" ({head})"),
        [
            said,
            Facts([row for row in facts.items() if row[1]]),
            *([Folded("The calls that led there", stack)] if call.stack else []),
        ],
    )


def _value(finding: WrongCall) -> Content:
    """Which value of the call is meant, and which side is the worse one."""
    tone: Tone = "warn" if finding.verdict == "inconclusive" else "bad"
    if finding.verdict == "candidate_better":
        tone = "info"
    side = Badge(tone, WORSE[finding.verdict] or finding.kind.replace("_", " "))
    if not finding.slot:
        return side
    at = f" at {list(finding.worst)}" if finding.worst is not None else ""
    return Code(finding.slot), f"{at}; ", side


def _print_unpaired(console: Console, summary: Summary, rows: Iterable[CallResult]) -> None:
    total = summary.counts.candidate_only + summary.counts.reference_only
    if not total:
        return
    console.print()
    alone = f"{summary.counts.candidate_only} calls of the candidate, {summary.counts.reference_only} of the reference"
    console.print(Text(f"Without a partner: {alone}", "bold"))
    shown = list(itertools.islice(rows, LISTED))
    for row in shown:
        call = call_of(row)
        side = "candidate" if row.candidate is not None else "reference"
        where = f" {call.source}" if call.source else ""
        console.print(Text(f"  {side} {call.label}{where}: {row.reason}", "dim"))
    if total > len(shown):
        console.print(Text(f"  and {total - len(shown)} more; --csv and --json have all", "dim"))


def bars_from(levels: list[float]) -> str:
    """A line of bars, logarithmic from 1 unit of noise to 10 million."""
    top = 7.0
    return "".join(BARS[min(7, int(8 * min(top, max(0.0, math.log10(max(v, 1e-9)))) / top))] for v in levels)


def print_call(call: Any, *, values: dict[str, str], file: IO[str] | None = None) -> None:
    """One recorded call, a `store.calls.Call`: where it was made, and each slot: statistics and `values` as text."""
    console = console_for(file)
    console.print(Text(call.label, "bold"), Text(f"{call.api} ({call.kind}, {call.direction})"))
    details = f"position {call.position}, step {call.step}, rank {call.rank}"
    console.print(Text(f"  {details}{f', module {call.module}' if call.module else ''}"))
    if call.stack:
        console.print(Text("  stack, innermost first"))
        for frame in call.stack:
            console.print(Text(f"    {frame}", "dim"))
    elif call.source:
        console.print(Text(f"  line {call.source}"))
    for note in call.notes:
        console.print(Text(f"  note: {note}", "dim"))
    for slot in call.slots:
        console.print(Text(f"  {slot.name}", "bold"), Text(_slot_text(slot)))
        if slot.name in values:
            for line in values[slot.name].splitlines():
                console.print(Text(f"      {line}"))
        elif slot.missing:
            console.print(Text(f"      no values: {slot.missing}", "dim"))


def _slot_text(slot: Any) -> str:
    if slot.meta is None:
        return f"{slot.scalar.text} ({slot.scalar.type})" if slot.scalar is not None else slot.missing
    parts = [f"{slot.meta.dtype} {list(slot.meta.shape)}"]
    if slot.stats is not None:
        for name in ("max", "min", "mean", "std", "l2"):
            value = getattr(slot.stats, name)
            if name in slot.known and value is not None:
                parts.append(f"{name} {value:.6g}")
        for name in ("nan", "positive_inf", "negative_inf"):
            if name in slot.known and getattr(slot.stats, name):
                parts.append(f"{name} {getattr(slot.stats, name)}")
    return ", ".join(parts)


def slot_label(call: CallName, slot: str, direction: str) -> str:
    """`linear.3.forward.input.0`; `21_Torch_norm_forward_input.0` for labels without a dot."""
    return f"{call.label}.{slot}" if "." in call.label else f"{call.label}_{slot}"


def write_csv(
    rows: Iterable[CallResult],
    file: IO[str],
    *,
    stack: bool = False,
    label: Callable[[CallName, str, str], str] = slot_label,
) -> int:
    """Writes one line a slot, and one a call without a partner; returns how many.

    Args:
        rows: of `Comparison.rows()`.
        file: opened with `newline=""`.
        stack: adds the source's column with the program's frames.
        label: the name of a slot, of its call, its own name and the call's direction.
    """
    writer = csv.writer(file)
    writer.writerow([*SOURCE_COLUMNS, *([STACK_COLUMN] if stack else []), *OUR_COLUMNS])
    count = 0
    for row in rows:
        lines = [[NOT_THERE if cell is None else cell for cell in line] for line in _lines(row, stack, label)]
        writer.writerows(lines)
        count += len(lines)
    return count


def _lines(row: CallResult, stack: bool, label: Callable[[CallName, str, str], str]) -> Iterator[list[object]]:
    """The cells of each line; None is what is not there."""
    name = call_of(row)
    trace = ["\n".join(name.stack)] if stack else []
    place = [name.module, name.source, row.step, row.rank]
    if row.rule is None:
        labels = [side and side.label for side in (row.candidate, row.reference)]
        blank = [None] * (len(SOURCE_COLUMNS) - 3)
        why = f"no partner: {row.reason}"
        yield [*labels, *blank, why, *trace, row.verdict, row.blame, *[""] * 5, "none", *place]
        return
    for slot in row.slots:
        worst = "" if slot.worst is None else str(list(slot.worst))
        ours = [slot.verdict, slot.blame, slot.level, slot.z, slot.ulp, worst, slot.basis, row.rule]
        yield [*_source(row, slot, label), *trace, *ours, *place]


def _source(row: CallResult, slot: SlotResult, label: Callable[[CallName, str, str], str]) -> list[object]:
    a, b, mine, other = slot.candidate, slot.reference, row.candidate, row.reference
    return [
        None if a is None or mine is None else label(mine, slot.name, row.direction),
        None if b is None or other is None else label(other, slot.reference_name or slot.name, row.direction),
        *(side and (side.dtype or side.text) for side in (a, b)),
        *(side and _shape_text(side.shape) for side in (a, b)),
        *(slot.cosine, slot.max_abs, slot.max_relative, slot.within_1_1000, slot.within_5_1000),
        *_statistics(a),
        *_statistics(b),
        slot.accuracy or None,
        slot.reason,
    ]


@functools.lru_cache(maxsize=4096)
def _shape_text(shape: tuple[int, ...] | None) -> str | None:
    return None if shape is None else str(list(shape))


def _statistics(side: SlotSide | None) -> tuple[float | None, ...]:
    return (None,) * 4 if side is None or side.text else (side.max, side.min, side.mean, side.l2)
