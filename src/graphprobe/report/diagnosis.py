"""Tells a diagnosis in words and on the terminal, for people who have never looked inside a compiler."""

from __future__ import annotations

import linecache
import math
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from graphprobe.findings import (
    CallsLookedAt,
    Diagnosis,
    Finding,
    Workaround,
    bits_in_words,
    expected_in_words,
    extent_in_words,
    in_words,
)
from graphprobe.report.document import (
    Bullets,
    Card,
    Code,
    Command,
    Content,
    Excerpt,
    Facts,
    Folded,
    Note,
    SourcePlace,
    Tone,
)
from graphprobe.report.terminal import STYLES, Paper, console_for, lines_of, near, print_closing

VERDICTS: dict[str, tuple[str, Tone, str]] = {
    "healthy": ("HEALTHY", "good", "compiled and uncompiled results match within rounding"),
    "fault": ("FAULT", "bad", ""),
    "undecided": ("UNDECIDED", "warn", "graphprobe could not decide whether compiling changes the results"),
}

FAULTS_IN_WORDS = {
    "wrong_value": "gives wrong numbers",
    "wrong_dtype": "gives numbers of the wrong type (dtype)",
    "wrong_shape": "gives a tensor of the wrong shape",
    "wrong_stride": "gives a tensor that is laid out otherwise in memory (other strides)",
    "lost_mutation": "should change one of its inputs in place, and does not, or changes it otherwise",
    "aliasing": "gives tensors that share memory and should not, or should and do not",
    "nonfinite": "gives NaN or infinity where the uncompiled program gives none, or the other way round",
    "wrong_gradient": "gives wrong gradients in the backward pass",
    "missing_exception": "raises no exception where the uncompiled program does",
    "extra_exception": "raises an exception where the uncompiled program does not",
    "crash_compile": "cannot be compiled: the compiler itself fails",
    "crash_runtime": "compiles, but crashes when it runs",
    "segfault": "kills the whole process",
    "hang": "does not come to an end",
    "side_effect": "loses or changes a side effect",
    "unsupported": "is not compiled by torch, which says so",
    "not_bitwise": "gives other last bits, no further off than rounding explains",
    "wrong_registration": "does not do what the program has registered of it",
}

WORKS = "the whole program is right with this change, seen in a process of its own ({number} change{s} tried)"
NONE_WORKS = "none was found. The program stays wrong, or becomes slower than uncompiled, with each of: {tried}"

PLACES = 8
"""Places of one fault that are told; all are in the JSON."""

LATENT = 6
"""Latent disagreements that are told; all are in the JSON."""

NUMERIC = ("wrong_value", "wrong_gradient", "nonfinite", "lost_mutation")
"""Kinds whose error has a size."""

WORD = re.compile(r"[a-z]+(?:['-][a-z]+)*(?=[ ,;]|\.?(?: |$))")
"""A word that begins a sentence takes a capital letter; a name in code does not, nor does what a colon follows."""

SENTENCES, Z = re.compile(r"(?<=[.!?]) (?=[A-Z])"), re.compile(r"\bz is (?:[-\d]|inf|nan)")
"""What a reason consists of, and what a sentence of it has that gives an error in units of noise."""

SEE_IT = "exits 1 while the fault is there, 0 once it is gone; needs torch only"

CRASHES = ("crash_compile", "crash_runtime", "segfault", "hang", "unsupported")
"""Kinds whose reason is what torch, the compiler or the operating system says."""

STAGES = {
    "dynamo": "reading the Python code (Dynamo), where the program is recorded as a graph of operations",
    "trace": "tracing, where torch.export or make_fx records the program as a graph",
    "pass": "a pass of the program, which rewrites the graph",
    "backend": "the backend, which is not Inductor",
    "aot": "preparing the graph (AOTAutograd), where in-place changes are removed and the backward graph is made",
    "decomposition": "decomposing, where an operation is replaced by several simpler ones",
    "pre_grad": "rewriting the graph before the backward graph is made (pre-grad passes)",
    "joint": "rewriting the graph that holds forward and backward together (joint passes)",
    "post_grad": "rewriting the finished forward or backward graph (post-grad passes)",
    "lowering": "lowering, where each operation is translated into the loops that compute it",
    "codegen": "code generation, where the loops are written as C++ or GPU code",
    "runtime": "running the compiled code",
    "unknown": "a stage that could not be told",
}

