"""`watch.jsonl` and `watch.json`: the observations of a run's steps, one a line, and the answer to what went wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from graphprobe.errors import ArtifactNotFoundError, RunNotFoundError, SchemaError
from graphprobe.faces import ShowsItself
from graphprobe.records import Int64
from graphprobe.store import layout
from graphprobe.store.files import read_file, read_or_refuse
from graphprobe.store.reader import Run
from graphprobe.store.schema import UNREADABLE, check_version, lines_of

ANSWER_SCHEMA = DRIFT_SCHEMA = 1

Document = TypeVar("Document")

Figure = float | str
"""A number; NaN and the infinities are text, `nan`, `inf` and `-inf`, for JSON has none."""

TriggerKind = Literal["nan", "spike", "shadow", "exception", "signal", "drift"]


class StepObservation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line: what was seen of a step just before the optimizer changed a parameter, or of a call in inference.

    Attributes:
        step: number of the step, from 1: how often an optimizer's `step` began, or `graphprobe.step` was called.
        time_ns: wall clock, nanoseconds since the epoch.
        loss: the scalar that the last `.backward()` of the step was called on; None where there was none.
        norm: of all gradients together; None where there are none.
        finite: whether loss and gradients are; of a call in inference whether its results hold no NaN.
        call: number of a call of a compiled function in inference, from 1; None of a step.
        data: in a run of `drift`, digest of the tensors that the first compiled call of the step took.
        optimizer: number of the optimizer, from 0, in the order of their first steps.
        names: of the parameters with gradients, in the line of every so many steps; the next three have one entry each.
        gradients: the norms of their gradients.
        sizes: the norms of the parameters, before the step.
        digests: of the parameters, before the step, 16 hexadecimal digits; empty of one that cannot be read.
    """

    step: Int64
    time_ns: Int64
    loss: Figure | None = None
    norm: Figure | None = None
    finite: bool = True
    call: Int64 | None = None
    data: str = ""
    optimizer: Int64 = 0
    names: tuple[str, ...] = ()
    gradients: tuple[Figure, ...] = ()
    sizes: tuple[Figure, ...] = ()
    digests: tuple[str, ...] = ()


class FirstOperation(msgspec.Struct, frozen=True, kw_only=True):
    """The first operation that made what is wrong.

    Attributes:
        op: its name, `torch.exp` or `aten.exp.default`.
        direction: `forward` or `backward`.
        source: `file.py:12` of the program; in a backward the line of the forward call; empty where it is not known.
        module: the module it runs in, `blocks.0.fc (Linear)`; empty where it is in none.
        problems: in words.
    """

    op: str
    direction: str = "forward"
    source: str = ""
    module: str = ""
    problems: list[str] = []


class WatchAnswer(msgspec.Struct, kw_only=True):
    """What a trigger has led to, `watch.json`.

    Attributes:
        kind: the trigger.
        step: the step in which it came; 0 before the first.
        rank: of the process among those of its program; None of a program without ranks.
        what: what was seen, in one sentence.
        call: the call of the step that was made again and shows it, with its function; empty where none does.
        operation: the first operation; None where it was not found.
        uncompiled: whether the uncompiled program makes it, too.
        state: parameters, buffers and arguments that were wrong before the step's first operation.
        diagnosis: of the call, where the uncompiled program does not make it, as `diagnose --json` has it.
        dossier: folder with what proves it; None where there is none.
        inputs: the file with the inputs of the operation; None where there is none.
        notes: what could not be done, and what else was seen.
        ring: the last observations, the step's included.
    """

    kind: TriggerKind
    step: Int64
    what: str
    call: str = ""
    operation: FirstOperation | None = None
    uncompiled: Literal["yes", "no", "unknown"] = "unknown"
    state: list[str] = []
    diagnosis: dict[str, Any] | None = None
    dossier: str | None = None
    inputs: str | None = None
    notes: list[str] = []
    rank: Int64 | None = None
    ring: list[StepObservation] = []
    schema: int = ANSWER_SCHEMA


class OutsideStep(msgspec.Struct, kw_only=True):
    """A step of a compiled run that is outside of its envelope.

    Attributes:
        step: its number.
        what: what is farthest outside, `gradient of fc1.weight`.
        size: by how much it differs from that of the uncompiled step of the same state, relative.
        limit: by how much rounding lets it differ.
        others: how many more are outside.
        lasts: one of the next two steps is outside, too.
        answer: what the look into the step's calls has led to; None where there was none.
    """

    step: Int64
    what: str
    size: float
    limit: float
    others: Int64 = 0
    lasts: bool = False
    answer: WatchAnswer | None = None


