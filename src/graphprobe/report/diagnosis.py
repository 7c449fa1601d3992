"""A diagnosis told in words, for people who have never looked inside a compiler: what every face says of it."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from graphprobe.findings import Diagnosis, Finding, expected_in_words, in_words
from graphprobe.report.document import Bullets, Code, Command, Content, Excerpt, Facts, Folded, Note, SourcePlace, Tone

VERDICTS: dict[str, tuple[str, Tone, str]] = {
    "healthy": ("HEALTHY", "good", "compiled, it computes the same as uncompiled, as far as rounding allows"),
    "fault": ("FAULT", "bad", ""),
    "undecided": ("UNDECIDED", "warn", "it could not be told whether compiling changes the results"),
}

KINDS = {
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
}

PLACES = 8
"""Places of one fault that are told; all are in the JSON."""

LATENT = 6
"""Latent disagreements that are told; all are in the JSON."""

NUMERIC = ("wrong_value", "wrong_gradient", "nonfinite", "lost_mutation")
"""Kinds whose error has a size."""

SENTENCES, Z = re.compile(r"(?<=[.!?]) (?=[A-Z])"), re.compile(r"\bz\b")
"""What a reason consists of, and what a sentence of it has that gives an error in units of noise."""

SEE_IT = "exits 1 while the fault is there, 0 once it is gone; needs torch only"

CRASHES = ("crash_compile", "crash_runtime", "segfault", "hang", "unsupported")
"""Kinds whose reason is what torch, the compiler or the operating system says."""

STAGES = {
    "dynamo": "reading the Python code (Dynamo), where the program is recorded as a graph of operations",
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


def told(finding: Finding, place: Callable[[str], SourcePlace], folder: str | None) -> list[Content]:
    """What is known of a finding, below its `sentence`: values, stage, where it is, how sure that is, how to see it.

    Args:
        place: of a `file:line` of the program, the form in which the face shows it.
        folder: the dossier, as it is to be named; None where there is none, or it is not at hand.
    """
    where = f"It goes wrong in {STAGES.get(finding.stage, finding.stage)}."
    if finding.stage == "unknown":
        where = "Which stage of the compiler is to blame could not be told."
    texts: list[Content] = [text for text in (values_in_words(finding), where) if text]
    if not is_proven(finding):
        texts.append("No program that shows it by itself could be made.")
    elif folder is None:
        texts.append(f"The proof, {finding.dossier}, is not at hand.")
    return [*texts, facts_of(finding, place, folder)]


def facts_of(finding: Finding, place: Callable[[str], SourcePlace], folder: str | None) -> Facts:
    """The labelled part of what `told` gives."""
    rows: list[tuple[str, Content]] = []
    if finding.source:
        at = place(finding.source)
        rows.append(("your line", [at, Excerpt(at.line)]))
    if finding.module:
        rows.append(("module", Code(finding.module)))
    for one in finding.places[1:PLACES]:
        source, word, module = one.partition(" in ")
        rows.append(("and at", (place(source), word, module)))
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
        rows.append(("report it", Code(str(Path(folder) / "REPORT.md"))))
    elif folder is not None:
        rows.append(("kept in", Code(folder)))
    if measured := details(finding):
        rows.append(("details", Folded("what was measured", list(measured))))
    return Facts(rows)


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
        error, node = _number(diagnosis.largest_z.z), Code(diagnosis.largest_z.node)
        text = f"Largest error among the operations that passed: {error} times what rounding explains, at "
        blocks.append(Note((text, node, ".")))
    if diagnosis.notes:
        blocks.append(Bullets(diagnosis.notes, "What could not be checked, and other notes", "warn"))
    return blocks


def sentence(finding: Finding) -> str:
    """What goes wrong, in one sentence."""
    what = KINDS.get(finding.kind, finding.kind)
    subject = short_op(finding.op) if finding.op else "the program"
    backward = ", in the backward pass" if finding.direction == "backward" and "backward" not in what else ""
    return f"Compiled, {subject} {what}{backward}."


def values_in_words(finding: Finding) -> str:
    """What was expected and what came, as a sentence; empty where no values were compared, and of older JSON."""
    if finding.worst is None:
        return ""
    words = f"{in_words(finding.worst)}."
    if finding.dossier is not None and finding.proof != "program":  # a piece: its output is not the program's
        return f"In the proof: {words}"
    return words[:1].upper() + words[1:]


def in_short(finding: Finding) -> str:
    """What goes wrong, with the values, and in which stage."""
    values = ": expected {}, got {}".format(*expected_in_words(finding.worst)) if finding.worst is not None else ""
    return f"{sentence(finding).rstrip('.')}{values}. Stage: {finding.stage}."


def is_proven(finding: Finding) -> bool:
    """Whether its dossier holds a repro that fails alone."""
    return finding.dossier is not None and finding.proof is not None


def reason_of(finding: Finding) -> tuple[str, str]:
    """The reason with its label, without what `details` tells; empty if that is all."""
    if finding.kind not in NUMERIC:
        return "error" if finding.kind in CRASHES else "observed", finding.reason
    told = []
    for text in SENTENCES.split(finding.reason):
        clauses = [clause for clause in text.split("; ") if not Z.search(clause)]
        told.append(text if clauses == text.split("; ") else as_sentence("; ".join(clauses)))
    return "observed", " ".join(filter(None, told))


def as_sentence(text: str) -> str:
    """With a capital letter and a period, if it is not empty."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}" if text else ""


def details(finding: Finding) -> list[str]:
    """Errors in units of noise and what was measured, for those who know what z is; of numbers only."""
    if finding.kind not in NUMERIC:
        return []
    errors = [
        times(z) + where
        for z, where in (
            (finding.local_z, " in this operation alone"),
            (finding.accumulated_z, " in the result of the whole graph"),
        )
        if not z <= 0
    ]
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
    return f"{'over a million' if z > 1e6 else _number(z)} times what rounding explains"


def _number(z: float) -> str:
    return f"{z:.3g}"
