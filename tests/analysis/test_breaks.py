"""What is concluded from the facts of breaks, without torch."""

import ast
import re
from typing import Any

import pytest

from graphprobe.analysis import breaks
from graphprobe.analysis.breaks import fill, judge, report_from_facts, user_frame
from graphprobe.analysis.breaks_facts import BreakFact, UncompiledFact, UserFrame, facts_from_lines
from graphprobe.analysis.breaks_rules import RULES
from graphprobe.analysis.breaks_text import BreakLine, Part, as_mask, parts_of, plain_name
from graphprobe.analysis.steps import StepReport, at_least, records_from_text, report_from_records, text_records
from graphprobe.store import json_line

ITEM = """Unsupported Tensor.item() call with capture_scalar_outputs=False
  Explanation: Dynamo does not support tracing `Tensor.item()`
    with config.capture_scalar_outputs=False.
  Hint: Set the one.
  Hint: Set the other.

  Developer debug context: call_method TensorVariable() item () {}

 For more details about this graph break, please visit: https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0124.html"""

LOOP = f"""{ITEM}

*** While handling this graph break, another graph break occurred: ***

graph break in loop
  Explanation: torch.compile detected a graph break in a for/while loop.
  Hint: This graph break may have been caused by an earlier graph break.

  Developer debug context: frame skipped: f (a.py line 1)"""


def at(line: int, source: str, *, file: str = "/p/a.py", inside: str | None = None) -> UserFrame:
    return UserFrame(file=file, line=line, function="f", source=source, inside=inside)


def broke(reason: str = ITEM, source: str = "y = x.item()", **more: Any) -> BreakFact:
    given = {"stack": [at(3, source)], "function": "f", "file": "/p/a.py", "first_line": 1} | more
    return BreakFact(reason=reason, **given)


def test_text_of_torch_is_taken_apart() -> None:
    (part,) = parts_of(ITEM)
    assert part.title == "Unsupported Tensor.item() call with capture_scalar_outputs=False"
    assert part.explanation.endswith("`Tensor.item()` with config.capture_scalar_outputs=False.")
    assert part.hints == ("Set the one.", "Set the other.")
    assert part.context == "call_method TensorVariable() item () {}"
    assert part.gb_id == "GB0124" and part.url is not None and part.url.endswith("gb0124.html")
    assert [part.title for part in parts_of(LOOP)][1] == "graph break in loop"
    assert parts_of("")[0].title == "" and parts_of("anything\nat all")[0].url is None


@pytest.mark.parametrize(
    ("source", "name", "value"),
    [
        ("if x.sum() > 0:", "condition", "x.sum() > 0"),
        ("elif a and b:", "condition", "a and b"),
        ("return 1 if ok else 2", "condition", "ok"),
        ("while True:", "form", "While"),
        ("with lock, open('a') as f:", "manager", "lock"),
        ("class A(B):", "defined", "A"),
        ("self.y += foo(", "target", "self.y"),
        ("else:", "form", ""),
        ("if x is not None and x.any():", "condition", "x.any()"),
        ("if x is None or a and b:", "condition", "a and b"),
        ("if x is None:", "condition", "x is None"),
        ("x = [i for i", "condition", ""),
        ("", "form", ""),
        ("\x00", "form", ""),
    ],
)
def test_names_on_a_line(source: str, name: str, value: str) -> None:
    assert getattr(BreakLine(source), name) == value


def test_calls_on_a_line() -> None:
    line = BreakLine("y = a.b(x[m > 0]).item() + torch.nonzero(z).sum(")
    assert [(line.call(name), line.owner(name)) for name in ("item", "absent")] == [
        ("a.b(x[m > 0]).item()", "a.b(x[m > 0])"),
        ("", ""),
    ]
    assert line.owner("nonzero") == "z" and line.mask() == ("x", "m > 0")


def test_names_of_continuations() -> None:
    for name in ("f", "torch_dynamo_resume_in_f_at_12", "torch_dynamo_resume_in_torch_dynamo_resume_in_f_at_12_at_14"):
        assert plain_name(name) == "f"


