"""Finds the piece of the user's code that Dynamo gets wrong: the one without which the rest is compiled rightly."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import CodeType
from typing import Any, Literal

import msgspec
import torch
from torch.overrides import TorchFunctionMode

from graphprobe.analysis.breaks_edits import codes_in
from graphprobe.diagnose.dynamo.frame_places import is_users, text_raised
from graphprobe.diagnose.dynamo.rewriting import SourcePiece, alone, rewrite, run_piece
from graphprobe.diagnose.exceptions import Culprit
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.forked_child import doing, isolated
from graphprobe.engine.naming import is_library, name_of
from graphprobe.internals.operators.operators import OpMode
from graphprobe.judge.judging import compare, identical
from graphprobe.judge.observation import ObservationRecord, read
from graphprobe.judge.uncompiled import Reference

MOST_OPS = 20
"""Names of ops that are kept of a piece."""

MOST_ALONE = 12
"""Pieces that are compiled by themselves."""

MOST_DEEP = 6
"""Calls of the user's functions that the search goes into."""

Way = Literal["apart", "break", "alone"]
"""How pieces are run: uncompiled, behind a break of the graph, or compiled in a program that is not."""

OWN_FUNCTION = "autograd_function_apply"
"""How Dynamo calls a class derived from `torch.autograd.Function`."""


def accused(program: Program, compilation: Compilation) -> Culprit | None:
    """The piece of the user's code that has to be left out for the compiled program to be right; None if none is."""
    with contextlib.suppress(Exception):  # imports, which each child would repeat
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    torch.compiler.reset()
    with compilation.configured():
        test = Experiment(program, compilation)
        pieces = test.pieces_run()
        return test.accused(pieces) if test.reference.eager[0] else None


def functions_run(codes: Iterable[tuple[str, str, int]]) -> list[types.FunctionType]:
    """The functions whose code has such files, names and lines, in this order, without those inside of others."""
    order = {key: i for i, key in enumerate(codes)}
    gc.unfreeze()  # a forked process does not look at what its parent had
    functions = [
        value for value in gc.get_objects() if type(value) is types.FunctionType and key_of(value.__code__) in order
    ]
    inner = {code for function in functions for code in codes_in(function.__code__)}
    return sorted((f for f in functions if f.__code__ not in inner), key=lambda f: order[key_of(f.__code__)])


