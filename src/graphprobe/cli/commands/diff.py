"""`graphprobe diff`: what a pass did, or how two graphs differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import click

from graphprobe.cli.output import JsonCommand, JsonTo, json_option
from graphprobe.errors import EXIT_FOUND, UsageError
from graphprobe.records import Direction
from graphprobe.report.visible import echo
from graphprobe.store import layout

if TYPE_CHECKING:
    from graphprobe.report.graph_diff import DiffSide, GraphDiff
    from graphprobe.store.reader import Run


@click.command(cls=JsonCommand)
@click.argument("words", nargs=-1, metavar="[RUN [RUN_B]] | [RUN] ADDRESS_A ADDRESS_B")
@click.option("--pass", "pass_name", metavar="NAME", help="Name of the pass. NAME#2 is its second run.")
@click.option("--model", type=click.IntRange(min=0), help="Only in model__N.")
@click.option("--direction", type=click.Choice(get_args(Direction)), help="Only in this direction.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    words: tuple[str, ...],
    pass_name: str | None,
    model: int | None,
    direction: Direction | None,
    json_to: JsonTo,
) -> None:
    """Show what a pass did to the graph, node by node, with source lines.

    With --pass and one RUN, compare the graph before the pass with the one after. With --pass and two, compare the
    graph after the pass in each. Without --pass, compare two artifacts of one run. RUN defaults to the newest run in
    torch_compile_debug. Nodes are paired by what they compute, so a rename is shown as a rename.

    Exit codes: 0 no difference, 1 a difference, 2 wrong usage.

    \b
    Examples:
      graphprobe diff --pass joint_graph_passes --model 0
      graphprobe diff torch_compile_debug model__0/forward/original model__0/forward/optimized
      graphprobe diff before_upgrade/ after_upgrade/ --pass joint_graph_passes
    """
    import msgspec

    from graphprobe.report.graph_diff import diff_sides

    if pass_name is not None:
        before, after = _sides_of_pass(words, pass_name, model, direction)
    else:
        if model is not None or direction is not None:
            raise UsageError("--model and --direction go with --pass; addresses say it themselves")
        before, after = _sides_of_addresses(words)
    diff = diff_sides(before, after)
    document = {"before": before.name, "after": after.name, "different": diff.different}
    if not json_to.replaces_text(lambda: document | msgspec.to_builtins(diff)):
        from graphprobe.report.terminal import print_diff

        print_diff(diff, before_name=before.name, after_name=after.name)
        run = words[0] if len(words) in (1, 3) or (pass_name is not None and words) else layout.ROOT
        _end(diff, run)
    ctx.exit(EXIT_FOUND if diff.different else 0)


def _end(diff: GraphDiff, run: str) -> None:
    from graphprobe.report.document import counted
    from graphprobe.report.terminal import print_closing

    echo()
    if not diff.different:
        print_closing("SAME: nothing differs", follow=["graphprobe", "ls", run, "--all"], style="bold green")
        return
    parts = [(graph.removed, graph.added, graph.changed, graph.renamed, graph.moved) for graph in diff.graphs]
    nodes = sum(len(part) for graph in parts for part in graph)
    lines = sum(line[:1] in ("+", "-") and line[:3] not in ("+++", "---") for line in diff.lines)
    told = [counted(count, what) for count, what in ((nodes, "node"), (lines, "line")) if count]
    follow = ["graphprobe", "report", run]
    print_closing(f"DIFFERENT: {' and '.join(told) or 'the text'}", follow=follow, style="bold red")


def _sides_of_pass(
    words: tuple[str, ...], pass_name: str, model: int | None, direction: Direction | None
) -> tuple[DiffSide, DiffSide]:
    from graphprobe.report.graph_diff import side_of
    from graphprobe.store.reader import Run

    if len(words) > 2:
        raise UsageError(f"with --pass, diff takes at most two runs, not {len(words)} arguments")
    runs = [Run.open(word) for word in words or (layout.ROOT,)]
    pairs = [run.before_and_after(pass_name, model=model, direction=direction) for run in runs]
    if len(runs) == 1:
        run, pair = runs[0], pairs[0]
        after = pair.after.path if pair.after is not pair.before else f"{pair.before.path} (the pass changed nothing)"
        return side_of(run, pair.before), side_of(run, pair.after, str(after))
    first, second = (
        side_of(run, pair.after, f"{run.run_dir.name}/{pair.after.path}") for run, pair in zip(runs, pairs, strict=True)
    )
    return first, second


def _sides_of_addresses(words: tuple[str, ...]) -> tuple[DiffSide, DiffSide]:
    from graphprobe.store.reader import Run

    if len(words) not in (2, 3):
        raise UsageError(
            "diff takes --pass NAME, or [RUN] ADDRESS_A ADDRESS_B", hint="graphprobe ls lists passes and addresses"
        )
    run = Run.open(words[0] if len(words) == 3 else layout.ROOT)
    return _side(run, words[-2]), _side(run, words[-1])


def _side(run: Run, address: str) -> DiffSide:
    from graphprobe.report.graph_diff import side_of

    return side_of(run, run.find(address))
