"""A diagnosis in a few lines, for the message of a failing test. Reads the dict of `to_json`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphprobe.report.diagnosis import details, is_proven, reason_of, sentence, values_in_words

NOTES = 5
"""Notes of an undecided diagnosis that are shown."""

NOTE_LENGTH = 300


def lines_from(diagnosis: Mapping[str, Any]) -> list[str]:
    """What was found, finding by finding, or why nothing could be told; empty of a healthy diagnosis."""
    lines: list[str] = []
    for finding in diagnosis["findings"]:
        lines.append(f"{sentence(finding)} Stage: {finding['stage']}.")
        lines += [f"  {words}" for words in [values_in_words(finding)] if words]
        lines += [f"  {label}: {text}" for label, text in _facts(finding) if text]
    if diagnosis["verdict"] == "undecided":
        lines += [f"- {_one_line(note)}" for note in diagnosis["notes"][:NOTES]]
    return lines


def first_line_from(diagnosis: Mapping[str, Any]) -> str:
    """The first finding in one line, with the program's line; the first note of an undecided diagnosis."""
    for finding in diagnosis["findings"]:
        place = f" at {finding['source']}" if finding["source"] else ""
        return f"{sentence(finding).rstrip('.')}{place}. Stage: {finding['stage']}."
    return _one_line(diagnosis["notes"][0]) if diagnosis["notes"] else ""


def repros_from(diagnosis: Mapping[str, Any]) -> list[str]:
    """The script of each finding that has a proof."""
    return [str(Path(f["dossier"]) / "repro.py") for f in diagnosis["findings"] if is_proven(f)]


def _facts(finding: Mapping[str, Any]) -> list[tuple[str, str]]:
    operation = finding["op"] or ""
    if operation and finding["node"]:
        operation += f", node {finding['node']}"
    dossier = finding["dossier"] or ""
    proof = dossier if is_proven(finding) else ""
    return [
        ("pass", finding["pass"] or ""),
        ("operation", operation),
        ("line", finding["source"] or ""),
        ("module", finding["module"] or ""),
        reason_of(finding),
        ("dossier", dossier),
        ("see it", f"python {shlex.quote(str(Path(proof) / 'repro.py'))}" if proof else ""),
        *(("details", text) for text in details(finding)),
    ]


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= NOTE_LENGTH else line[: NOTE_LENGTH - 1] + "…"
