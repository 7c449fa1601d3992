"""`steps.jsonl`: a line when a step of the compiler begins and one when it ends, so that a crash leaves its trace."""

from __future__ import annotations

import msgspec

from graphprobe.errors import ArtifactNotFoundError
from graphprobe.records import Int64
from graphprobe.store import layout
from graphprobe.store.files import read_or_refuse
from graphprobe.store.reader import Run
from graphprobe.store.schema import lines_of


class StepLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: the beginning of a step, with `component` and `name`, or its end, with neither.

    Attributes:
        step: number of the step in the run, from 0.
        time_ns: wall clock, nanoseconds since the epoch.
        component: who works: `dynamo`, `aot`, `inductor`, `backend` or `run`.
        name: what is done, e.g. `trace`, `lower`, `compile C++`, or the name of a pass.
        detail: on what: a function with its place, a file, a kernel.
        model, direction, compile_id: as in `Where`.
        thread: native id of the thread.
        error: at the end, `Type: message` of the exception that left the step.
    """

    step: Int64
    time_ns: Int64
    component: str | None = None
    name: str | None = None
    detail: str = ""
    model: Int64 | None = None
    direction: str | None = None
    compile_id: str | None = None
    thread: Int64 | None = None
    error: str | None = None


class StepRecord(msgspec.Struct, frozen=True):
    """A step with its beginning and, where there is one, its end; fields as in `StepLine`."""

    step: Int64
    component: str
    name: str
    detail: str
    model: Int64 | None
    direction: str | None
    compile_id: str | None
    thread: Int64 | None
    begin_ns: Int64
    end_ns: Int64 | None = None
    error: str | None = None


def read_steps(run: Run) -> list[StepRecord]:
    """The steps of a run in the order of their beginnings; what cannot be read is told in `run.problems`.

    An end without a beginning is dropped.

    Raises:
        ArtifactNotFoundError: the run was written before steps were, or the file is gone.
    """
    hint = "the run compiled nothing, or a graphprobe without steps wrote it, or its budget left no room"
    data = read_or_refuse(run.tool_dir / layout.STEPS, ArtifactNotFoundError, hint=hint)
    found: dict[int, StepRecord] = {}
    decoder = msgspec.json.Decoder(StepLine)
    for _, _, line in lines_of(data, decoder, tell=run.problems.append, name=layout.STEPS, noun="step"):
        if line.component is not None and line.name is not None:
            known = {name: getattr(line, name) for name in StepRecord.__struct_fields__ if hasattr(line, name)}
            found[line.step] = StepRecord(**known, begin_ns=line.time_ns)
        elif line.step in found:
            found[line.step] = msgspec.structs.replace(found[line.step], end_ns=line.time_ns, error=line.error)
    return list(found.values())