class StepsHeld(msgspec.Struct, kw_only=True):
    """`drift.json` of a compiled run: its steps held against uncompiled ones of the same states.

    Attributes:
        held: how many were.
        graphs: how many graphs were compiled.
        outside: the steps outside, in order.
        notes: what could not be done.
    """

    held: Int64 = 0
    graphs: Int64 = 0
    outside: list[OutsideStep] = []
    notes: list[str] = []
    schema: int = ANSWER_SCHEMA


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """By what factor a deviation grows each step.

    Attributes:
        factor: 1.0 does not grow.
        error: its standard error.
    """

    factor: float
    error: float


class Drift(ShowsItself, msgspec.Struct, kw_only=True):
    """What became of two trainings that are held against each other.

    Attributes:
        verdict: `rounding`; `leaves`: a step leaves the envelope; `other`: they are not the same training;
            `undecided`.
        sentence: the verdict in words.
        step: the first that leaves the envelope; None where none does.
        what: what leaves it, `gradient of fc1.weight`.
        outside: the step with its evidence; None of runs whose steps were not made again.
        steps: how many were compared.
        held: how many of them were made again from the same state.
        growth: of the compiled run, or of the second of two; None where nothing grows.
        moved_growth: of each moved run.
        deviations: of the gradients, a step each: `compiled`, or `b`, and `moved 0` and so on.
        runs: the folder of each run by its name.
        notes: what could not be done, and what else was seen.
    """

    verdict: Literal["rounding", "leaves", "other", "undecided"]
    sentence: str
    step: Int64 | None = None
    what: str = ""
    outside: OutsideStep | None = None
    steps: Int64 = 0
    held: Int64 = 0
    growth: Growth | None = None
    moved_growth: list[Growth] = []
    deviations: dict[str, list[float]] = {}
    runs: dict[str, str] = {}
    notes: list[str] = []
    schema: int = DRIFT_SCHEMA


def figure(value: float) -> Figure:
    """The number as a line has it."""
    return value if math.isfinite(value) else str(value)


def read_observations(run: Run) -> list[StepObservation]:
    """The observations of a run in their order; what cannot be read is in `run.problems`.

    Raises:
        ArtifactNotFoundError: the run was not watched, or the file is gone.
    """
    hint = "observe the steps of a program: graphprobe watch SCRIPT"
    data = read_or_refuse(run.tool_dir / layout.WATCH, ArtifactNotFoundError, hint=hint)
    decoder = msgspec.json.Decoder(StepObservation)
    found = lines_of(data, decoder, tell=run.problems.append, name=layout.WATCH, noun="observation")
    return [line for _, _, line in found]


def read_answer(run: Run) -> WatchAnswer | None:
    """The answer of a watched run; None where nothing was triggered.

    Raises:
        SchemaError: the file cannot be read, or was written by another graphprobe.
    """
    return _read(run.tool_dir / layout.ANSWER, WatchAnswer, "answer of a watched run")


def read_held(run: Run) -> StepsHeld:
    """What came of holding the steps of a compiled run against uncompiled ones; empty where that was not written.

    Raises:
        SchemaError: the file cannot be read, or was written by another graphprobe.
    """
    return _read(run.tool_dir / layout.HELD, StepsHeld, "record of steps held") or StepsHeld()


def is_drift(document: object) -> bool:
    """Whether a JSON document is of `graphprobe drift`."""
    return isinstance(document, dict) and {"verdict", "deviations", "held"} <= document.keys()


def read_drift(path: Path) -> Drift:
    """The document of `graphprobe drift --json`.

    Raises:
        RunNotFoundError: there is no such file.
        SchemaError: the file cannot be read, or was written by another graphprobe.
    """
    if (drift := _read(path, Drift, "drift")) is None:
        raise RunNotFoundError(f"{path} does not exist")
    return drift


def _read(path: Path, form: type[Document], noun: str) -> Document | None:
    try:
        document = msgspec.json.decode(read_file(path))
        check_version(document.get("schema") if isinstance(document, dict) else None, ANSWER_SCHEMA, path=path)
        return msgspec.convert(document, form)
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        raise SchemaError(f"{path} is no {noun}: {error}") from error
