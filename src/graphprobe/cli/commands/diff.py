"""`graphprobe diff`: what a pass did, how two graphs differ, or where two runs part."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import get_args

import click
import msgspec

from graphprobe.cli.shared_options import JsonCommand, JsonTo, json_option
from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, RunNotFoundError, UsageError
from graphprobe.records import Direction
from graphprobe.report.document import counted
from graphprobe.report.graph_diff import DiffSide, GraphDiff, diff_sides, print_diff, side_of
from graphprobe.report.run_diff import RunDiff, diff_runs, stage_text, told, verdict
from graphprobe.report.terminal import print_closing, print_lines
from graphprobe.report.visible import echo
from graphprobe.store import layout
from graphprobe.store.reader import Run


@click.command(cls=JsonCommand)
@click.argument("words", nargs=-1, metavar="[RUN [RUN_B]] | [RUN] ADDRESS_A ADDRESS_B")
@click.option("--pass", "pass_name", metavar="NAME", help="Name of the pass. NAME#2 is its second run.")
@click.option("--at", metavar="ADDRESS", help="With two runs: compare this artifact of each.")
@click.option("--model", type=click.IntRange(min=0), help="Only in model__N.")
@click.option("--direction", type=click.Choice(get_args(Direction)), help="Only in this direction.")
@json_option
def command(
    words: tuple[str, ...],
    pass_name: str | None,
    at: str | None,
    model: int | None,
    direction: Direction | None,
    json_to: JsonTo,
) -> int:
    """Show what a pass did to the graph, or where two runs part.

    With two runs, name the first stage or pass that differs, and each setting of the compilers that does. The runs may
    be of two versions of torch, or of two options. --at ADDRESS then shows that stage node by node.

    With one RUN, show what every pass changed; with --pass, what that one did, each time. With --pass and two runs,
    compare the graph after the pass in each. With two addresses, compare two artifacts of one run. RUN defaults to the
    newest run in torch_compile_debug. Nodes are paired by what they compute, so a rename is shown as a rename.

    Exit codes: 0 no difference, 1 a difference, 2 wrong usage, 125 a part of a run could not be compared.

    \b
    Examples:
      graphprobe diff torch_compile_debug
      graphprobe diff --pass joint_graph_passes --model 0
      graphprobe diff torch_compile_debug model__0/forward/original model__0/forward/optimized
      graphprobe diff before_upgrade/ after_upgrade/
      graphprobe diff before_upgrade/ after_upgrade/ --pass joint_graph_passes
      graphprobe diff before_upgrade/ after_upgrade/ --at model__0/forward/optimized
    """
    if pass_name is not None and at is not None:
        raise UsageError("--pass and --at exclude each other", hint="--at takes the address of a pass, too")
    if at is None and len(words) < 2 and (pass_name is not None or _is_run(words)):
        return _show_passes(words[0] if words else layout.ROOT, pass_name, model, direction, json_to)
    if pass_name is not None:
        before, after = _sides_of_pass(words, pass_name, model, direction)
    else:
        if model is not None or direction is not None:
            raise UsageError("--model and --direction go with --pass; addresses say it themselves")
        runs = _two_runs(words)
        if at is None and runs is not None:
            return _compare_runs(words, runs, json_to)
        before, after = _sides_of_addresses(words) if at is None else _sides_at(words, runs, at)
    run = words[0] if len(words) == 3 or (words and (pass_name or at)) else layout.ROOT
    return _show([(before, after)], run, json_to)


def _is_run(words: tuple[str, ...]) -> bool:
    with suppress(RunNotFoundError):
        return len(words) == 1 and bool(Run.open(words[0]))
    return False


def _show_passes(
    word: str, pass_name: str | None, model: int | None, direction: Direction | None, json_to: JsonTo
) -> int:
    """What the pass did, each time that it changed a graph; without a name, what every pass did."""
    run, sides = Run.open(word), []
    for pair in run.changes(pass_name, model=model, direction=direction):
        after = pair.after.path if pair.after is not pair.before else f"{pair.before.path} (the pass changed nothing)"
        sides.append((side_of(run, pair.before), side_of(run, pair.after, str(after))))
    return _show(sides, word, json_to)


def _show(sides: list[tuple[DiffSide, DiffSide]], run: str, json_to: JsonTo) -> int:
    diffs = [diff_sides(before, after) for before, after in sides]
    documents = [
        {"before": before.name, "after": after.name, "different": diff.different, **msgspec.structs.asdict(diff)}
        for (before, after), diff in zip(sides, diffs, strict=True)
    ]
    if not json_to.replaces_text(lambda: documents[0] if len(documents) == 1 else {"passes": documents}):
        for (before, after), diff in zip(sides, diffs, strict=True):
            print_diff(diff, before_name=before.name, after_name=after.name)
        _end(diffs, run)
    return EXIT_FOUND if any(diff.different for diff in diffs) else EXIT_OK


def _end(diffs: list[GraphDiff], run: str) -> None:
    echo()
    if not any(diff.different for diff in diffs):
        print_closing("SAME: nothing differs", follow=["graphprobe", "ls", run, "--all"], style="bold green")
        return
    parts = [
        (graph.removed, graph.added, graph.changed, graph.renamed, graph.moved)
        for diff in diffs
        for graph in diff.graphs
    ]
    nodes = sum(len(part) for graph in parts for part in graph)
    texts = [line for diff in diffs for line in diff.lines]
    lines = sum(line[:1] in ("+", "-") and line[:3] not in ("+++", "---") for line in texts)
    told = [counted(count, what) for count, what in ((nodes, "node"), (lines, "line")) if count]
    follow = ["graphprobe", "report", run]
    print_closing(f"DIFFERENT: {' and '.join(told) or 'the text'}", follow=follow, style="bold red")


def _two_runs(words: tuple[str, ...]) -> tuple[Run, Run] | None:
    """The runs at both words; None where neither is one. Raises RunNotFoundError where one alone is."""
    if len(words) != 2:
        return None
    found: list[Run] = []
    refused: RunNotFoundError | None = None
    for word in words:
        try:
            found.append(Run.open(word))
        except RunNotFoundError as error:
            refused = error
    if refused is None:
        return found[0], found[1]
    if found or all(Path(word).exists() for word in words):
        raise refused
    return None


def _compare_runs(words: tuple[str, ...], runs: tuple[Run, Run], json_to: JsonTo) -> int:
    diff = diff_runs(*runs)
    heads = {"a": str(runs[0].run_dir), "b": str(runs[1].run_dir), "outcome": diff.outcome}
    if not json_to.replaces_text(lambda: heads | msgspec.structs.asdict(diff)):
        print_lines([f"A: {heads['a']}", f"B: {heads['b']}", *told(diff)])
        style = {"same": "bold green", "different": "bold red", "undecided": "bold yellow"}[diff.outcome]
        print_closing(verdict(diff), follow=_next(words, diff), style=style)
    return {"same": EXIT_OK, "different": EXIT_FOUND, "undecided": EXIT_UNDECIDED}[diff.outcome]


def _next(words: tuple[str, ...], diff: RunDiff) -> list[str]:
    """The command that shows the first difference; where there is nothing more to see, what is in the first run."""
    first = next(iter(diff.differences), None)
    if first is None:
        return ["graphprobe", "ls", words[0], "--all"]
    if first.digest_a and first.digest_b and first.a == first.b:
        return ["graphprobe", "diff", *words, "--at", first.a]
    run, address = (words[0], first.a) if first.digest_a or not first.b else (words[1], first.b)
    return ["graphprobe", "show", run, address] if "/" in address else ["graphprobe", "ls", run]


def _sides_at(words: tuple[str, ...], runs: tuple[Run, Run] | None, address: str) -> tuple[DiffSide, DiffSide]:
    if runs is None:
        raise UsageError(f"--at goes with two runs, not with {' '.join(words) or 'none'}")
    sides: list[DiffSide] = []
    for run in runs:
        event = run.find(address)
        name = f"{run.run_dir.name}/{event.path}"
        code = event.kind == "code"
        sides.append(DiffSide(name, stage_text(run, event)) if code else side_of(run, event, name))
    return sides[0], sides[1]


def _sides_of_pass(
    words: tuple[str, ...], pass_name: str, model: int | None, direction: Direction | None
) -> tuple[DiffSide, DiffSide]:
    if len(words) > 2:
        raise UsageError(f"with --pass, diff takes at most two runs, not {len(words)} arguments")
    runs = [Run.open(word) for word in words]
    pairs = [run.before_and_after(pass_name, model=model, direction=direction) for run in runs]
    first, second = (
        side_of(run, pair.after, f"{run.run_dir.name}/{pair.after.path}") for run, pair in zip(runs, pairs, strict=True)
    )
    return first, second


def _sides_of_addresses(words: tuple[str, ...]) -> tuple[DiffSide, DiffSide]:
    if len(words) not in (2, 3):
        raise UsageError(
            "diff takes --pass NAME, or [RUN] ADDRESS_A ADDRESS_B", hint="graphprobe ls lists passes and addresses"
        )
    run = Run.open(words[0] if len(words) == 3 else layout.ROOT)
    before, after = (side_of(run, run.find(address)) for address in words[-2:])
    return before, after
