"""Statement and expression of every call and jump of a program, found by the columns that CPython keeps."""

from __future__ import annotations

import dis
import linecache
from collections.abc import Iterator
from types import CodeType

import pytest

from graphprobe.internals.dynamo.graph_breaks import code_at

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
STATEMENTS = {
    "foo(x, y)": "b = foo(x, y) + x.bar(1).baz(2)",
    "x.bar(1)": "b = foo(x, y) + x.bar(1).baz(2)",
    "x.bar(1).baz(2)": "b = foo(x, y) + x.bar(1).baz(2)",
    "x.a()": "if x.a() and y > 3:\n    ...",
    "x.q()": "z = x.q()",
    "open('é')": "with open('é') as g:\n    ...",
    "x.foo('é')": "x.foo('é').bar()",
    "x.foo('é').bar()": "x.foo('é').bar()",
    "(x * 2).tolist()": "for v in (x * 2).tolist():\n    ...",
    "v.item()": "s = lambda: v.item()",
    "x.t()": "x.t()",
    "x.u()": "x.u()",
    "x.m()": "match x.m():\n    case _:\n        ...",
    "x.n()": "match x.m():\n    case _:\n        ...",
    "x.o()": "x.o()",
    "w.item()": "return [float(w.item()) for w in x if w.k()]",
    "float(w.item())": "return [float(w.item()) for w in x if w.k()]",
    "w.k()": "return [float(w.item()) for w in x if w.k()]",
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


def test_every_call(program: str) -> None:
    found = {}
    for at in calls(compile(PROGRAM, program, "exec"), "CALL"):
        statement, code = code_at(program, at.lineno, at.col_offset, at.end_col_offset)
        found[code] = statement
    assert {code: found.get(code) for code in STATEMENTS} == STATEMENTS


def test_every_jump_has_its_statement(program: str) -> None:
    found = {
        code_at(program, at.lineno, at.col_offset, at.end_col_offset)
        for at in calls(compile(PROGRAM, program, "exec"), "POP_JUMP")
    }
    assert ("if x.a() and y > 3:\n    ...", "y > 3") in found


@pytest.mark.parametrize("at", [(None, 0, 1), (3, None, 1), (3, 0, None), (1, 0, 1), (999, 0, 1)])
def test_nothing_where_nothing_is_known(program: str, at: tuple[int | None, int | None, int | None]) -> None:
    assert code_at(program, *at) == ("", "")
    assert code_at("<absent>", 3, 4, 9) == ("", "")


def test_a_file_that_is_no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(linecache.cache, "<odd>", (3, None, ["a b c\n"], "<odd>"))
    assert code_at("<odd>", 1, 0, 1) == ("", "")
