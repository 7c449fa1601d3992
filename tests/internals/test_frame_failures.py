"""The tap on Dynamo's conversion of frames."""

import dis
import inspect
import linecache
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import pytest
import torch
from torch._dynamo import convert_frame

from graphprobe.analysis.recompile_facts import ReadGuard
from graphprobe.internals.dynamo.frame_failures import FailedFrame, FrameFailures, marked_function, uncompiled
from graphprobe.internals.dynamo.graph_breaks import code_at
from graphprobe.internals.dynamo.recompile_taps import value_in_frame


def branch(x: torch.Tensor, k: int = 1) -> torch.Tensor:
    if x.sum() > k:
        return x + 1
    return x - 1


@contextmanager
def watched(told: Callable[[FailedFrame], object], failed: Callable[[Exception], object]) -> Iterator[None]:
    original, failures = convert_frame._compile, FrameFailures(told, failed)
    failures.install()
    try:
        yield
    finally:
        assert failures.remove() == [] and convert_frame._compile is original


def compile_all(*calls: tuple[Callable[..., Any], tuple[Any, ...], bool]) -> tuple[list[FailedFrame], list[Exception]]:
    found: list[FailedFrame] = []
    errors: list[Exception] = []
    with watched(found.append, lambda error: pytest.fail(repr(error))):
        for function, args, fullgraph in calls:
            try:
                torch.compile(function, backend="eager", fullgraph=fullgraph)(*args)
            except Exception as error:
                errors.append(error)
    return found, errors


def test_a_frame_comes_with_what_it_was_given() -> None:
    x = torch.ones(3)
    (frame,), (error,) = compile_all((branch, (x, 2), True))
    assert frame.code is branch.__code__ and frame.locals["x"] is x and frame.locals["k"] == 2
    assert frame.globals is globals() and frame.closure == () and frame.error is error
    assert frame.fullgraph and not frame.suppressed and not frame.is_continuation
    file, line, function, text = frame.stack[-1]
    assert (file, function, text) == (__file__, "branch", "if x.sum() > k:")
    assert line == branch.__code__.co_firstlineno + 1 and frame.dynamic == [] and frame.unresolved == []


def test_what_torch_keeps_to_itself_is_told_apart() -> None:
    def refused(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            try:
                torch._dynamo.graph_break()
            finally:
                x = x + 1
        return x

    (frame,), errors = compile_all((refused, (torch.ones(3),), False))
    assert (errors, frame.code.co_name, frame.suppressed, frame.fullgraph) == ([], "refused", True, False)


def test_a_failing_backend_is_no_failure_to_trace() -> None:
    def backend(gm: Any, inputs: Any) -> Any:
        raise RuntimeError("no")

    found: list[FailedFrame] = []
    with watched(found.append, found.append), pytest.raises(Exception, match="no"):  # type: ignore[arg-type]
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert found == []


def test_sizes_that_became_symbols_are_found_in_containers() -> None:
    def grows(pair: Any) -> torch.Tensor:
        return pair[1]["t"] if pair[1]["t"].shape[0] == 3 else branch(pair[1]["t"])

    second = torch.ones(5)
    compiled = [(grows, (("a", {"t": torch.ones(3)}),), True), (grows, (("a", {"t": second}),), True)]
    (frame,), _ = compile_all(*compiled)
    ((value, dims),) = frame.dynamic
    assert value is second and dims == [0]


def test_an_observer_that_fails_is_called_once() -> None:
    told: list[Exception] = []
    with watched(lambda frame: {}["planted"], told.append):
        for function in (branch, lambda x: branch(x)):
            with pytest.raises(torch._dynamo.exc.Unsupported):
                torch.compile(function, backend="eager", fullgraph=True)(torch.ones(3))
    assert [repr(error) for error in told] == ["KeyError('planted')"]


def test_wrapped_functions_and_modules_are_opened() -> None:
    module = torch.nn.ReLU()
    assert uncompiled(torch.compile(branch, backend="eager")) is branch
    assert uncompiled(torch.compile(module, backend="eager")) is module
    for recursive in (True, False):
        off: Any = torch.compiler.disable(branch, recursive=recursive, reason="slow")
        marks, inner, settings = marked_function(off) or (None, None, {})
        assert (marks, inner) == (torch.compiler.disable, branch) and uncompiled(off) is off
        assert settings == {"recursive": recursive, "reason": "slow"}
    assert marked_function(branch) is None and uncompiled(3) == 3


@pytest.mark.parametrize("given", [{}, {"max_reuse_entries": 3}])
def test_a_region_is_made_anew_by_what_marks_it(given: dict[str, int]) -> None:
    if not given.keys() <= inspect.signature(torch.compiler.nested_compile_region).parameters.keys():
        pytest.skip("this torch takes nothing of the kind")

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    region: Any = torch.compiler.nested_compile_region(doubled, **given)  # type: ignore[no-untyped-call]
    assert marked_function(region) == (torch.compiler.nested_compile_region, doubled, given)
    assert marked_function(doubled) is None


PROGRAM = """
def f(x, y):
    a = 1; b = foo(x,
       y) + (x
        .bar(1)
        .baz(
          2
        ))
    if (x.a()
        and y > 3): z = x.q()
    with open("é") as g: x.foo("é").bar()
    for v in (x*2).tolist(): s = lambda: v.item()
    try: x.t()
    except ValueError: x.u()
    match x.m():
        case 3 if x.n(): x.o()
    return [float(w.item()) for w in x if w.k()]
"""
BAZ, MATCH = "b = foo(x, y) + x.bar(1).baz(2)", "match x.m():\n    case _:\n        ..."
LISTED = "return [float(w.item()) for w in x if w.k()]"
STATEMENTS = {
    **dict.fromkeys(("foo(x, y)", "x.bar(1)", "x.bar(1).baz(2)"), BAZ),
    "x.a()": "if x.a() and y > 3:\n    ...",
    "x.q()": "z = x.q()",
    "open('é')": "with open('é') as g:\n    ...",
    **dict.fromkeys(("x.foo('é')", "x.foo('é').bar()"), "x.foo('é').bar()"),
    "(x * 2).tolist()": "for v in (x * 2).tolist():\n    ...",
    "v.item()": "s = lambda: v.item()",
    **{call: call for call in ("x.t()", "x.u()", "x.o()")},
    **dict.fromkeys(("x.m()", "x.n()"), MATCH),
    **dict.fromkeys(("w.item()", "float(w.item())", "w.k()"), LISTED),
}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> str:
    lines = PROGRAM.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, "<statements>", (len(PROGRAM), None, lines, "<statements>"))
    return "<statements>"