WIDTH, LABEL = 80, 13
"""Columns at which prose is broken, and of a label with its colon."""

NOTES, NOTE_LENGTH = 5, 300
"""Notes of an undecided diagnosis that a failing test shows, and their letters."""


def told(finding: Finding, place: Callable[[str], SourcePlace], folder: str | None) -> list[Content]:
    """What is known of a finding, below its `sentence`: values, stage, where it is, how sure that is, how to see it.

    Args:
        place: of a `file:line` of the program, the form in which the face shows it.
        folder: the dossier, as it is to be named; None where there is none, or it is not at hand.
    """
    verb = "begins to differ" if finding.kind == "not_bitwise" else "goes wrong"
    where = f"It {verb} in {stage_in_words(finding)}."
    if finding.kind == "wrong_registration":
        where = "The compiler plans with what is registered, so no part of it is to blame."
    elif finding.stage == "unknown":
        where = "Which stage of the compiler is to blame could not be told."
    texts: list[Content] = [text for text in (values_in_words(finding), where) if text]
    if not is_proven(finding):
        texts.append("No program that shows it by itself could be made.")
    elif folder is None:
        texts.append(f"The proof, {finding.dossier}, is not at hand.")
    return [*texts, facts_of(finding, place, folder)]


def stage_in_words(finding: Finding) -> str:
    """Where in the compiler a fault is, for people who have never looked inside."""
    if finding.stage == "pass" and finding.pass_:
        name, bracket, place = finding.pass_.partition(" (")
        end = "" if finding.kind in CRASHES else ": the graph before it is right, and the graph after it is not"
        return f"your pass `{name}`{bracket}{place}{end}"
    if finding.backend is None:
        return STAGES.get(finding.stage, finding.stage)
    subject = "the graph before the pass" if finding.pass_ else "Dynamo's graph"
    wrong = "the graph after the pass" if finding.pass_ else "what the backend returns for it"
    end = "" if finding.kind in CRASHES else f", and {wrong} is not"
    return f"{finding.backend_in_words}: {subject} is right{end}"


def facts_of(finding: Finding, place: Callable[[str], SourcePlace], folder: str | None) -> Facts:
    """The labelled part of what `told` gives."""
    rows: list[tuple[str, Content]] = []
    if finding.line:
        at, library = place(finding.line), finding.source if finding.called_from else None
        more = (" (called from there: ", Code(short_library(library)), ")") if library else ()
        rows.append(("your line", [(at, *more), Excerpt(at.line)]))
    if finding.module:
        rows.append(("module", Code(finding.within or finding.module)))
    for one in finding.places[1:PLACES]:
        source, word, module = one.partition(" in ")
        rows.append(("and at", (place(source), word and " in module ", module)))
    if len(finding.places) > PLACES:
        rows.append(("", f"and {len(finding.places) - PLACES} more places"))
    if finding.op:
        node: tuple[Content, ...] = (", node ", Code(finding.node)) if finding.node else ()
        rows.append(("operation", (Code(finding.op), *node)))
    named = {"may also be": ", ".join(finding.also), "pass": finding.pass_, "kernel": finding.kernel}
    rows += [(label, Code(text)) for label, text in named.items() if text]
    if finding.flaky_rate < 1:
        rows.append(("flaky", f"it failed in {finding.flaky_rate:.0%} of the repeats, not in all"))
    rows += [fact for fact in (reason_of(finding),) if fact[1]]
    if folder is not None and is_proven(finding):
        command = Command(f"python {shlex.quote(str(Path(folder) / 'repro.py'))}")
        rows.append(("proof", Code(folder)))
        rows.append(("see it", [command, Note(SEE_IT)]))
        if finding.kind == "wrong_registration":  # it is the user's own to mend
            return Facts(rows)
        rows.append(("report it" if finding.backend is None else "report", Code(str(Path(folder) / "REPORT.md"))))
    elif folder is not None:
        rows.append(("kept in", Code(folder)))
    if finding.known is not None:
        rows.append(("known", f"{finding.known.in_words}."))
    rows += workaround_facts(finding, place)
    for measured in details(finding):
        figures = Z.search(measured) is not None
        rows.append(("measured", Folded("what was measured", [measured])) if figures else ("details", measured))
    return Facts(rows)


