"""The last step of a log that torch wrote by itself."""

import pytest

from graphprobe.analysis.log_lines import at_least, records_from_text, text_records
from graphprobe.analysis.steps import StepReport, report_from_records

TRACE = "I1122 02:31:00.000000 7 torch/_dynamo/a.py:1] [{id}] Step 1: torchdynamo start tracing {f} /a.py:2"
DONE = "I1122 02:31:00.500000 7 torch/_dynamo/a.py:2] [{id}] Step 1: torchdynamo done tracing {f} (RETURN_VALUE)"
CALL = "I1122 02:31:01.000000 7 torch/_dynamo/b.py:1] [{id}] Step 2: calling compiler function inductor"
CALLED = "I1122 02:31:09.000000 7 torch/_dynamo/b.py:2] [{id}] Step 2: done compiler function inductor"
LOWER = "I1122 02:31:02.000000 7 torch/_inductor/c.py:1] [{id}] Step 3: torchinductor compiling FORWARDS graph 0"
LOWERED = "I1122 02:31:08.000000 7 torch/_inductor/c.py:2] [{id}] Step 3: torchinductor done compiling FORWARDS graph 0"
GUARDS = "I1122 02:31:09.500000 7 torch/fx/experimental/symbolic_shapes.py:5889] [{id}] produce_guards"
SAVED = "I1122 02:31:09.600000 7 torch/_dynamo/pgo.py:985] [{id}] put_code_state: no cache key, skipping"
EXIT = "I1122 02:31:10.000000 7 torch/_dynamo/utils.py:925] TorchDynamo compilation metrics:"


def report(*lines: str, id: str = "0/0", f: str = "f") -> StepReport:
    text = "\n".join(line.format(id=id, f=f) if line.startswith("I") else line for line in lines)
    return report_from_records(records_from_text(text))


def last(*lines: str) -> tuple[str, str] | None:
    found = report(*lines)
    return None if not found.open else (found.open[-1].component, found.open[-1].detail)


def test_the_log_ends_inside_each_step() -> None:
    tracing, backend, inductor = ("dynamo", "f /a.py:2"), ("backend", "inductor"), ("inductor", "FORWARDS graph 0")
    ends = {TRACE: tracing, DONE: None, CALL: backend, LOWER: inductor, LOWERED: backend, CALLED: None, GUARDS: None}
    lines = [*ends, SAVED]
    assert [last(*lines[: n + 1]) for n in range(len(lines))] == [*ends.values(), None]


MINE = ("Traceback (most recent call last):", "ValueError: mine")
DYNAMOS = (MINE[0], "torch._dynamo.exc.InternalTorchDynamoError: AssertionError")
BROKEN = (TRACE, CALL, LOWER, LOWERED, CALLED)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # A graph break ends tracing without a line of its own.
        (BROKEN, ("dynamo", "f /a.py:2")),
        ((*BROKEN, GUARDS), None),
        ((*BROKEN, TRACE.replace("{id}", "1/0").replace("{f}", "g")), ("dynamo", "g /a.py:2")),
        # A function that is skipped is over.
        ((TRACE, SAVED), None),
        ((TRACE, EXIT), None),
        # An exception leaves its step open, and the exit closes nothing of a backend.
        ((TRACE, DONE, CALL, SAVED, MINE[0], EXIT), ("backend", "inductor")),
        ((TRACE, SAVED, *DYNAMOS, EXIT), ("dynamo", "f /a.py:2")),
        # The program's own, later, has nothing to do with the step.
        ((TRACE, DONE, SAVED, *MINE, EXIT), None),
    ],
)
def test_what_ends_a_step(lines: tuple[str, ...], expected: tuple[str, str] | None) -> None:
    assert last(*lines) == expected


def test_how_long_before_the_last_line() -> None:
    found = report(TRACE, DONE, CALL, LOWER)
    assert [found.before_end_s(step) for step in found.open] == [1.0, 0.0]
    assert found.end_is == "last line" and found.found


def test_other_forms_of_the_same_lines_are_read_too() -> None:
    for line in (
        "INFO:torch._dynamo.symbolic_convert:Step 1: torchdynamo start tracing f a.py:2",
        "[2023-03-01 08:20:52,143] torch._dynamo.symbolic_convert: [INFO] Step 1: torchdynamo start tracing f a.py:2",
        "2026-11-22 02:30:40,534 INFO torch._dynamo.x x.py:5335] [0/0] Step 1: torchdynamo start tracing f a.py:2",
    ):
        found = report_from_records(records_from_text(line))
        assert [step.detail for step in found.open] == ["f a.py:2"], line
    assert report_from_records(records_from_text("nothing of the kind")).notes != []


def test_two_processes_are_told_apart() -> None:
    mine = [TRACE, DONE, CALL]
    other = [line.replace(" 7 torch", " 8 torch") for line in (TRACE, DONE, CALL, CALLED)]
    found = report(*[line for pair in zip(mine, other, strict=False) for line in pair], other[-1])
    assert [step.component for step in found.open] == ["backend"]
    assert "the open step is that of process 7" in found.notes


def test_components_and_levels_of_torchs_lines() -> None:
    artifact = "V1122 02:31:00.000000 7 torch/_dynamo/guards.py:1] [0/0] [__guards] GUARDS:"
    warning = "W1122 02:31:00.000000 7 torch/_inductor/utils.py:1] [0/0] Not enough SMs"
    records = records_from_text("\n".join([TRACE.format(id="0/0", f="f"), artifact, warning]))
    assert [r.text for r in text_records(records, "guards")] == ["GUARDS:"]
    assert [r.text for r in text_records(records, "inductor")] == ["Not enough SMs"]
    assert len(text_records(records, "dynamo")) == 1
    assert [r.level for r in at_least(records, "info")] == ["info", "warning"]