def key_of(code: CodeType) -> tuple[str, str, int]:
    """What tells one function's code from another's, in any process."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


def codes_run(program: Program) -> list[tuple[str, str, int]]:
    """The user's functions that the program runs, uncompiled, in this order; run it in a child."""
    found: dict[CodeType, None] = {}

    def look(frame: Any, event: str, _: Any) -> None:
        if event == "call" and is_users(frame.f_code.co_filename):
            found.setdefault(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        program.run(lambda fn: fn)
    finally:
        sys.setprofile(before)
    return [*map(key_of, found)]


def pieces_run(program: Program, functions: Sequence[types.FunctionType]) -> list[tuple[int, SourcePiece]]:
    """The pieces that the uncompiled program runs, in the order in which they end; run it in a child."""
    ended: dict[int, None] = {}
    inside: dict[int, dict[int, None]] = defaultdict(dict)
    ops: dict[int, dict[str, None]] = defaultdict(dict)
    running: list[int] = []

    def watch(number: int, kind: str, *args: Any, **kwargs: Any) -> Any:
        inside[number].update(dict.fromkeys(running))
        running.append(number)
        owner = args[0] if kind == "method" and isinstance(args[0], torch.nn.Module) else None
        module = owner._modules.get(args[1]) if owner is not None else args[0] if kind == "call" else None
        if isinstance(module, torch.nn.Module) and type(module).__name__ not in names[number]:
            names[number].insert(0, type(module).__name__)
        try:
            return run_piece(kind, args, kwargs)
        except Exception as error:
            ops[number].update(dict.fromkeys(filter(None, [text_raised(error)])))
            raise
        finally:
            running.pop()
            ended.setdefault(number)
            if kind == "call" and not ops[number] and str(getattr(args[0], "__module__", "")).startswith("torch"):
                ops[number][name_of(args[0])] = None

    def called(name: str) -> None:
        for number in running:
            if len(ops[number]) < MOST_OPS:
                ops[number].setdefault(name)

    def around(op: Any, args: Any, kwargs: Any) -> Any:
        called(name_of(op))
        return op(*args, **kwargs)

    pieces = rewrite(functions, lambda _: "apart", watch, lambda value, _: value)
    names = [piece.names for piece in pieces]
    program.run(lambda fn: fn)
    raised = {number: dict(names) for number, names in ops.items()}
    with contextlib.suppress(Exception), OpMode(around), _Called(called):
        program.run(lambda fn: fn)
    for number in ended:
        pieces[number].inside = [*inside[number]]
        pieces[number].ops = [*(raised.get(number) or {} | ops[number])]
    return [(number, pieces[number]) for number in ended]


class _Called(TorchFunctionMode):
    def __init__(self, called: Callable[[str], None]) -> None:
        super().__init__()
        self.called = called

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        method = getattr(torch.Tensor, name, None) is func
        self.called(f"torch.Tensor.{name}" if method else name_of(func))
        return func(*args, **(kwargs or {}))


class Experiment:
    """Asks whether the program is right with some pieces left out.

    Attributes:
        asked: how often.
    """

    def __init__(self, program: Program, compilation: Compilation) -> None:
        self.program, self.compilation = program, compilation
        self.asked = 0
        self._known: dict[tuple[frozenset[int], Way], bool] = {}
        self._exactly = False
        self.functions: list[types.FunctionType] = []
        self.functions = functions_run(map(tuple, self._child(lambda: codes_run(program)) or []))
        self.reference = Reference([self._calls(lambda: program.run(lambda fn: fn)) or []])

    def _child(self, step: Callable[[], Any]) -> Any:
        codes = [function.__code__ for function in self.functions]
        try:
            return isolated(step, timeout_s=self.compilation.timeout_s).value
        finally:
            for function, code in zip(self.functions, codes, strict=True):
                function.__code__ = code  # rewritten here where a fork is impossible

    def _calls(self, step: Callable[[], Any]) -> list[Any] | None:
        value = self._child(step)
        return None if value is None else [read(call) for call in msgspec.convert(value, list[ObservationRecord])]

    def pieces_run(self) -> dict[int, SourcePiece]:
        """The pieces that run, in the order in which they end."""
        found = self._child(lambda: pieces_run(self.program, self.functions)) or []
        return dict(msgspec.convert(found, list[tuple[int, SourcePiece]]))

    def right(self, pieces: Iterable[int], way: Way = "apart") -> bool:
        """Whether the compiled program does the same as uncompiled with these pieces run in this way."""
        key = frozenset(pieces), way
        if key not in self._known:
            self.asked += 1
            doing(f"Dynamo without {len(key[0])} pieces of the program")
            calls = self._calls(lambda: self._run(*key))
            exactly = self._exactly or not (key[0] or calls is None or compare(self.reference, calls))
            self._exactly = exactly
            same = calls is not None and identical(self.reference, calls)
            self._known[key] = same or not (exactly or calls is None or compare(self.reference, calls))
        return self._known[key]

    def _run(self, pieces: frozenset[int], way: Way) -> list[ObservationRecord]:
        torch.compiler.reset()
        if way == "alone":
            rewrite(self.functions, lambda n: "apart" if n in pieces else "", alone, lambda value, _: value)
            return self.program.run(lambda fn: fn)
        rewrite(self.functions, lambda n: way if n in pieces else "")
        compilation = replace(self.compilation, fullgraph=self.compilation.fullgraph and not pieces)
        return self.program.run(partial(compilation.compiled, backend="eager"))

    def proven(self, pieces: Sequence[int]) -> bool:
        """Whether it is what the pieces do, and not only the breaks of the graph around them."""
        return self.right(pieces) and not self.right(pieces, "break")

    def enough(self, pieces: Sequence[int], *, last: bool = True) -> list[int]:
        """The last run of pieces that is enough to leave out, or the first, in halves; all of them are."""
        ways = [self.proven, self.right] if self.proven(pieces) else [self.right]
        while len(pieces) > 1:
            middle = len(pieces) // 2
            halves = [pieces[:middle], pieces[middle:]]
            half = next((half for way in ways for half in halves[:: -1 if last else 1] if way(half)), None)
            if half is None:
                break
            pieces = half
        return [*pieces]

    def accused(self, pieces: dict[int, SourcePiece]) -> Culprit | None:
        """The piece to blame, from the outermost calls inwards; of several that are enough the last, then the first."""
        level = [number for number, piece in pieces.items() if not piece.inside]
        path: list[int] = []
        others: list[int] = []
        if self.right([]):
            return None
        while level and len(path) < MOST_DEEP and (self.proven(level) if path else self.right(level)):
            found = self.enough(level)
            others = self.enough(level, last=False)
            path = [*reversed(found), *path]
            if len(found) > 1 or pieces[found[0]].whole:
                break
            level = [number for number, piece in pieces.items() if piece.inside[-1:] == found]
        if not path:
            return None
        within = [number for number, piece in pieces.items() if path[0] in piece.inside]
        guilty: list[int] = []
        if pieces[path[0]].whole:
            guilty = [n for n in within[:MOST_ALONE] if not self.right([n], "alone")]
        first, *rest = dict.fromkeys([*guilty, *path[:1], *others, *path])
        reason = "the program is right if this alone is not compiled"
        if not guilty and not self.proven([first]):
            reason = "the program is right if this is not compiled, and the graph breaks here"
        return _accused([pieces[n] for n in (first, *rest, *within)], 1 + len(rest), reason)


def _accused(pieces: Sequence[SourcePiece], sure: int, reason: str) -> Culprit:
    """The first piece as the one to blame; those from `sure` on are in it."""
    named = pieces[:sure]
    owner = next((piece.owner for piece in pieces if piece.owner), "")
    names = [OWN_FUNCTION, f"{owner}.apply"] if owner else []
    first, *others = named
    called = first.names[0].rpartition(".")[2]
    names.append(called if f"torch.Tensor.{called}" in first.ops else first.names[0])  # as Dynamo's graph calls it
    names += [*(p.names[0] for p in others), *_ops(first), *first.names[1:]]
    names += [name for piece in pieces for name in (*piece.names, *_ops(piece))]
    op, *also = dict.fromkeys(name for name in names if name != "iter" or len(pieces) == 1)
    place = first.source
    outer = next((p.source for p in (*named, *pieces) if not is_library(p.source)), None)
    return Culprit(op=op, source=place, reason=reason, also=also, called_from=outer if is_library(place) else None)


def _ops(piece: SourcePiece) -> list[str]:
    """What a piece called of torch, its namesake first."""
    last = re.split(r"\W", piece.names[0])[-1]
    return sorted(piece.ops, key=lambda op: op.split(".")[-1] != last)