def workaround_facts(finding: Finding, place: Callable[[str], SourcePlace]) -> list[tuple[str, Content]]:
    """What to do until the fault is mended, or what was tried in vain; nothing where nothing was tried."""
    if not finding.workarounds:
        return [("workaround", NONE_WORKS.format(tried="; ".join(finding.tried)))] if finding.tried else []
    first, *more = finding.workarounds
    said = [WORKS.format(number=first.tried, s="s" * (first.tried > 1)), first.price]
    rows: list[tuple[str, Content]] = [("workaround", f"{'; '.join(filter(None, said))}.")]
    for one in finding.workarounds:
        where: Content = (f"{where_of(one)} in ", place(one.place)) if one.place else where_of(one)
        rows.append(("and" if one in more else "", [where, Excerpt(one.code)]))
    return rows


def where_of(workaround: Workaround) -> str:
    """Where the code of a workaround is to be written, in words."""
    if workaround.code.startswith("torch.compile("):
        return "in the call of torch.compile"
    return "in the place of one line" if workaround.kind == "uncompiled" else "before anything is compiled"


def short_library(source: str) -> str:
    """`…/transformers/pytorch_utils.py:119` of a line of an installed package."""
    found = re.search(r"[/\\](?:site|dist)-packages([/\\].+)", source)
    return f"…{found[1]}" if found is not None else source


def foremost(findings: Sequence[Finding]) -> Finding:
    """The one that comes with a proof says most."""
    return next((finding for finding in findings if is_proven(finding)), findings[0])


def beside(diagnosis: Diagnosis) -> list[Content]:
    """What else is to be said: what disagrees inside, what is right, the largest error, what could not be checked."""
    blocks: list[Content] = []
    if diagnosis.latent:
        title = "Suspected inside, and not proven to matter"
        if diagnosis.verdict == "healthy":
            title = "Latent: what disagrees inside, and shows in nothing that the program gives or leaves behind"
        shown = [
            f"{one.stage}: {one.op} at {one.source or one.node or 'source unknown'}: {one.reason}"
            for one in diagnosis.latent[:LATENT]
        ]
        more = len(diagnosis.latent) - LATENT
        blocks.append(Bullets([*shown, *([f"and {more} more, in the JSON"] if more > 0 else [])], title))
    if diagnosis.ruled_out:
        blocks.append(Bullets(diagnosis.ruled_out, "What was checked and is right", "good"))
    if diagnosis.largest_z.node is not None:
        error, node = f"{diagnosis.largest_z.z:.3g}", Code(diagnosis.largest_z.node)
        text = f"Largest error among the operations that passed: {error} times what rounding explains, at "
        blocks.append(Note((text, node, ".")))
    if diagnosis.notes:
        blocks.append(Bullets(diagnosis.notes, "What could not be checked, and other notes", "warn"))
    return blocks


def last_bits(diagnosis: Diagnosis) -> list[Content]:
    """How a program that is right differs in its last bits; empty where it does not."""
    differs = diagnosis.differences and diagnosis.verdict == "healthy"
    return [Note(f"Right, but not to the last bit. {bits_in_words(diagnosis.differences)}")] if differs else []


def sentence(finding: Finding) -> str:
    """What goes wrong, in one sentence."""
    if finding.kind == "wrong_registration":
        return SENTENCES.split(finding.reason)[0]
    if finding.relation:
        return f"Compiled, {finding.relation}."
    what = FAULTS_IN_WORDS.get(finding.kind, finding.kind)
    what = what if finding.backend is None else what.replace("the compiler itself", "the backend")
    subject = short_op(finding.op) if finding.op else "the program"
    backward = ", in the backward pass" if finding.direction == "backward" and "backward" not in what else ""
    return f"Compiled, {subject} {what}{backward}."


def values_in_words(finding: Finding) -> str:
    """What was expected and what came, as a sentence; empty where no values were compared."""
    if finding.worst is None:
        return ""
    words = f"{in_words(finding.worst)}."
    if finding.dossier is not None and finding.proof != "program":  # a piece: its output is not the program's
        return f"In the proof: {words}"
    return words[:1].upper() + words[1:]


