"""The report of a profile of `graphprobe profile`: where compile time went."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from graphprobe.analysis.timing import TimingSummary, summary_of
from graphprobe.analysis.timing_records import read_profile
from graphprobe.report.document import DocumentVerdict, Section, Tone
from graphprobe.report.html.flame import flame_section, tree_from_profile
from graphprobe.report.html.page import Report
from graphprobe.report.html.sources import Sources
from graphprobe.report.profile import grids_of, head_lines

TITLES = {"phases": "Phases, by time of their own", "passes": "Passes", "functions": "Functions"}
IDS = {"passes": "pass-times"}
"""Titles of the tables, and ids of their sections where these are named otherwise."""

MOST = 40
"""Rows of a table."""


def report_from(path: Path, *, source_roots: Sequence[Path] = ()) -> Report:
    """The report of a profile; `source_roots` as `sources.Sources` has them.

    Raises:
        UsageError: it is none.
    """
    profile = read_profile(path)
    summary = summary_of(profile)
    sources = Sources(Path.cwd(), given=source_roots)
    tone, word, sentence = _judged(summary, profile.error)
    counts = {"phases": len(summary.phases), "passes": len(summary.passes), "functions": len(summary.functions)}
    made = [
        flame_section(tree_from_profile(profile, sources)),
        *(
            Section(IDS.get(name, name), TITLES[name], body=grid, summary=str(counts[name]))
            for name, grid in grids_of(summary, top=MOST, place=sources.place).items()
        ),
    ]
    return Report(
        title=f"graphprobe: compile time of {profile.program or path.name}",
        subject=profile.program or str(path),
        verdict=DocumentVerdict(tone, word, sentence, list(head_lines(profile, summary)[1:])),
        sections=[section for section in made if section is not None],
        sources=sources,
        facts=[("torch", profile.torch), ("Python", profile.python), ("graphprobe", profile.graphprobe)],
    )


def _judged(summary: TimingSummary, error: str | None) -> tuple[Tone, str, str]:
    if error is not None:
        return "bad", "FAILED", f"The program ended with {error}"
    if not summary.compile_ns:
        return "warn", "NOTHING COMPILED", "The program ended, and nothing was compiled."
    slowest = summary.phases[0] if summary.phases else None
    where = f", most of it in {slowest.name} ({slowest.self_ns / summary.compile_ns:.0%})" if slowest else ""
    return "info", "COMPILE TIME", f"Compiling took {summary.compile_ns / 1e9:.1f} s{where}."
