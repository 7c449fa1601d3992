"""The user's source: what computed what is returned, and programs that are rewritten."""

import ast
import linecache
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from graphprobe.diagnose.dynamo import rewriting
from graphprobe.diagnose.dynamo.frame_places import FramePlace, is_users, places_of, text_raised
from graphprobe.diagnose.dynamo.python_source import returned_names, source_at


def written(text: str, name: str) -> str:
    """A file with this text that only the cache of lines has."""
    file = f"/program/{name}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    source_at.cache_clear()
    return file


def scope_of(text: str, name: str) -> dict[str, Any]:
    """What a file with this text defines."""
    scope = dict[str, Any]()
    exec(compile(text, written(text, name), "exec"), scope)
    return scope


def test_what_computed_a_part() -> None:
    for body, path, wanted in (
        ("log = []; log.append(abs(n)); log.append(repr(n)); return n, log", "1.1", "repr"),
        ("box = {}; box['a'] = str(n); return box", "a", "str"),
        ("return [abs(n), (n, repr(n))]", "1.1", "repr"),
    ):
        scope = scope_of(f"def program(n):\n    {body}\n", "returned")
        first = returned_names(scope["program"], path)[0]
        assert (first.name, first.source) == (wanted, "/program/returned.py:2")


PROGRAM = """
import contextlib

class Box:
    def __init__(self, n):
        self.__n = n
        self.k = {}

    def grow(self, by):
        self.__n += by
        self.k["a"] = self.__n
        return super().__repr__()[:0]

def program(n):
    total, seen = 0, []
    def add(v):
        nonlocal total
        total += v
    for i in range(n):
        if i == 3:
            continue
        try:
            add([1, 2][i])
        except IndexError as error:
            seen.append(str(error))
        else:
            seen += [f"{i}!"]
    box = Box(2)
    text = box.grow(by=3) + "%d" % -n
    while n > 0:
        n -= 4
        if n in (1, 2) and not seen:
            return None
    with contextlib.nullcontext():
        (a, *b), box.c = [x * 2 for x in range(3)], len(seen)
        del box.k["a"]
    match b:
        case [2, last]:
            return total, seen, text, a, last, vars(box)
"""


@pytest.mark.parametrize("how", ["apart", "break", ""])
def test_a_rewritten_program_does_the_same(how: Any) -> None:
    scope = scope_of(PROGRAM, "rewritten")
    functions = [scope["program"], scope["Box"].__init__, scope["Box"].grow]
    wanted, before = scope["program"](9), [f.__code__ for f in functions]
    pieces = rewriting.rewrite(functions, lambda _: how)
    assert len(pieces) > 30 and {"IndexError", "self.__n +=", "format", "operator.neg"} <= {p.names[0] for p in pieces}
    assert [f.__code__ is code for f, code in zip(functions, before, strict=True)] == [not how] * 3
    assert scope["program"](9) == wanted
    alone = rewriting.rewrite(functions, lambda n: "apart" if n == 0 else "")
    assert len(alone) == len(pieces)


def test_frames() -> None:
    def call() -> list[FramePlace]:
        return places_of(sys._getframe(0), sys._getframe(1).f_code)

    (frame,) = call()
    assert (frame.file, frame.function.rpartition(".")[2]) == (__file__, "call")
    assert is_users(__file__)
    assert not any(map(is_users, (torch.__file__, ast.__file__, str(Path("<frozen importlib._bootstrap>")))))
    with pytest.raises(ValueError, match="invalid literal") as caught:
        int(str(math.floor(2.5)) + "none")
    assert text_raised(caught.value) == "int"
