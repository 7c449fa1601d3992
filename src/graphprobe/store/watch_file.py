"""`watch.jsonl` and `watch.json`: the observations of a run's steps, one a line, and the answer to what went wrong."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from graphprobe.errors import ArtifactNotFoundError, SchemaError
from graphprobe.records import Int64
from graphprobe.store import layout
from graphprobe.store.files import read_file
from graphprobe.store.reader import Run
from graphprobe.store.schema import UNREADABLE, check_version, json_from_value, lines_from

ANSWER_SCHEMA = 1

Figure = float | str
"""A number; NaN and the infinities are text, `nan`, `inf` and `-inf`, for JSON has none."""

TriggerKind = Literal["nan", "spike", "shadow", "exception", "signal"]


class StepObservation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line: what was seen of a step just before the optimizer changed a parameter, or of a call in inference.

    Attributes:
        step: number of the step, from 1: how often an optimizer's `step` began, or `graphprobe.step` was called.
        time_ns: wall clock, nanoseconds since the epoch.
        loss: the scalar that the last `.backward()` of the step was called on; None where there was none.
        norm: of all gradients together; None where there are none.
        finite: whether loss and gradients are; of a call in inference whether its results hold no NaN.
        call: number of a call of a compiled function in inference, from 1; None of a step.
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


def figure(value: float) -> Figure:
    """The number as a line has it."""
    return value if math.isfinite(value) else str(value)


def encode_observation(line: StepObservation) -> str:
    """The line as JSON, with the newline."""
    return json_from_value(line).decode() + "\n"


def read_observations(run: Run) -> list[StepObservation]:
    """The observations of a run in their order; what cannot be read is in `run.problems`.

    Raises:
        ArtifactNotFoundError: the run was not watched, or the file is gone.
    """
    path = run.tool_dir / layout.WATCH
    try:
        data = read_file(path)
    except OSError as error:
        hint = "observe the steps of a program: graphprobe watch SCRIPT"
        raise ArtifactNotFoundError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    found = lines_from(data, StepObservation, name=layout.WATCH, noun="observation", problems=run.problems)
    return [line for _, line in found]


def read_answer(run: Run) -> WatchAnswer | None:
    """The answer of a watched run; None where nothing was triggered.

    Raises:
        SchemaError: the file cannot be read, or was written by another graphprobe.
    """
    path = run.tool_dir / layout.ANSWER
    try:
        document = msgspec.json.decode(read_file(path))
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        raise SchemaError(f"{path} is no answer of a watched run: {error}") from error
    check_version(document.get("schema") if isinstance(document, dict) else None, ANSWER_SCHEMA, path=path)
    try:
        return msgspec.convert(document, WatchAnswer)
    except UNREADABLE as error:
        raise SchemaError(f"{path} is no answer of a watched run: {error}") from error