@pytest.mark.parametrize(
    ("statement", "code", "name", "value"),
    [
        ("y = (x * 2).tolist()[0]", "(x * 2).tolist()", "owner", "(x * 2)"),
        ("q = x.numpy() if False else log.info('v', z)", "log.info('v', z)", "call", "log.info('v', z)"),
        ("q = x.copy()", "x.copy", "call", "x.copy()"),
        ("n = float(abs(x).item()) + 1", "abs(x).item()", "number", ("float(abs(x).item())", "abs(x)")),
        ("n = int(x.item() * 2)", "x.item()", "number", ("x.item()", "x")),
        ("n = math.exp(float(x.item()))", "x.item()", "number", ("math.exp(float(x.item()))", "torch.exp(x)")),
        ("if a > 0 and x.item():\n    ...", "x.item()", "use", "test"),
        ("if a > 0 and x.item():\n    ...", "x.item()", "choice", "(a > 0) & (x != 0)"),
        ("while x.item() < 3:\n    ...", "x.item()", "use", "loop"),
        ("for i in range(2, int(x)):\n    ...", "int(x)", "use", "count"),
        ("r = range(int(x.max()))", "int(x.max())", "use", "count"),
        ("y = [v for v in x if v.any() > 0]", "v.any() > 0", "condition", "v.any() > 0"),
        ("y = x[m] + z[n > 0]", "z[n > 0]", "mask", ("z", "n > 0")),
        ("with a(b) as c:\n    ...", "", "manager", "a(b)"),
        ("z.foo(y)", "z.foo(y)", "named", "z.foo(y)"),
        ("y = torch.zeros(2, int(x))", "int(x)", "use", "size"),
        ("y = x.view(3).item()", "x.view(3).item()", "use", ""),
        ("y = x[:int(x)]", "int(x)", "use", "size"),
        ("os.environ['A'] = '1'", "os.environ['A']", "named", "os.environ['A'] = '1'"),
    ],
)
def test_names_at_a_place(statement: str, code: str, name: str, value: object) -> None:
    """The line holds other statements too, which are left alone."""
    line = BreakLine(f"first(x).item(); {statement}", statement, code)
    found = getattr(line, name)
    assert (found("absent") if name in ("owner", "call") else found() if name == "mask" else found) == value


@pytest.mark.parametrize(
    ("test", "mask"),
    [
        ("x.sum()", "x.sum() != 0"),
        ("not x.sum()", "x.sum() == 0"),
        ("not x.any()", "~x.any()"),
        ("not (a > 0 and b)", "~((a > 0) & (b != 0))"),
        ("a or torch.isnan(b).item()", "(a != 0) | torch.isnan(b)"),
        ("bool(x.any())", "x.any()"),
        ("bool(x)", "x != 0"),
        ("not bool((x > 0).item())", "~(x > 0)"),
        ("0 < int(x) <= y.item()", "(0 < x.long()) & (x.long() <= y)"),
        ("float(x) - 1 > 0", "x - 1 > 0"),
        ("not torch.equal(x, y + 1)", "~(x == y + 1).all()"),
        ("torch.allclose(x, y, rtol=0)", "torch.isclose(x, y, rtol=0).all()"),
    ],
)
def test_conditions_as_tensors(test: str, mask: str) -> None:
    assert ast.unparse(as_mask(ast.parse(test, mode="eval").body)) == mask


def test_an_error_belongs_to_the_break_behind_which_it_came() -> None:
    """The continuation is that of the caller; the break is in what it calls. Another continuation has no break."""
    called = broke(stack=[at(5, "g(x)"), at(3, "y = x.item()")])
    text = "KeyError: 'k'\n\nfrom user code: …"
    error = broke(text, died=True, function="torch_dynamo_resume_in_f_at_5", stack=[at(6, "z")])
    (row,) = report_from_facts([], [broke(), called, broke(), error], []).breaks
    assert (row.count, row.outcome, row.error) == (3, "died", "KeyError: 'k' (at /p/a.py:6 in f)")
    alone = broke("KeyError: 'k'", died=True, function="torch_dynamo_resume_in_f_at_77")
    report = report_from_facts([], [broke(), alone], [])
    rows = [(row.kind, row.outcome) for row in report.breaks]
    assert rows == [("dynamo-error", "died"), ("tensor-item", "continued")]
    assert report.break_count == 1 and report.found