def in_short(finding: Finding) -> str:
    """What goes wrong, with the values, and in which stage."""
    values = ": expected {}, got {}".format(*expected_in_words(finding.worst)) if finding.worst is not None else ""
    return f"{sentence(finding).rstrip('.')}{values}. Stage: {finding.stage_name}."


def is_proven(finding: Finding) -> bool:
    """Whether its dossier holds a repro that fails alone."""
    return finding.dossier is not None and finding.proof is not None


def reason_of(finding: Finding) -> tuple[str, str]:
    """The reason with its label, without what `details` tells; empty if that is all."""
    if finding.kind == "wrong_registration":
        return "mend it", " ".join(SENTENCES.split(finding.reason)[1:])
    if finding.kind not in NUMERIC:
        return "error" if finding.kind in CRASHES else "observed", finding.reason
    told = []
    for text in SENTENCES.split(finding.reason):
        clauses = [clause for clause in text.split("; ") if not Z.search(clause)]
        told.append(text if clauses == text.split("; ") else as_sentence("; ".join(clauses)))
    return "observed", " ".join(filter(None, told))


def as_sentence(text: str) -> str:
    """With a period, if it is not empty, and with a capital letter, if it begins with a word."""
    first = text[:1].upper() if WORD.match(text) else text[:1]
    return f"{first}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}" if text else ""


def details(finding: Finding) -> list[str]:
    """Errors in units of noise and what was measured, for those who know what z is; of numbers only."""
    if finding.kind not in NUMERIC:
        return []
    alone, whole = finding.local_z, finding.accumulated_z
    errors = [f"{times(alone)} in this operation alone"] if not alone <= 0 else []
    errors += [f"{times(whole)} in the result of the whole graph"] if not whole <= 0 else []
    clauses = [clause for text in SENTENCES.split(finding.reason) for clause in text.split("; ")]
    measured = [clause.rstrip(".") for clause in clauses if Z.search(clause)]
    return [text for text in ("; ".join(errors), "; ".join(measured)) if text]


def short_op(op: str) -> str:
    """`relu` of `aten.relu.default`."""
    parts = op.split(".")
    return parts[1] if len(parts) > 1 and parts[0] in ("aten", "prims") else op


def times(z: float) -> str:
    """An error in units of noise, in words."""
    if not math.isfinite(z):
        return "more than any rounding explains"
    return f"{'over a million' if z > 1e6 else f'{z:.3g}'} times what rounding explains"


def print_diagnosis(diagnosis: Diagnosis, *, name: str, base: Path | None = None, file: IO[str] | None = None) -> None:
    """Print the diagnosis of what is called `name`; paths below `base`, an absolute one, are relative to it."""
    paper = Paper(console_for(file), width=WIDTH, label=LABEL)
    word, tone, _ = VERDICTS[diagnosis.verdict]
    meaning = meaning_of(diagnosis)
    compiles = diagnosis.compiles  # to look into; the program as its user compiles it is not counted
    graphs = f", {compiles} graph{'s' if compiles > 1 else ''} compiled to look inside" if compiles else ""
    paper.prose(f"{word}: {name}: {meaning} ({diagnosis.seconds:.0f} s{graphs}).", style=f"bold {STYLES[tone]}")
    for number, finding in enumerate(diagnosis.findings, 1):
        folder = near(finding.dossier, base) if finding.dossier is not None else None
        paper.show(Card(f"{number}. {sentence(finding)}", told(finding, lambda at: _place(at, base), folder)))
    rest = [*last_bits(diagnosis), *beside(diagnosis)]
    if rest:
        paper.gap()
        paper.show(rest)


def meaning_of(diagnosis: Diagnosis) -> str:
    """What the verdict says, in words."""
    if diagnosis.verdict != "fault":
        return VERDICTS[diagnosis.verdict][2]
    if diagnosis.findings and all(finding.kind == "not_bitwise" for finding in diagnosis.findings):
        return "the results match within rounding, and not to the last bit"
    count = len(diagnosis.findings)
    return ("one fault appears" if count == 1 else f"{count} faults appear") + " only when it is compiled"


