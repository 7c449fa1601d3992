"""A diagnosis told in words, for people who have never looked inside a compiler. Reads the dict of `to_json`."""

from __future__ import annotations

import linecache
import math
import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from graphprobe.findings import Worst, expected_in_words, in_words, read_document
from graphprobe.report.closing import print_closing
from graphprobe.report.terminal import Console, Text, console_for

WIDTH = 80
"""Prose is broken here. Paths and commands stand on lines of their own, whole, so that they can be copied."""

VERDICTS = {
    "healthy": ("HEALTHY", "green", "compiled, it computes the same as uncompiled, as far as rounding allows"),
    "fault": ("FAULT", "red", ""),
    "undecided": ("UNDECIDED", "yellow", "it could not be told whether compiling changes the results"),
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


def print_diagnosis(
    diagnosis: Mapping[str, Any], *, name: str, base: Path | None = None, file: IO[str] | None = None
) -> None:
    """Print a diagnosis.

    Args:
        diagnosis: as `Diagnosis.to_json` gives it.
        name: of what was diagnosed.
        base: absolute; paths below it are shown relative to it.
        file: standard output by default.
    """
    story = _Story(console_for(file), base)
    story.verdict(diagnosis, name)
    for number, finding in enumerate(diagnosis["findings"], 1):
        story.finding(number, finding)
    story.rest(diagnosis)


def print_end(
    diagnoses: Sequence[Mapping[str, Any]],
    *,
    verdict: str,
    name: str,
    base: Path | None = None,
    file: IO[str] | None = None,
) -> None:
    """Print the last lines of everything: the verdict, and of the first fault where it is and how to see it.

    Args:
        diagnoses: as for `print_diagnosis`, each told already.
        verdict: of all of them together, "healthy", "fault" or "undecided".
        name: of what was diagnosed, with how many of what where they are several.
        base, file: as for `print_diagnosis`.
    """
    story = _Story(console_for(file), base)
    findings = [finding for diagnosis in diagnoses for finding in diagnosis["findings"]]
    word, style, _ = VERDICTS[verdict]
    facts: list[tuple[str, str]] = []
    if findings:
        # The one that comes with a proof says most.
        first = next((finding for finding in findings if is_proven(finding)), findings[0])
        source = story.path(first["source"]) if first["source"] else ""
        place = [source, f"in {first['module']}" if first["module"] else ""]
        facts.append(("fault", in_short(first)))
        facts.append(("where", " ".join(part for part in place if part)))
        if is_proven(first):
            dossier = story.path(first["dossier"])
            facts.append(("proof", f"python {shlex.quote(str(Path(dossier) / 'repro.py'))}"))
            facts.append(("next", f"graphprobe reduce {shlex.quote(dossier)}"))
    elif verdict == "undecided":
        facts.append(("why", next((note for d in diagnoses for note in d["notes"]), "")[:WIDTH]))
    print_closing(f"{word}: {name}", facts, style=f"bold {style}", file=file)


class _Story:
    """Prints paragraphs and labelled facts."""

    def __init__(self, console: Console, base: Path | None) -> None:
        self.console, self.base = console, base

    def path(self, path: str) -> str:
        """As short as it can be and still lead there."""
        below = self.base is not None and Path(path).is_relative_to(self.base)
        return str(Path(path).relative_to(self.base)) if self.base is not None and below else path

    def verdict(self, diagnosis: Mapping[str, Any], name: str) -> None:
        word, style, meaning = VERDICTS[diagnosis["verdict"]]
        found = len(diagnosis["findings"])
        if diagnosis["verdict"] == "fault":
            meaning = "one fault appears" if found == 1 else f"{found} faults appear"
            meaning += " only when it is compiled"
        count = diagnosis["compiles"]  # to look into; the program as its user compiles it is not counted
        graphs = f", {count} graph{'s' if count > 1 else ''} compiled to look inside" if count else ""
        text = f"{word}: {name}: {meaning} ({diagnosis['seconds']:.0f} s{graphs})."
        self.prose(text, style=f"bold {style}")

    def finding(self, number: int, finding: Mapping[str, Any]) -> None:
        self.console.print()
        self.prose(f"{number}. {sentence(finding)}", indent=0, hang=3, style="bold")
        if values_in_words(finding):
            self.prose(values_in_words(finding), indent=3)
        stage = STAGES.get(finding["stage"], finding["stage"])
        if finding["stage"] == "unknown":
            self.prose("Which stage of the compiler is to blame could not be told.", indent=3)
        else:
            self.prose(f"It goes wrong in {stage}.", indent=3)
        if finding["pass"]:
            self.fact("pass", finding["pass"])
        if finding["op"]:
            self.fact("operation", finding["op"] + (f", node {finding['node']}" if finding["node"] else ""))
        if finding["also"]:
            self.fact("may also be", ", ".join(finding["also"]))
        if finding["kernel"]:
            self.fact("kernel", finding["kernel"], whole=True)
        if finding["source"]:
            self.fact("your line", self.path(finding["source"]), whole=True)
            line = _line_at(finding["source"])
            if line:
                self.fact("", line, whole=True, style="cyan")
        if finding["module"]:
            self.fact("module", finding["module"], whole=True)
        for place in finding.get("places", [])[1:PLACES]:
            self.fact("and at", self.path(place), whole=True)
        if len(finding.get("places", [])) > PLACES:
            self.fact("", f"and {len(finding['places']) - PLACES} more places")
        if finding["flaky_rate"] < 1:
            self.fact("flaky", f"it failed in {finding['flaky_rate']:.0%} of the repeats, not in all")
        label, reason = reason_of(finding)
        if reason:
            self.fact(label, reason)
        self.proof(finding)
        for i, detail in enumerate(details(finding)):
            self.fact("" if i else "details", detail)

    def proof(self, finding: Mapping[str, Any]) -> None:
        dossier = self.path(finding["dossier"]) if finding["dossier"] is not None else None
        if not is_proven(finding) or dossier is None:
            self.prose("No program that shows it by itself could be made.", indent=3)
            if dossier is not None:
                self.fact("kept in", dossier, whole=True)
            return
        self.fact("proof", dossier, whole=True)
        self.fact("see it", f"python {shlex.quote(str(Path(dossier) / 'repro.py'))}", whole=True, style="cyan")
        self.fact("", "(exits 1 while the fault is there, 0 once it is gone)")
        self.fact("report it", str(Path(dossier) / "REPORT.md"), whole=True)

    def rest(self, diagnosis: Mapping[str, Any]) -> None:
        largest = diagnosis["largest_z"]
        latent = diagnosis.get("latent", [])
        if diagnosis["ruled_out"] or largest["node"] is not None or diagnosis["notes"] or latent:
            self.console.print()
        if latent:
            told = "Latent: what disagrees inside, and shows in nothing that the program gives or leaves behind:"
            self.prose(told if diagnosis["verdict"] == "healthy" else "Suspected inside, and not proven to matter:")
            for one in latent[:LATENT]:
                place = one["source"] or one["node"] or "source unknown"
                self.prose(f"- {one['stage']}: {one['op']} at {place}: {one['reason']}", indent=2, hang=2)
            if len(latent) > LATENT:
                self.prose(f"- and {len(latent) - LATENT} more, in the JSON", indent=2, hang=2)
        if diagnosis["ruled_out"]:
            self.prose("What was checked and is right:")
            for text in diagnosis["ruled_out"]:
                self.prose(f"- {text}", indent=2, hang=2)
        if largest["node"] is not None:
            share = f"{_number(largest['z'])} times what rounding explains, at {largest['node']}"
            self.prose(f"Largest error among the operations that passed: {share}.")
        if diagnosis["notes"]:
            self.prose("What could not be checked, and other notes:")
            for text in diagnosis["notes"]:
                self.prose(f"- {text}", indent=2, hang=2)

    def prose(self, text: str, *, indent: int = 0, hang: int = 0, style: str = "") -> None:
        """Paragraphs, wrapped between words. Words that are longer than a line, as paths are, stay whole."""
        for paragraph in text.splitlines() or [""]:
            lines = textwrap.wrap(
                paragraph,
                WIDTH,
                initial_indent=" " * indent,
                subsequent_indent=" " * (indent + hang),
                break_long_words=False,
                break_on_hyphens=False,
            )
            for line in lines:
                self.console.print(Text(line, style))

    def fact(self, label: str, text: str, *, whole: bool = False, style: str = "") -> None:
        """`label: text`, wrapped below itself; with `whole` in one line, however long."""
        head = f"   {label + ':' if label else '':<{LABEL}}"
        room = WIDTH - len(head)
        lines = [text] if whole else textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
        for i, line in enumerate(lines or [""]):
            self.console.print(Text.assemble((head if i == 0 else " " * len(head), "dim"), (line, style)))


LABEL = 13
"""Columns of a label with its colon."""


def sentence(finding: Mapping[str, Any]) -> str:
    """What goes wrong, in one sentence."""
    what = KINDS.get(finding["kind"], finding["kind"])
    subject = f"{short_op(finding['op'])}" if finding["op"] else "the program"
    backward = ", in the backward pass" if finding["direction"] == "backward" and "backward" not in what else ""
    return f"Compiled, {subject} {what}{backward}."


def values_in_words(finding: Mapping[str, Any]) -> str:
    """What was expected and what came, as a sentence; empty where no values were compared, and of older JSON."""
    worst = _worst(finding)
    if worst is None:
        return ""
    words = f"{in_words(worst)}."
    if finding["dossier"] is not None and finding.get("proof") != "program":  # a piece: its output is not the program's
        return f"In the proof: {words}"
    return words[:1].upper() + words[1:]


def in_short(finding: Mapping[str, Any]) -> str:
    """What goes wrong, with the values, and in which stage."""
    worst = _worst(finding)
    values = ": expected {}, got {}".format(*expected_in_words(worst)) if worst is not None else ""
    return f"{sentence(finding).rstrip('.')}{values}. Stage: {finding['stage']}."


def _worst(finding: Mapping[str, Any]) -> Worst | None:
    worst = finding.get("worst")
    return read_document(worst, Worst) if worst is not None else None


def is_proven(finding: Mapping[str, Any]) -> bool:
    """Whether its dossier holds a repro that fails alone; files of 0.1 do not say so, and had no others."""
    return finding["dossier"] is not None and finding.get("proof", "piece") is not None


def reason_of(finding: Mapping[str, Any]) -> tuple[str, str]:
    """The reason with its label, without what `details` tells; empty if that is all."""
    if finding["kind"] not in NUMERIC:
        return "error" if finding["kind"] in CRASHES else "observed", finding["reason"]
    told = []
    for text in SENTENCES.split(finding["reason"]):
        clauses = [clause for clause in text.split("; ") if not Z.search(clause)]
        told.append(text if clauses == text.split("; ") else as_sentence("; ".join(clauses)))
    return "observed", " ".join(filter(None, told))


def as_sentence(text: str) -> str:
    """With a capital letter and a period, if it is not empty."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}" if text else ""


def details(finding: Mapping[str, Any]) -> list[str]:
    """Errors in units of noise and what was measured, for those who know what z is; of numbers only."""
    if finding["kind"] not in NUMERIC:
        return []
    errors = [
        times(finding[key]) + where
        for key, where in (
            ("local_z", " in this operation alone"),
            ("accumulated_z", " in the result of the whole graph"),
        )
        if _is_error(finding[key])
    ]
    clauses = [clause for text in SENTENCES.split(finding["reason"]) for clause in text.split("; ")]
    measured = [clause.rstrip(".") for clause in clauses if Z.search(clause)]
    return [text for text in ("; ".join(errors), "; ".join(measured)) if text]


def short_op(op: str) -> str:
    """`relu` of `aten.relu.default`."""
    parts = op.split(".")
    return parts[1] if len(parts) > 1 and parts[0] in ("aten", "prims") else op


def _is_error(z: float | str) -> bool:
    """Infinity and NaN are texts in JSON."""
    return not float(z) <= 0


def times(z: float | str) -> str:
    """An error in units of noise, in words."""
    z = float(z)
    if not math.isfinite(z):
        return "more than any rounding explains"
    return f"{'over a million' if z > 1e6 else _number(z)} times what rounding explains"


def _number(z: float | str) -> str:
    return f"{float(z):.3g}"


def _line_at(source: str) -> str:
    """The text of `file:line`; empty when it cannot be read."""
    file, _, number = source.rpartition(":")
    return linecache.getline(file, int(number)).strip() if file and number.isdecimal() else ""
