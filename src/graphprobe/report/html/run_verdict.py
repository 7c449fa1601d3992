"""What a run comes to, in one sentence: how it ended, what failed, and what costs time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphprobe.analysis.breaks import BreakReport
from graphprobe.analysis.recompiles import RecompileReport, function_name
from graphprobe.analysis.steps import described
from graphprobe.analysis.steps import report_from_run as steps_of
from graphprobe.report.document import Content, Facts, Prose, Verdict
from graphprobe.store.reader import Model, Run

_NUMBERS = "Whether the compiled program computes the right thing, a run does not say: `graphprobe diagnose` does."
_LOGS = "What the compiler did last, and its log: `graphprobe logs RUN`."


def verdict_of(
    run: Run, models: Sequence[Model], breaks: BreakReport, recompiled: RecompileReport, compile_ns: int
) -> Verdict:
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


def _ended_badly(run: Run, models: Sequence[Model]) -> Verdict | None:
    culprit = steps_of(run).culprit
    where = f" It was in this step: {described(culprit)}." if culprit is not None else ""
    if run.state == "failed":
        return Verdict("bad", "FAILED", f"The program ended with {_head(run.manifest.exception)}.{where}")
    if run.state == "killed":
        return Verdict("bad", "KILLED", f"The process is gone and did not close the run.{where}")
    failures = [event for event in run.events() if event.kind == "failure"]
    if failures:
        what = f"{failures[0].where.pass_name or failures[0].name} raised {_head(failures[0].message)}"
        return Verdict("bad", "COMPILE FAILED", f"The program ran to its end, but {what}.")
    # What was started over failed on the way, and that is how tracing goes.
    restarted = {model.compile.get("restart_of") for model in models}
    failed = [model for model in models if model.compile.get("failure") and model.number not in restarted]
    if failed:
        name = function_name(str(failed[0].compile.get("function") or "a function"))
        what = _head(str(failed[0].compile["failure"]))
        return Verdict("bad", "COMPILE FAILED", f"The program ran to its end, but {name} was not compiled: {what}.")
    if run.state == "running":
        return Verdict("info", "RUNNING", "The program was still running when this was written.")
    return None


def _compiled(run: Run, models: Sequence[Model], breaks: BreakReport, recompiled: RecompileReport) -> Verdict:
    if not models:
        return Verdict("warn", "NOTHING COMPILED", "The program ended, and nothing was given to a backend.")
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
        return Verdict("warn", "COULD BE FASTER", f"{graphs} compiled, with {listed}, {each} time.")
    if run.manifest.missing or run.problems:
        return Verdict("warn", "INCOMPLETE", f"{graphs} compiled; some of what was to be collected is missing.")
    return Verdict("good", "COMPILED", f"{graphs} compiled: no graph break, no recompilation, nothing missing.")


def _head(text: str | None) -> str:
    """The first line of an exception; the second one too where the first announces it."""
    lines = [line.strip() for line in (text or "").strip().splitlines() if line.strip()] or ["an exception"]
    head = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return head[:300].rstrip(".")