def test_same_cause_on_the_same_line_is_one_row() -> None:
    other = broke(stack=[at(9, "y = x.item()")])
    report = report_from_facts([], [broke(), broke(function="g"), other], [])
    assert [(row.line, row.count, row.functions) for row in report.breaks] == [(3, 2, ["f", "g"]), (9, 1, ["f"])]
    assert report.break_count == 3 and report.to_json()["break_count"] == 3


def test_worst_first_and_torch_last() -> None:
    library = broke(stack=[at(1, "x.item()", file="/t/torch/a.py", inside="torch")])
    given_up = broke(LOOP, stack=[at(7, "y = x.item()")])
    skipped = UncompiledFact(reason=LOOP, broke=True, stack=given_up.stack, function="f", file="/p/a.py", first_line=1)
    report = report_from_facts([], [library, broke(), given_up], [skipped])
    rows = [(row.inside, row.outcome) for row in report.breaks]
    assert rows == [(None, "function"), (None, "continued"), ("torch", "continued")]
    assert report.breaks[0].kind == "tensor-item" and "inside a loop" in report.breaks[0].consequence
    assert [(row.kind, row.cause) for row in report.uncompiled] == [("break", "the graph break at /p/a.py:7")]


def test_outcomes() -> None:
    assert judge(broke()).outcome == "continued"
    assert judge(broke(handling="Encountered graph break that we cannot resume from. Compiling …")).outcome == "rest"
    assert judge(broke(), gave_up=True).outcome == "function"
    assert judge(broke(raised=True)).outcome == "raised"


def test_nothing_found() -> None:
    assert report_from_facts([], [], []).found is False
    inside = UncompiledFact(reason="Attempt to trace generator", function="g", file="/t/torch/a.py", inside="torch")
    report = report_from_facts([], [], [inside])
    assert report.found is False and len(report.uncompiled) == 1 and not report.own_uncompiled


def test_unknown_break_gives_torchs_words_and_the_users_frame() -> None:
    text = "A new sort of break\n  Explanation: It broke.\n  Hint: Do this.\n\n  Developer debug context: "
    row = judge(broke(text, "z"))
    assert (row.kind, row.cause, row.remedy) == ("unsupported", "A new sort of break", "Do this.")
    row = judge(broke("", stack=[]))
    assert (row.kind, row.file, row.line) == ("unsupported", "/p/a.py", 1)
    torch_frame = at(1, "", inside="torch")
    assert user_frame([at(5, "a"), torch_frame]) == at(5, "a")
    assert user_frame([torch_frame]) == torch_frame and user_frame([]) is None


def test_facts_survive_the_file() -> None:
    facts = [broke(), UncompiledFact(reason="because", function="f", file="a.py")]
    data = "".join(map(json_line, facts)).encode()
    unread: list[str] = []
    assert facts_from_lines(data, unread.append) == ([facts[0]], [facts[1]]) and not unread
    breaks, uncompiled = facts_from_lines(data[:-10], unread.append)
    assert (len(breaks), len(uncompiled), len(unread)) == (1, 0, 1)


def test_rules_are_whole() -> None:
    """Each sentence names only what there is, and the last rule takes everything."""
    assert RULES[-1].match("anything\nat all", "", "", "") == {}
    assert all(re.fullmatch("[a-z-]+", rule.kind) for rule in RULES)
    for rule in RULES:
        names = breaks._names(Part("title"), BreakLine("x"), "f", rule.source, {})
        for sentence in (rule.cause, rule.remedy):
            assert not re.search(r"\{\w*\}", fill(sentence, names)), rule.kind


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
