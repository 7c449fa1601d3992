"""Goes on behind each graph break of a call, and tries what the remedies say, in child processes."""

from __future__ import annotations

import ast
import contextlib
import gc
import linecache
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import msgspec
import torch

from graphprobe.analysis.breaks import judge, user_frame
from graphprobe.analysis.breaks_edits import KEEP, NOTHING, VALUES, Edit, EditedSource, clauses, edit_of
from graphprobe.analysis.breaks_facts import BreakFact, HeardBreaks, TriedBreak
from graphprobe.analysis.breaks_text import BreakLine
from graphprobe.engine.forked_child import isolated
from graphprobe.engine.values import capture, from_bytes, to_bytes
from graphprobe.internals import after_fork
from graphprobe.internals.dynamo.graph_breaks import listen
from graphprobe.internals.tensors import tree_leaves, tree_map

MOST_PLACES = 100
"""Places of one call that are looked for."""
STEP_S = 60.0
"""Seconds that one run of the call in a child process may take."""

OF_TORCH = ("setting", "enable")
"""Edits that leave the text of the program as it is."""

Key = tuple[str, int, str]
Numbered = Sequence[tuple[int, Edit]]
Captured = tuple[list[int], bytes, bytes] | None
"""Values of places, with their numbers in front."""


class BreakPlace(msgspec.Struct):
    """A break, and how tracing goes on behind it.

    Attributes:
        fact: the break, as it was first seen.
        edit: what lets tracing go on: a setting, a remedy, or the value from the run.
        turned: the condition that goes the other way where this is reached, if there is one.
        remedy: the parts of the remedy that were seen to work.
        stuck: nothing lets tracing go on.
    """

    fact: BreakFact
    edit: Edit
    turned: Key | None = None
    remedy: list[str] = []
    stuck: bool = False

    @property
    def kind(self) -> str:
        """As in `GraphBreak`."""
        return judge(self.fact).kind

    @property
    def told(self) -> str:
        """As one text."""
        whole = judge(self.fact).remedy
        return whole if clauses(whole) == self.remedy else "; or ".join(self.remedy)


class CallSeen(msgspec.Struct):
    """What one run of the call showed: its breaks, what it raised, and its results in short."""

    breaks: list[BreakFact] = []
    error: str = ""
    result: str = ""

    @property
    def keys(self) -> set[Key]:
        """The places of the breaks."""
        return {key for fact in self.breaks if (key := key_of(fact)) is not None}


def key_of(fact: BreakFact) -> Key | None:
    """File, line and expression; None for a break in torch or Python's library."""
    frame = user_frame(fact.stack)
    return None if frame is None or frame.inside is not None else (frame.file, frame.line or 0, frame.code)


