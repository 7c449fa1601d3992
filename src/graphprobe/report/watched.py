"""A watched run in words: what the first trigger has led to, and the last observations before it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import IO, Any

import msgspec

from graphprobe.report.document import Code, Content, DocumentVerdict, Facts, Grid, Section, SourcePlace
from graphprobe.report.terminal import Paper, console_for, grid_lines, near, print_closing
from graphprobe.store import layout
from graphprobe.store.files import read_file
from graphprobe.store.reader import Run
from graphprobe.store.watch_file import StepObservation, WatchAnswer, read_answer, read_observations

WIDTH, LABEL = 100, 14

SHOWN, SHOWN_ON_PAGE, MOST_DRAWN = 5, 50, 1000
"""Observations that are shown on a terminal and on a page, and those that are drawn: the last ones."""

UNCOMPILED = {
    "yes": "the uncompiled program does it, too: the compiler is not to blame",
    "no": "the uncompiled program does not do it: torch.compile is to blame",
    "unknown": "whether the uncompiled program does it, too, is not known",
}

KINDS = {
    "nan": "NOT FINITE",
    "spike": "SPIKE",
    "shadow": "WRONG VALUES",
    "exception": "EXCEPTION",
    "signal": "SIGNAL",
    "drift": "DRIFT",
}


def facts_of_answer(answer: WatchAnswer, base: Path | None = None) -> list[tuple[str, Content]]:
    """What is known of a step that went wrong, by labels; what is not known is left out."""
    rows: list[tuple[str, Content]] = []
    first = answer.operation
    if first is not None:
        backward = ", in the backward pass" if first.direction == "backward" else ""
        rows.append(("operation", (Code(first.op), backward)))
        rows.append(("your line", SourcePlace(near(first.source, base)) if first.source else ""))
        rows.append(("module", Code(first.module) if first.module else ""))
        rows += [("observed", text) for text in first.problems[:1]]
    if answer.state:
        rows.append(("wrong before", ", ".join(answer.state)))
    if answer.kind != "signal":
        rows.append(("compiler", UNCOMPILED[answer.uncompiled]))
    rows.append(("call", answer.call))
    rows.append(("inputs", Code(near(answer.inputs, base)) if answer.inputs else ""))
    rows.append(("proof", Code(near(answer.dossier, base)) if answer.dossier else ""))
    rows += [("note", note) for note in answer.notes]
    return [(label, content) for label, content in rows if content]


def observations_grid(observations: list[StepObservation], *, most: int = SHOWN) -> Grid:
    """The last observations as a table."""
    rows = [
        [
            str(seen.step) if seen.call is None else f"call {seen.call}",
            _figure(seen.loss),
            _figure(seen.norm),
            "" if seen.finite else "not finite",
        ]
        for seen in observations[-most:]
    ]
    return Grid(["step", "loss", "gradient norm", ""], rows, numbers=(0, 1, 2))


def _figure(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.4g}"


def _name_of(answer: WatchAnswer) -> str:
    return f"{KINDS[answer.kind]} in step {answer.step}" + ("" if answer.rank is None else f" of rank {answer.rank}")


def print_answer(answer: WatchAnswer, *, run: str, base: Path | None = None, file: IO[str] | None = None) -> None:
    """Print what a trigger has led to in the run at `run`; paths below `base`, an absolute one, are relative to it."""
    console = console_for(file)
    paper = Paper(console, width=WIDTH, label=LABEL)
    paper.prose(f"{_name_of(answer)}: {answer.what}.", style="bold red")
    paper.show(Facts(facts_of_answer(answer, base)), indent=3)
    if answer.ring:
        paper.gap()
        for line in grid_lines(observations_grid(answer.ring), indent=3):
            paper.prose(line)
        paper.gap()
    first = answer.operation
    where = f"{first.op} at {near(first.source, base)}" if first is not None and first.source else ""
    facts = [("first", where), ("compiler", UNCOMPILED[answer.uncompiled] if answer.kind != "signal" else "")]
    print_closing(_name_of(answer), facts, follow=["graphprobe", "watch", near(run, base)], style="bold red", file=file)


def print_watched(run: Run, *, base: Path | None = None) -> None:
    """Print what is known of a watched run: its answer, or how it ended and its last observations."""
    answer = read_answer(run)
    if answer is not None:
        print_answer(answer, run=str(run.run_dir), base=base)
        return
    observations = read_observations(run)
    paper = Paper(console_for(), width=WIDTH, label=LABEL)
    paper.prose(ended_in_words(run, observations), style="bold")
    stack = crash_of(run)
    paper.show(Facts([("stack", [*map(Code, stack)])] if stack else []), indent=3)
    paper.gap()
    for line in grid_lines(observations_grid(observations), indent=3):
        paper.prose(line)


def watched_section(run: Run) -> tuple[DocumentVerdict, Section, list[StepObservation]] | None:
    """Verdict and section of a watched run on its page, and what is drawn; None of a run that was not watched."""
    if not (run.tool_dir / layout.WATCH).is_file():
        return None
    answer, seen = read_answer(run), read_observations(run)
    last = math.inf if answer is None else answer.step
    grid = observations_grid(seen if answer is None else answer.ring, most=SHOWN_ON_PAGE)
    drawn = [one for one in seen if one.call is None and one.step <= last][-MOST_DRAWN:]
    if answer is None:
        sentence = ended_in_words(run, seen)
        verdict = DocumentVerdict("good" if run.state == "finished" else "warn", "WATCHED", sentence)
        stack = crash_of(run)
        facts = Facts([("stack", [*map(Code, stack)])] if stack else [])
    else:
        verdict = DocumentVerdict("bad", KINDS[answer.kind], f"{_name_of(answer)}: {answer.what}.")
        facts = Facts(facts_of_answer(answer))
    summary = "the step that went wrong" if answer is not None else "no step went wrong"
    return verdict, Section("watch", "The last steps", body=[facts, grid], summary=summary), drawn


def ended_in_words(run: Run, observations: list[StepObservation]) -> str:
    """How a watched run without an answer ended, and after which step."""
    steps = max((seen.step for seen in observations), default=0)
    words = {
        "running": "the program is running",
        "finished": "the program ended well, and no step went wrong",
        "failed": f"the program ended with {run.manifest.exception}",
        "killed": "the process is gone and did not close the run",
    }
    return f"{run.state.upper()} after step {steps}: {words[run.state]}."


def crash_of(run: Run) -> list[str]:
    """Where Python stood when a fatal signal came, the signal first; empty where none came."""
    try:
        text = read_file(run.tool_dir / layout.CRASH).decode("utf-8", "replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()][:12]


def watched_document(run: Run) -> dict[str, Any]:
    """The JSON of a watched run: state, answer and observations."""
    answer = read_answer(run)
    return {
        "schema": 1,
        "run": str(run.run_dir),
        "state": run.state,
        "crash": crash_of(run),
        "answer": None if answer is None else msgspec.to_builtins(answer),
        "observations": msgspec.to_builtins(read_observations(run)),
    }
