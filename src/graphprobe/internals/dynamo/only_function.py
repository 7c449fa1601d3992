"""Compile only the functions of some names, and leave the rest as Python runs it: torch's own filter, with globs."""

from __future__ import annotations

import difflib
import fnmatch
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from graphprobe.analysis.breaks_text import plain_name
from graphprobe.errors import UsageError
from graphprobe.internals.bus import Patch, Subscription
from graphprobe.internals.dynamo.compile_facts import FrameName, frame_name

CONVERT_FRAME = "torch._dynamo.convert_frame"
FILTER = "ConvertFrameAssert.__call__"
GENERATED = "<eval_with_key>"
LEFT_OUT = "graphprobe --only-function leaves it out"

_LISTED = 8


class OnlyFunction(Subscription):
    """Dynamo skips every function whose name matches no pattern, as it does under TORCHDYNAMO_DEBUG_FUNCTION.

    What a left-out function calls is looked at again, so that a function deep inside a model is compiled alone. What a
    matching function calls is traced into its graph, whatever its name. The piece behind a graph break belongs to its
    function. After `remove` everything is compiled again: torch is told "not this time", not "never".
    """

    def __init__(self, patterns: str | Iterable[str] | None, *, graphs_too: bool = True) -> None:
        """`patterns`: globs, or one text with commas between them; None: nothing is filtered.

        A glob is held against each of the names that `names_of` gives. `graphs_too` False: code that FX has written for
        a graph is compiled in any case; it is how pieces of a program that was captured are compiled again.

        Raises:
            UsageError: there is no pattern, or an empty one.
        """
        given = patterns.split(",") if isinstance(patterns, str) else list(patterns or ())
        self.patterns = tuple(pattern.strip() for pattern in given)
        if (patterns is not None and not self.patterns) or "" in self.patterns:
            raise UsageError(
                f"--only-function {patterns!r}: there is an empty pattern",
                hint="name a function, e.g. forward, Model.forward, 'Block*.forward' or model.py:forward",
            )
        self.compiled: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self._matched: set[str] = set()
        self._known: dict[tuple[CodeType, type | None], set[str]] = {}
        self._lost: str | None = None
        self._graphs_too = graphs_too
        self._pid = os.getpid()
        self._told_by_children: int | None = None
        self._read_bytes = 0
        self._lock = threading.Lock()
        patches = [Patch("only_function", CONVERT_FRAME, FILTER, self._make)] if self.patterns else []
        super().__init__(patches)

    def report(self) -> list[str]:
        """What was compiled and what not, in words; a pattern that matched nothing with the names that come nearest."""
        if not self.patterns:
            return []
        with self._lock:
            self._take_what_children_told()
            for address in self.missing:
                self._lost = f"this torch has no {address}"
            if self._lost is not None:
                return [f"only_function: not in force, all functions were compiled: {self._lost}"]
            names = ", ".join(self.patterns)
            lines = [
                f"only_function {names}: the program ran in another way than without it; "
                f"compiled: {_listed(self.compiled)}; left uncompiled: {_listed(self.left_out)}"
            ]
            for pattern in self.patterns:
                if pattern not in self._matched:
                    lines.append(f"only_function: {pattern!r} matched no function{self._nearest(pattern)}")
            return lines

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Children that are forked in the block tell what they compiled, and `report` counts it."""
        with tempfile.TemporaryFile() as file:
            self._told_by_children = file.fileno()
            try:
                yield
            finally:
                self._told_by_children = None

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(converter: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                wanted = self._wants(frame)
            except Exception as error:  # then the program is compiled as it would be
                self._lost = f"{type(error).__name__}: {error}"
                wanted = True
            if not wanted:
                return _skipped()
            if "skip" in kwargs:
                kwargs["skip"] += 1  # torch leaves that many callers out of the stack that it logs
            return original(converter, frame, *args, **kwargs)

        return __call__

    def _wants(self, frame: Any) -> bool:
        code: CodeType = frame.f_code
        if not self._graphs_too and code.co_filename.startswith(GENERATED):
            return True
        named = frame_name(code, frame.f_locals)
        whose = frame.f_locals.get("self") if named.module is None else named.module
        owner = None if whose is None else type(whose)
        with self._lock:
            found = self._known.get((code, owner))
            if found is None:
                names = (*names_of(code, owner), *_names_elsewhere(named))
                matching = (p for p in self.patterns if any(fnmatch.fnmatchcase(name, p) for name in names))
                found = self._known[code, owner] = set(matching)
                self._matched |= found
            (self.compiled if found else self.left_out)[_shown(code, owner)] += 1
            if self._told_by_children is not None and os.getpid() != self._pid:
                line = "\t".join([_shown(code, owner), *found]) + "\n"
                os.pwrite(self._told_by_children, line.encode("utf-8", "replace"), _size(self._told_by_children))
        return bool(found)

    def _take_what_children_told(self) -> None:
        if self._told_by_children is None:
            return
        data = os.pread(self._told_by_children, _size(self._told_by_children), self._read_bytes)
        self._read_bytes += len(data)
        for line in data.decode("utf-8", "replace").splitlines():
            name, *found = line.split("\t")
            self._matched.update(found)
            (self.compiled if found else self.left_out)[name] += 1

    def _nearest(self, pattern: str) -> str:
        seen = {*self.compiled, *self.left_out}
        short = {name: name.partition(" ")[0] for name in seen}
        wanted = pattern.rpartition(":")[2]
        candidates = sorted({*short.values(), *(name.rpartition(".")[2] for name in short.values())})
        near = difflib.get_close_matches(wanted, candidates, n=3, cutoff=0.5) or sorted(set(short.values()))[:3]
        return f"; nearest: {', '.join(near)}" if near else "; Dynamo looked at none"


def names_of(code: CodeType, owner: type | None = None) -> tuple[str, ...]:
    """What a function is called: `forward`, `Base.forward`, `Model.forward`, each also as `model.py:forward`.

    `owner` is the class of the object that it was called on, for a method that a base class defines. A function inside
    another is `outer.inner`, with and without `<locals>`.
    """
    name, qualified = _plain(code.co_name), _plain(getattr(code, "co_qualname", code.co_name))
    names = {name, qualified, qualified.replace("<locals>.", "")}
    if owner is not None:
        names |= {f"{owner.__qualname__}.{name}", f"{owner.__qualname__}.{name}".replace("<locals>.", "")}
        names.add(f"{owner.__name__}.{name}")
    file = code.co_filename
    return (*sorted(names), *(f"{at}:{one}" for at in {file, os.path.basename(file)} for one in sorted(names)))


def _names_elsewhere(named: FrameName) -> tuple[str, ...]:
    """As `ls` and reports call it: `LlamaForCausalLM`, also where the code is that of a decorator."""
    of_class = named.module is not None and named.plain == type(named.module).__name__
    return (named.plain, f"{named.plain}.forward") if of_class else (named.plain,)


def _plain(name: str) -> str:
    """The function behind a graph break goes by the name of the function."""
    head, dot, last = name.rpartition(".")
    return f"{head}{dot}{plain_name(last)}"


def _shown(code: CodeType, owner: type | None) -> str:
    qualified = _plain(getattr(code, "co_qualname", code.co_name)).replace("<locals>.", "")
    name = _plain(code.co_name)
    shown = f"{owner.__name__}.{name}" if owner is not None and "." in qualified else qualified
    return f"{shown} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


def _listed(counts: Counter[str]) -> str:
    if not counts:
        return "none"
    most = [f"{name} x{n}" if n > 1 else name for name, n in counts.most_common(_LISTED)]
    rest = len(counts) - len(most)
    return f"{len(counts)} function{'s' * (len(counts) > 1)}: {', '.join(most)}" + (f" and {rest} more" if rest else "")


def _size(descriptor: int) -> int:
    return os.fstat(descriptor).st_size


def _skipped() -> Any:
    """Run this call uncompiled, and look at what it calls; where a whole graph was asked for, that is no error."""
    types = sys.modules["torch._dynamo.types"]
    eval_frame = sys.modules.get("torch._C._dynamo.eval_frame")
    count = getattr(eval_frame, "set_fullgraph_compiled_frame_count", None)
    if count is not None:
        # torch counts what fullgraph=True has compiled, and raises when it is nothing; -1: it does not count.
        before = count(-1)
        if before >= 0:
            count(before + 1)
    try:
        return types.ConvertFrameReturn(apply_to_code=False, skip_reason=LEFT_OUT)
    except TypeError:  # older: no reasons
        return types.ConvertFrameReturn(apply_to_code=False)
