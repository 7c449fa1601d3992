"""`drift`: runs a training uncompiled, compiled and moved by roundings, and says whether compiled it leaves these."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from graphprobe.engine.forked_child import forked
from graphprobe.errors import ArtifactNotFoundError, RunNotFoundError, UsageError
from graphprobe.internals import after_fork
from graphprobe.store.files import read_file
from graphprobe.store.reader import Run
from graphprobe.store.watch_file import Drift, OutsideStep, StepObservation, StepsHeld, read_held, read_observations
from graphprobe.watch import trajectories
from graphprobe.watch.drift_run import LASTS, STRONG, DriftRun, Part
from graphprobe.watch.further_back import rest_openmp
from graphprobe.watch.watcher import BUDGET_S

STEPS, PERTURBED = 200, 4

FOLDER = "graphprobe-drift"

TAIL = 2000
"""Characters of what a run has printed last, where it made no step."""

LEAVES = (
    "in step {step} the {what} is {size:.2g} off that of the uncompiled step from the same state; rounding makes "
    "at most {limit:.2g}"
)
ONCE = (
    "in step {step} alone the {what} was {size:.2g} off, and the step's calls are right: a rounding may have decided "
    "something there"
)
UNSEEN = (
    "in step {step} the {what} is {size:.2g} off, and rounding makes at most {limit:.2g}: whether that lasts, or a "
    "rounding has decided something there, was not seen; --steps and --budget see more"
)

Program = Callable[[], str | None]
"""Runs the training in the process of its own; returns what it ended with, if not well."""


def drift(
    make_step: Callable[[], Callable[[], Any]],
    *,
    steps: int = STEPS,
    perturbed: int = PERTURBED,
    budget_s: float | None = BUDGET_S,
    out_dir: str | Path | None = None,
) -> Drift:
    """Whether a training leaves the uncompiled one, when it is compiled, faster than roundings make it.

    Runs the training uncompiled, compiled, and several times uncompiled with parameters and results moved by roundings,
    each in a process of its own, from the same random numbers. Each step of the compiled run is made again, uncompiled,
    from the same state.

    Args:
        make_step: makes model, optimizer and `torch.compile`, and returns the function that makes one step, which
            ends with `step()` of an optimizer of torch. It is called in each process.
        steps: how many.
        perturbed: how many moved runs.
        budget_s: seconds for the look into a step that is outside; None is no bound.
        out_dir: a new folder for the runs; None: one in `graphprobe-drift`.

    Raises:
        UsageError: an argument is not of the kind named above, or no process can be forked.
    """

    def program() -> None:
        step = make_step()
        for _ in range(steps):
            step()

    return drift_of(program, steps=steps, perturbed=perturbed, budget_s=budget_s, out_dir=out_dir)


def drift_of(
    program: Program | Callable[[], None],
    *,
    steps: int,
    perturbed: int,
    budget_s: float | None,
    out_dir: str | Path | None,
    tell: Callable[[str], None] = lambda text: None,
) -> Drift:
    """As `drift`, of a program as it is; `tell` is called with what is about to be done."""
    for name, value, least in (("steps", steps, 1), ("perturbed", perturbed, 1)):
        if type(value) is not int or value < least:
            raise UsageError(f"drift({name}={value!r:.80}): it takes a whole number, {least} or more")
    if not after_fork.can_fork():
        raise UsageError("drift: no process can be forked here", hint="run it as a script: graphprobe drift SCRIPT")
    folder = _new_folder() if out_dir is None else Path(out_dir).absolute()
    parts: list[tuple[str, Part, int]] = [("uncompiled", "uncompiled", 0), ("compiled", "compiled", 0)]
    parts += [(f"moved {seed}", "moved", seed) for seed in range(perturbed)]
    found: dict[str, tuple[Run | None, list[StepObservation]]] = {}
    for name, part, seed in parts:
        tell(f"{steps} steps {name}")
        out = folder / name.replace(" ", "_")
        out.mkdir(parents=True)
        _in_child(partial(DriftRun, part, seed=seed, steps=steps, budget_s=budget_s, out_dir=out), program, out / "log")
        found[name] = _read(out)
        if not found[name][1]:
            said = read_file(out / "log").decode("utf-8", "replace").strip()[-TAIL:]
            why = f"drift: no step of an optimizer was seen in the run {name}"
            raise UsageError(
                f"{why}{'; it printed: ' + said if said else ''}", hint="a step ends with optimizer.step()"
            )
    runs = {name: run for name, (run, _) in found.items() if run is not None}
    held = read_held(runs["compiled"])
    return _concluded(
        {name: steps for name, (_, steps) in found.items()}, held, {n: str(r.run_dir) for n, r in runs.items()}
    )


def _new_folder() -> Path:
    for number in range(1, 10_000):
        with contextlib.suppress(FileExistsError):
            folder = Path(FOLDER, str(number)).absolute()
            folder.mkdir(parents=True)
            return folder
    raise UsageError(f"{FOLDER} is full", hint="name a folder that is new: --out DIR")


def _is_fault(step: OutsideStep) -> bool:
    return step.answer is not None and step.answer.diagnosis is not None


def _in_child(make: Callable[[], DriftRun], program: Callable[[], str | None], log: Path) -> None:
    """Run the program in a process of its own, and wait for it; nothing that it has started is left behind."""
    rest_openmp()
    with log.open("wb") as output:
        child = forked(output.fileno())
        if child == 0:
            _as_child(make, program)
    try:
        os.waitpid(child, 0)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)


def _as_child(make: Callable[[], DriftRun], program: Callable[[], str | None]) -> None:
    try:
        after_fork.prepare()
        gc.unfreeze()  # modules that are here already are looked for by their names
        run, why = make(), None
        run.start()
        try:
            why = program()
        except SystemExit:
            pass
        except BaseException as error:
            why = f"{type(error).__name__}: {error}"
            raise
        finally:
            run.stop(why=why)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(0)


def _read(folder: Path) -> tuple[Run | None, list[StepObservation]]:
    with contextlib.suppress(RunNotFoundError, ArtifactNotFoundError):
        run = Run.open(folder)
        return run, [seen for seen in read_observations(run) if seen.call is None]
    return None, []


def _concluded(found: dict[str, list[StepObservation]], held: StepsHeld, runs: dict[str, str]) -> Drift:
    """The verdict: by the steps that were made again from the same state; without these by the trajectories."""
    plain, compiled = found["uncompiled"], found["compiled"]
    moved = [steps for name, steps in found.items() if name.startswith("moved")]
    drift = trajectories.held_together(plain, compiled)
    drift.runs, drift.held, drift.notes = runs, held.held, [*drift.notes, *held.notes]
    if not held.graphs:
        raise UsageError("drift: nothing was compiled", hint="does the program call what torch.compile returned?")
    certain = [step for step in held.outside if step.lasts or _is_fault(step)]
    if drift.verdict == "other" and not certain:
        drift.verdict = "undecided"
        return drift
    plain, compiled = plain[: drift.steps], compiled[: drift.steps]
    moved = [steps for steps in moved if not trajectories.why_other(plain, steps)]
    sizes = [trajectories.deviations(plain, steps) for steps in moved]
    drift.deviations = {"compiled": trajectories.deviations(plain, compiled)}
    drift.deviations |= {f"moved {i}": each for i, each in enumerate(sizes)}
    drift.growth = trajectories.growth_of(drift.deviations["compiled"])
    drift.moved_growth = [growth for each in sizes if (growth := trajectories.growth_of(each)) is not None]
    drift.outside = next(iter(certain), None)
    drift.verdict, drift.step, drift.what = "rounding", None, ""
    drift.sentence = f"compiled, the training leaves the uncompiled one as rounding does, over {drift.steps} steps"
    if drift.outside is not None:
        drift.verdict, drift.step, drift.what = "leaves", drift.outside.step, drift.outside.what
        drift.sentence = LEAVES.format(
            step=drift.step, what=drift.what, size=drift.outside.size, limit=drift.outside.limit
        )
    elif held.held < drift.steps and (outside := trajectories.first_outside(plain, compiled, moved)) is not None:
        drift.verdict, (drift.step, drift.what) = "leaves", outside
        drift.sentence = f"from step {drift.step} on the {drift.what} is farther off than in any moved run"
    for step in (step for step in held.outside if step not in certain):
        far = step.size / step.limit >= STRONG and (step.answer is None or bool(step.answer.notes))
        told = UNSEEN if far or (step.answer is None and step.step > drift.steps - LASTS) else ONCE
        said = told.format(step=step.step, what=step.what, size=step.size, limit=step.limit)
        if drift.verdict == "rounding" and far:
            drift.verdict, drift.outside, drift.step, drift.what = "undecided", step, step.step, step.what
            drift.sentence = said
        else:
            drift.notes.append(said)
    return drift
