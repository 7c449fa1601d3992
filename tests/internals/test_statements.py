"""Statement and expression of every call and jump of a program, found by the columns that CPython keeps."""

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
