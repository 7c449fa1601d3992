"""The report of a run: what was compiled, what the passes did, what breaks and recompiles, where the time went."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from graphprobe.analysis.breaks import BreakReport
from graphprobe.analysis.breaks_run import report_from_run as breaks_of
from graphprobe.analysis.recompile_run import report_from_run as recompiles_of
from graphprobe.analysis.recompiles import RecompileReport, function_name
from graphprobe.analysis.steps import described
from graphprobe.analysis.steps import report_from_run as steps_of
from graphprobe.errors import ArtifactNotFoundError, GraphprobeError
from graphprobe.report.document import Bullets, Content, DocumentVerdict, Facts, Grid, Muted, Prose, Section, counted
from graphprobe.report.html.flame import Box, flame_section, largest, tree_from_steps
from graphprobe.report.html.launches import launches_section
from graphprobe.report.html.page import Report
from graphprobe.report.html.passes import passes_section
from graphprobe.report.html.run_code import code_section
from graphprobe.report.html.run_parts import breaks_section, graphs_section, recompiles_section
from graphprobe.report.html.sections_dump import report_from as dump_report
from graphprobe.report.html.sources import Sources
from graphprobe.store.reader import Model, Run
from graphprobe.store.steps import read_steps

CALLS = "api_dump"
"""The folder in a run that holds its calls."""

_NUMBERS = "Whether the compiled program computes the right thing, a run does not say: `graphprobe diagnose` does."
_LOGS = "What the compiler did last, and its log: `graphprobe logs RUN`."


def report_from(path: Path, *, source_roots: Sequence[Path] = ()) -> Report:
    """The report of a run folder, or of the newest run in a folder of several.

    Args:
        source_roots: see `sources.Sources`.

    Raises:
        RunNotFoundError, SchemaError: as `Run.open`.
    """
    run = Run.open(path)
    models = run.models()
    manifest = run.manifest
    sources = Sources(Path.cwd(), given=source_roots, recorded=Path(manifest.cwd or "."), since_ns=manifest.started_ns)
    breaks, break_notes = breaks_of(run)
    recompiled = recompiles_of(run)
    try:
        flame, beside = tree_from_steps(read_steps(run), sources)
    except ArtifactNotFoundError:
        flame, beside = Box("compiling"), ""
    calls = _calls(run, sources)
    first: list[Section] = []
    verdict = _verdict(run, models, breaks, recompiled, flame.ns)
    if calls is not None and calls.verdict.tone == "bad" and verdict.tone != "bad":
        first = calls.sections
        verdict = replace(calls.verdict, body=[calls.verdict.body, verdict.body])
    made = [
        breaks_section(breaks, sources),
        recompiles_section(recompiled, sources),
        graphs_section(models, sources),
        passes_section(run, models, sources),
        code_section(run, models, sources),
        launches_section(run, models, sources),
        flame_section(flame, beside),
        _time_table(flame),
        *(calls.sections if calls is not None and not first else []),
        _missing(run, break_notes, recompiled),
    ]
    return Report(
        title=f"graphprobe: {' '.join(map(str, _command(manifest.argv)))}",
        subject=" ".join(shlex.quote(word) for word in _command(manifest.argv)) or run.run_dir.name,
        verdict=verdict,
        sections=[*first, *(section for section in made if section is not None)],
        sources=sources,
        facts=_facts(run),
    )


def _command(argv: Sequence[str]) -> list[str]:
    """The command line without the folder of the program that was called."""
    if not argv:
        return []
    program = Path(argv[0])
    return [program.parent.name if program.name == "__main__.py" else program.name, *argv[1:]]


def _calls(run: Run, sources: Sources) -> Report | None:
    """The report of the calls that `graphprobe run --dump` wrote into the run's folder; None without."""
    folder = run.run_dir / CALLS
    if not folder.is_dir():
        return None
    try:
        return dump_report(folder, sources)
    except GraphprobeError as error:
        run.problems.append(f"{CALLS} cannot be read: {error}")
        return None


def _time_table(flame: Box) -> Section | None:
    """The flame as a list: for a screen reader, and for those who want the figures."""
    if not flame.ns:
        return None
    rows: list[tuple[Content, ...]] = []
    for name, kind, ns, count in largest(flame):
        took = f"{ns / 1e9:.2f} s" if ns >= 1e9 else f"{ns / 1e6:.1f} ms"
        rows.append((took, f"{ns / flame.ns:.1%}", str(count), (f"{name} ", Muted(kind))))
    grid = Grid(("own time", "share", "count", "step"), rows, (0, 1, 2))
    name, _, ns, _ = largest(flame, 1)[0]
    return Section("slowest", "Slowest steps", body=grid, summary=f"{name}, {ns / flame.ns:.1%}")


