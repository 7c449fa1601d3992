"""`graphprobe drift`: says whether a loss leaves the uncompiled one by a fault or by rounding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from graphprobe.cli.shared_options import JsonTo, count_option, json_option, look_option, new_folder
from graphprobe.cli.target import TargetCommand, TypedTarget, is_run
from graphprobe.errors import EXIT_FOUND, EXIT_OK, EXIT_UNDECIDED, UsageError
from graphprobe.report.visible import echo
from graphprobe.store.reader import Run
from graphprobe.store.watch_file import Drift, StepObservation, read_observations

EXITS = {"rounding": EXIT_OK, "leaves": EXIT_FOUND, "other": EXIT_UNDECIDED, "undecided": EXIT_UNDECIDED}


@click.command(cls=TargetCommand, takes="SCRIPT [ARGS]... | RUN_A RUN_B | RANKS", reads=is_run)
@count_option("--steps", 1, 200, "End after N steps.")
@count_option("--perturbed", 1, 4, "Uncompiled runs that are moved by roundings.")
@look_option
@click.option("-o", "--out", "out_dir", metavar="DIR", help="Folder for the runs. Default: one in graphprobe-drift.")
@json_option
def command(
    out_dir: str | None,
    json_to: JsonTo,
    target: TypedTarget,
    **options: Any,  # of the function `drift_of`
) -> int:
    """Say whether a compiled training leaves the uncompiled one by a fault, or as rounding does.

    SCRIPT runs uncompiled, compiled, and several times uncompiled with parameters and results moved by roundings. Each
    run is a process of its own and starts from the same random numbers. The compiled run makes each step again,
    uncompiled, from the same state. The answer names the first step that rounding does not explain, the parameter, and
    what a diagnosis of that step finds.

    RUN_A and RUN_B are folders of runs of `graphprobe watch` or `drift`: two machines, two versions. RANKS is the
    folder with the runs of all ranks: the command names the step at which their parameters part.

    Exit codes: 0 rounding, 1 a step leaves, 2 wrong usage, 125 undecided or not the same training.

    \b
    Examples:
      graphprobe drift train.py --epochs 1
      graphprobe drift --steps 500 train.py
      graphprobe drift before_upgrade/ after_upgrade/
    """
    base = Path.cwd()
    if is_run(target.first):
        drift, folder = _read(target.words), target.words[-1]
    else:
        drift, folder = _run(target, out_dir, options), ""
    if not json_to.replaces_text(lambda: drift):
        from graphprobe.report.drifted import print_drift, print_end_of_drift
        from graphprobe.report.terminal import near

        print_drift(drift, base=base)
        shown = folder or near(drift.runs["compiled"], base)
        print_end_of_drift(drift, follow=["graphprobe", "watch", shown], base=base)
    return EXITS[drift.verdict]


def _run(target: TypedTarget, out_dir: str | None, options: Mapping[str, Any]) -> Drift:
    program = target.program()
    from graphprobe.probe import script

    script.check(program)
    out = None if out_dir is None else new_folder(out_dir)
    from graphprobe.watch.drift import drift_of

    def tell(text: str) -> None:
        echo(f"graphprobe: {text} …", err=True)

    return drift_of(lambda: script.run(program).problem, out_dir=out, tell=tell, **options)


def _read(words: tuple[str, ...]) -> Drift:
    """What two runs, or the ranks of one, have become."""
    from graphprobe.watch.trajectories import held_together, ranks_part

    def steps_of(run: Run) -> list[StepObservation]:
        return [seen for seen in read_observations(run) if seen.call is None]

    if len(words) == 2:
        runs = [Run.open(word) for word in words]
        drift = held_together(*map(steps_of, runs))
        drift.runs = {name: str(run.run_dir) for name, run in zip("ab", runs, strict=True)}
        return drift
    if len(words) > 2:
        raise UsageError(f"drift takes two runs, not {len(words)}: {' '.join(words)}")
    ranks = {run.manifest.rank: steps_of(run) for run in Run.find_all(words[0])}
    if len(ranks) < 2:
        hint = "graphprobe drift RUN_A RUN_B, or the folder with the runs of all ranks"
        raise UsageError(f"{words[0]} holds no runs of several ranks", hint=hint)
    return ranks_part(ranks)