def calls(code: CodeType, kind: str) -> Iterator[dis.Positions]:
    yield from (at.positions for at in dis.get_instructions(code) if at.opname.startswith(kind) and at.positions)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from calls(constant, kind)


def at_each(program: str, kind: str) -> set[tuple[str, str]]:
    """Statement and expression at each instruction of a kind."""
    positions = calls(compile(PROGRAM, program, "exec"), kind)
    return {code_at(program, at.lineno, at.col_offset, at.end_col_offset) for at in positions}


def test_every_call_and_every_jump_has_its_statement(program: str) -> None:
    found = {code: statement for statement, code in at_each(program, "CALL")}
    assert {code: found.get(code) for code in STATEMENTS} == STATEMENTS
    assert ("if x.a() and y > 3:\n    ...", "y > 3") in at_each(program, "POP_JUMP")


def test_nothing_where_nothing_is_known(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(linecache.cache, "<odd>", (3, None, ["a b c\n"], "<odd>"))  # no Python
    nowhere = [(program, None, 0, 1), (program, 3, None, 1), (program, 3, 0, None), (program, 1, 0, 1)]
    for at in (*nowhere, (program, 999, 0, 1), ("<absent>", 3, 4, 9), ("<odd>", 1, 0, 1)):
        assert code_at(*at) == ("", ""), at


class Loud:
    """Everything that can be asked of it is counted."""

    def __init__(self) -> None:
        self.plain = 3
        self.asked: list[str] = []

    @property
    def computed(self) -> int:
        self.asked.append("computed")
        return 4

    def __getattr__(self, name: str) -> int:
        self.asked.append(name)
        return 5

    def __len__(self) -> int:
        self.asked.append("len")
        return 6

    def __repr__(self) -> str:
        self.asked.append("repr")
        return "Loud"

    def __getitem__(self, key: object) -> int:
        self.asked.append("item")
        return 7


class LoudDict(dict[str, int]):
    def __getitem__(self, key: str) -> int:
        raise AssertionError("the program's own code ran")


def value(kind: str, source: str, scope: dict[str, Any], dim: int | None = None) -> str | None:
    return value_in_frame(ReadGuard(kind, source, dim), scope, {"K": 8})


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [
        ("attribute-changed", "o.plain", "3"),
        ("attribute-changed", "o.computed", None),
        ("attribute-changed", "o.absent", None),
        ("int-changed", "o[0]", None),
        ("length-changed", "o", None),
        ("object-changed", "o", "a Loud"),
        ("type-changed", "o", f"{__name__}.Loud"),
    ],
)
def test_the_programs_code_does_not_run(kind: str, source: str, expected: str | None) -> None:
    loud = Loud()
    assert value(kind, source, {"o": loud}) == expected
    assert loud.asked == []


def test_plain_values() -> None:
    scope = {"n": 3, "s": "x" * 500, "d": LoudDict(a=1), "xs": [1, (2,)], "t": torch.ones(2, 5), "G": 1}
    whole = {source: value("int-changed", source, scope) for source in ("n", "d['a']", "xs[1][0]", "absent", "f(n)")}
    assert whole == {"n": "3", "d['a']": "1", "xs[1][0]": "2", "absent": None, "f(n)": None}
    assert len(value("string-changed", "s", scope) or "") == 60
    assert (value("length-changed", "xs", scope), value("keys-changed", "d", scope)) == ("2", "'a'")
    assert [value("size-bounds", "t", scope, dim=dim) for dim in (1, 2)] == ["5", None]
    assert value_in_frame(ReadGuard("global-changed", "G['K']"), {}, {"K": 8}) == "8"