def _missing(run: Run, notes: Sequence[str], recompiled: RecompileReport) -> Section | None:
    texts = list(dict.fromkeys([*run.manifest.missing, *run.problems, *notes, *recompiled.notes, *run.manifest.notes]))
    if not texts:
        return None
    return Section("missing", "What is missing", body=Bullets(texts), summary=counted(len(texts), "note"))


def _facts(run: Run) -> list[tuple[str, str]]:
    manifest = run.manifest
    rank = f"{manifest.rank} of {manifest.world_size}" if manifest.world_size > 1 else ""
    rows = [
        ("Run", str(run.run_dir)),
        ("Rank", rank),
        ("torch", manifest.torch or "not imported"),
        ("Python", manifest.python),
        ("Platform", manifest.platform),
        ("Devices", ", ".join(manifest.devices)),
        ("Caches bypassed", ", ".join(manifest.caches_bypassed)),
        ("graphprobe", manifest.graphprobe),
    ]
    return [row for row in rows if row[1]]


def _verdict(
    run: Run, models: Sequence[Model], breaks: BreakReport, recompiled: RecompileReport, compile_ns: int
) -> DocumentVerdict:
    """The verdict with its figures; `compile_ns` is 0 where it is not known."""
    verdict = _ended_badly(run, models) or _compiled(run, models, breaks, recompiled)
    figures: list[tuple[str, Content]] = [
        ("graphs compiled", str(len(models))),
        ("graph breaks", str(breaks.break_count)),
        ("recompilations", str(recompiled.recompilations)),
        ("time compiling", f"{compile_ns / 1e9:.1f} s" if compile_ns else "not known"),
    ]
    body: list[Content] = [Facts(figures, large=True), Prose(_LOGS if verdict.tone == "bad" else _NUMBERS)]
    if run.manifest.world_size > 1:
        rank = f"This is rank {run.manifest.rank} of {run.manifest.world_size}"
        body.append(f"{rank}; each has a run folder of its own.")
    return replace(verdict, body=body)


def _ended_badly(run: Run, models: Sequence[Model]) -> DocumentVerdict | None:
    culprit = steps_of(run).culprit
    where = f" It was in this step: {described(culprit)}." if culprit is not None else ""
    if run.state == "failed":
        return DocumentVerdict("bad", "FAILED", f"The program ended with {_head(run.manifest.exception)}.{where}")
    if run.state == "killed":
        return DocumentVerdict("bad", "KILLED", f"The process is gone and did not close the run.{where}")
    failures = [event for event in run.events() if event.kind == "failure"]
    if failures:
        what = f"{failures[0].where.pass_name or failures[0].name} raised {_head(failures[0].message)}"
        return DocumentVerdict("bad", "COMPILE FAILED", f"The program ran to its end, but {what}.")
    # What was started over failed on the way, and that is how tracing goes.
    restarted = {model.compile.get("restart_of") for model in models}
    failed = [model for model in models if model.compile.get("failure") and model.number not in restarted]
    if failed:
        name = function_name(str(failed[0].compile.get("function") or "a function"))
        what = _head(str(failed[0].compile["failure"]))
        return DocumentVerdict(
            "bad", "COMPILE FAILED", f"The program ran to its end, but {name} was not compiled: {what}."
        )
    if run.state == "running":
        return DocumentVerdict("info", "RUNNING", "The program was still running when this was written.")
    return None


def _compiled(run: Run, models: Sequence[Model], breaks: BreakReport, recompiled: RecompileReport) -> DocumentVerdict:
    if not models:
        return DocumentVerdict("warn", "NOTHING COMPILED", "The program ended, and nothing was given to a backend.")
    counts = [
        (breaks.break_count, "graph break", "graph breaks"),
        (recompiled.recompilations, "recompilation", "recompilations"),
        (len(breaks.own_uncompiled), "function left uncompiled", "functions left uncompiled"),
    ]
    found = [f"{number} {one if number == 1 else many}" for number, one, many in counts if number]
    graphs = "1 graph was" if len(models) == 1 else f"{len(models)} graphs were"
    if found:
        listed = found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"
        each = "which costs" if listed.startswith("1 ") and len(found) == 1 else "each of which costs"
        return DocumentVerdict("warn", "COULD BE FASTER", f"{graphs} compiled, with {listed}, {each} time.")
    if run.manifest.missing or run.problems:
        return DocumentVerdict("warn", "INCOMPLETE", f"{graphs} compiled; some of what was to be collected is missing.")
    return DocumentVerdict("good", "COMPILED", f"{graphs} compiled: no graph break, no recompilation, nothing missing.")


def _head(text: str | None) -> str:
    """The first line of an exception; the second one too where the first announces it."""
    lines = [line.strip() for line in (text or "").strip().splitlines() if line.strip()] or ["an exception"]
    head = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return head[:300].rstrip(".")