def print_end(
    diagnoses: Sequence[Diagnosis],
    *,
    verdict: str,
    name: str,
    target: Sequence[str],
    calls: Sequence[CallsLookedAt] = (),
    base: Path | None = None,
    file: IO[str] | None = None,
) -> None:
    """Print the last lines of everything: the verdict, and of the first fault where it is and how to see it.

    Args:
        diagnoses: each printed already.
        verdict: of all of them together, "healthy", "fault" or "undecided".
        name: of what was diagnosed, with how many of what where they are several.
        target: what was diagnosed, as it was typed.
        calls: of each function of a script, which of its calls the verdict is about.
        base, file: as for `print_diagnosis`.
    """
    findings = [finding for diagnosis in diagnoses for finding in diagnosis.findings]
    word, tone, _ = VERDICTS[verdict]
    facts: list[tuple[str, str]] = []
    follow = ["graphprobe", "explain" if verdict == "healthy" else "run", *target]
    if any(diagnosis.unfinished for diagnosis in diagnoses):
        follow = ["graphprobe", "diagnose", *target]
    elif all(diagnosis.compiled_nothing for diagnosis in diagnoses):
        follow = ["graphprobe", "explain", *target]
    if findings:
        first = foremost(findings)
        place = [near(first.line, base) if first.line else "", f"in {first.module_in_words}" if first.module else ""]
        facts.append(("fault", in_short(first)))
        facts.append(("where", " ".join(part for part in place if part)))
        if is_proven(first):
            dossier = near(str(first.dossier), base)
            repro = str(Path(dossier) / "repro.py")
            facts.append(("proof", f"python {shlex.quote(repro)}"))
            command = "reduce" if first.proof == "piece" else "issue"
            follow = ["graphprobe", command if first.kind != "not_bitwise" else "diagnose", dossier]
            follow = follow if first.kind != "wrong_registration" else ["python", repro]
    elif verdict == "undecided":
        undecided = [note for d in diagnoses if d.verdict == "undecided" for note in d.notes]
        facts.append(("why", next(iter(sorted(undecided, key=lambda note: "budget" not in note)), "")))
    if verdict == "healthy":
        word += extent_in_words(calls)
        facts += [("calls", f"{one.function}: {one.in_words}") for one in calls if len(calls) > 1]
        for one in calls:
            if one.not_finite is not None:
                facts.append(("not finite", f"{one.function}: the result of call {one.not_finite}, uncompiled too"))
            elif one.gradient_not_finite is not None:
                said = f"the gradient of call {one.gradient_not_finite}; the call alone is right"
                facts.append(("not finite", f"{one.function}: {said}"))
    once = "allow more time (--budget)" if follow[1:] == ["diagnose", *target] else ""
    print_closing(f"{word}: {name}", facts, follow=follow, once=once, style=f"bold {STYLES[tone]}", file=file)


def lines_from(diagnosis: Diagnosis) -> list[str]:
    """What was found, finding by finding, or why nothing could be told; empty of a healthy diagnosis."""
    lines: list[str] = []
    for finding in diagnosis.findings:
        lines.append(f"{sentence(finding)} Stage: {finding.stage_name}.")
        lines += [f"  {words}" for words in [values_in_words(finding)] if words]
        rows = facts_of(finding, SourcePlace, finding.dossier).rows
        for label, value in ((label, value) for label, value in rows if not isinstance(value, Folded)):
            first, *further = (line for line, *_ in lines_of(value))
            lines += [f"  {label}: {first}", *(f"    {line}" for line in further)]
    if diagnosis.verdict == "undecided":
        lines += [f"- {_one_line(note)}" for note in diagnosis.notes[:NOTES]]
    return lines


def first_line_from(diagnosis: Diagnosis) -> str:
    """The first finding in one line, with the program's line; the first note of an undecided diagnosis."""
    for finding in diagnosis.findings:
        place = f" at {finding.line}" if finding.line else ""
        return f"{sentence(finding).rstrip('.')}{place}. Stage: {finding.stage_name}."
    return _one_line(diagnosis.notes[0]) if diagnosis.notes else ""


def repros_from(diagnosis: Diagnosis) -> list[str]:
    """The script of each finding that has a proof."""
    return [str(Path(str(f.dossier)) / "repro.py") for f in diagnosis.findings if is_proven(f)]


def _place(source: str, base: Path | None) -> SourcePlace:
    file, _, number = source.rpartition(":")
    line = linecache.getline(file, int(number)).strip() if file and number.isdecimal() else ""
    return SourcePlace(near(source, base), line=line)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= NOTE_LENGTH else line[: NOTE_LENGTH - 1] + "…"