class Behind:
    """All breaks of a call. Each question is one more run of the call, in a child, from the state that it has here."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        dynamic: bool | None = None,
        budget_s: float,
        found: Callable[[BreakFact], None] = lambda fact: None,
    ) -> None:
        """`found` is called with each place at once."""
        self.places: dict[Key, BreakPlace] = {}
        self._fn, self._args, self._kwargs, self._dynamic = fn, args, kwargs, dynamic
        self._deadline, self._found = time.monotonic() + budget_s, found
        self._kept: dict[str, tuple[Captured, str]] = {}
        self._seen: dict[str, CallSeen] = {}
        self._functions: dict[str, list[FunctionType]] = {}
        self._ended, self._whole = False, True

    def look(self) -> None:
        """Find the places, and what works at each; nothing where no child can be forked."""
        if not after_fork.can_fork():
            return
        self._walk(None)
        for key, place in list(self.places.items()):
            frame = user_frame(place.fact.stack)
            line = None if frame is None else BreakLine(frame.source, frame.statement, frame.code)
            if line is not None and line.use == "test" and line.form != "Assert" and place.turned is None:
                self._walk(key)  # what comes the other way
        for key in self.places:
            self._try(key)
        self._ended = self._whole and not self._late()

    def tried(self) -> list[TriedBreak]:
        """What is known so far."""
        return [
            TriedBreak(fact=place.fact, remedy=place.told, passed=self._ended and not place.stuck)
            for place in self.places.values()
        ]

    def _late(self) -> bool:
        return time.monotonic() > self._deadline

    def _edits(self, turned: Key | None, without: Key | None = None) -> list[Edit]:
        edits = [place.edit for key, place in self.places.items() if not place.stuck and key not in (turned, without)]
        return edits if turned is None or turned == without else [*edits, Edit("flip", *turned)]

    def _walk(self, turned: Key | None) -> None:
        """Go on behind each break, as long as there is a new one."""
        while not self._late() and len(self.places) < MOST_PLACES:
            seen = self._run(self._edits(turned))
            facts = {key: fact for fact in seen.breaks if (key := key_of(fact)) is not None}
            again = [self.places[key] for key in facts if key in self.places and not self.places[key].stuck]
            new = [key for key in facts if key not in self.places]
            for key in new:
                place = self.places[key] = BreakPlace(facts[key], Edit("value", *key), turned)
                if place.kind == "dynamic-shape-operator":
                    place.edit = Edit("setting", *key, old="capture_dynamic_output_shape_ops")
                self._found(facts[key])
            for place in again if turned is None else ():
                place.stuck, place.edit = place.edit.action == "value", Edit("value", *place.edit.place)
            if not new and (turned is not None or not again):
                # An error that the call does not raise uncompiled keeps the rest of it from being seen.
                self._whole = self._whole and (turned is not None or seen.result.startswith(seen.error))
                return

    def _try(self, key: Key) -> None:
        """Which parts of a remedy help, beside those of the places before it."""
        place = self.places[key]
        others = self._edits(place.turned, key)
        before = self._run([*others, place.edit])
        for clause in clauses(judge(place.fact).remedy):
            edit = edit_of(clause, Edit("value", *key))
            if edit is None or place.stuck or self._late():
                continue
            if edit.action == "value":
                helps = _source(edit.file).movable(edit)
            else:
                seen = self._run([*others, edit])
                same = seen.result == before.result or place.kind == "random"
                helps = same and key not in seen.keys and seen.keys <= before.keys and seen.error == before.error
            if helps:
                place.edit = place.edit if place.remedy else edit
                place.remedy.append(clause)

    def _run(self, edits: Sequence[Edit]) -> CallSeen:
        """The breaks of the call with these edits, and its results uncompiled."""
        numbers = {key: number for number, key in enumerate(self.places)}
        numbered = sorted(((numbers[edit.place], edit) for edit in edits), key=repr)
        if repr(numbered) not in self._seen:
            asked = [row for row in numbered if row[1].action not in OF_TORCH]
            for file in {edit.file for edit in edits} - self._functions.keys():  # a child would copy what it looks at
                found = (thing for thing in gc.get_objects() if type(thing) is FunctionType)
                self._functions[file] = [function for function in found if function.__code__.co_filename == file]
            if repr(asked) not in self._kept:
                outcome = isolated(partial(self._captured, asked), timeout_s=STEP_S)
                self._kept[repr(asked)] = outcome.value or (([], *to_bytes(capture([]))), outcome.end)
            values, result = self._kept[repr(asked)]
            outcome = isolated(partial(self._trace, numbered, values), timeout_s=STEP_S)
            seen = CallSeen(error=outcome.end) if outcome.value is None else msgspec.convert(outcome.value, CallSeen)
            self._seen[repr(numbered)] = msgspec.structs.replace(seen, result=result)
        return self._seen[repr(numbered)]

    def _captured(self, edits: Numbered) -> tuple[Captured, str]:
        """The values that the places have in a run uncompiled, and its results; no values if some cannot be sent."""
        values, result = self._keep(edits)
        captured = capture(list(values.values()), rng=False)
        return None if captured.opaque else (list(values), *to_bytes(captured)), result

    def _keep(self, edits: Numbered) -> tuple[dict[int, list[Any]], str]:
        tests = {number for number, place in enumerate(self.places.values()) if "data-dependent" in place.kind}
        values: dict[int, list[Any]] = {}

        def keep(number: int, value: Any, flipped: bool) -> Any:
            value = not value if flipped else bool(value) if number in tests else value
            values.setdefault(number, []).append(_copied(value))
            return value

        self._install(edits, keep=keep)
        try:
            result = _in_short(self._fn(*self._args, **self._kwargs))
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        return values, result

    def _trace(self, edits: Numbered, captured: Captured) -> CallSeen:
        if captured is None:
            kept, _ = self._keep(edits)
        else:
            kept = dict(zip(captured[0], from_bytes(*captured[1:]).restore(), strict=True))
        self._install(edits, kept)
        for _, edit in edits:
            if edit.action in OF_TORCH:
                _set(edit, self._functions[edit.file])
        seen, heard = CallSeen(), HeardBreaks()
        torch.compiler.reset()
        stop = listen(heard)
        try:
            torch.compile(self._fn, backend="eager", dynamic=self._dynamic)(*self._args, **self._kwargs)
        except Exception as error:
            seen.error = type(error).__name__
        stop()
        seen.breaks = heard.breaks
        return seen

    def _install(
        self,
        edits: Numbered,
        values: dict[int, list[Any]] | None = None,
        *,
        keep: Callable[[int, Any, bool], Any] | None = None,
    ) -> None:
        """Put the edited code in the place of the program's, in this process; one that keeps values, or has them."""
        for file in {edit.file for _, edit in edits}:
            source = _source(file, values)
            source.apply([(n, edit) for n, edit in edits if edit.file == file and edit.action not in OF_TORCH])
            codes = source.codes(file)
            for function in self._functions[file]:
                code = codes.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
                if code is None or code.co_freevars != function.__code__.co_freevars:
                    continue
                function.__code__ = code
                names = function.__globals__
                names[VALUES], names[KEEP], names[NOTHING] = values, keep, contextlib.nullcontext
                for number, definition in source.classes.items():
                    if values is not None and number not in values:
                        exec(compile(ast.Module([definition], []), file, "exec"), scope := dict(names))
                        values[number] = [scope[definition.name]]


def _source(file: str, values: Collection[int] | None = None) -> EditedSource:
    return EditedSource("".join(linecache.getlines(file)), values)


def _set(edit: Edit, functions: Sequence[FunctionType]) -> None:
    """Change a setting of torch, or have a function compiled; a name means what it means at the place."""
    config = sys.modules["torch._dynamo.config"]
    if not edit.new:
        setattr(config, edit.old, True)
        return
    owner, _, name = edit.new.rpartition(".")
    for function in functions:
        with contextlib.suppress(Exception):
            named = eval(edit.new, function.__globals__)
            if edit.action == "setting":
                setattr(config, edit.old, {*getattr(config, edit.old), named})
            elif owner:
                setattr(eval(owner, function.__globals__), name, named._torchdynamo_orig_callable)
            else:
                function.__globals__[name] = named._torchdynamo_orig_callable
            return


def _copied(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, value)


def _in_short(result: Any) -> str:
    """Of each tensor its shape and two sums, of anything else what it prints."""
    found = []
    for leaf in tree_leaves(result):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_complex():
            numbers = leaf.detach().double()
            found.append(f"{tuple(leaf.shape)} {numbers.sum():.4g} {numbers.abs().sum():.4g}")
        else:
            found.append(f"{type(leaf).__name__} {leaf}"[:200])
    return "; ".join(found)
