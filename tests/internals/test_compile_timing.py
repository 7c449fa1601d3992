"""The taps for timing: put in place and taken out exactly, with spans that are closed whatever happens."""

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.compile_fx  # so that every module that is patched is there

from graphprobe.internals import compile_timing
from graphprobe.internals.bus import advised, resolve
from graphprobe.internals.compile_timing import FUNCTIONS, CompileTiming, SpanRecorder
from graphprobe.internals.names import LOSES, NAMES


def raw_values() -> dict[str, tuple[Any, bool]]:
    found = {}
    for patch in CompileTiming()._all():
        owner, name, raw = resolve(importlib.import_module(patch.module), patch.attribute)
        found[patch.address] = (raw, name in vars(owner))
    return found


@contextmanager
def installed() -> Iterator[CompileTiming]:
    timing = CompileTiming()
    timing.install()
    try:
        yield timing
    finally:
        timing.remove()


def test_on_and_off_leaves_nothing() -> None:
    before, finders = raw_values(), list(sys.meta_path)
    with installed() as timing:
        assert all(raw_values()[address][0] is not raw for address, (raw, _) in before.items())
    after = raw_values()
    assert all(after[address][0] is raw and after[address][1] == own for address, (raw, own) in before.items())
    assert (sys.meta_path, timing.missing) == (finders, [])


def test_every_name_is_in_the_table() -> None:
    profile = {capability for capability in LOSES if capability.startswith("profile")}
    listed = {name.address for name in NAMES if name.use == "patched" and profile & set(name.needed_for)}
    assert listed == {patch.address for patch in CompileTiming()._all()}


def test_a_name_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = compile_timing.TimedFunction("torch._inductor.codecache", "no_such_function", "x")
    monkeypatch.setattr(compile_timing, "FUNCTIONS", (*FUNCTIONS, gone))
    with installed() as timing:
        pass
    assert timing.missing == ["this torch has no torch._inductor.codecache:no_such_function"]


def test_what_nobody_closes_ends_with_what_is_around_it() -> None:
    recorder = SpanRecorder()
    outer, inner = recorder.begin("outer"), recorder.begin("inner")
    recorder.end(outer)
    assert (inner.end_ns, inner.unfinished, outer.unfinished) == (outer.end_ns, True, False)
    recorder.end(inner)  # late: nothing to close any more
    recorder.end_named("never begun")
    last = recorder.begin("last")
    recorder.close()
    assert last.unfinished and last.end_ns >= last.begin_ns


def test_a_recorder_that_fails_stops_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(SpanRecorder, "begin", broken)
    with installed() as timing:
        result = torch.compile(lambda x: x.sin() + 1, backend="eager")(torch.ones(3))
    assert torch.equal(result, torch.ones(3).sin() + 1)
    assert timing.missing == ["recording failed and was stopped: ZeroDivisionError: planted"]
    assert timing.recorder.spans == []


MODULES = {
    "outer": "import time, timed_inner\ntime.sleep(0.01)\n",
    "inner": "x = 1\n",
    "outside": "x = 1\n",
    "broken": "raise ValueError('planted')\n",
}


def test_imports_while_compiling_are_timed_outermost_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"timed_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with installed() as timing:
        importlib.import_module("timed_outside")
        phase = timing.recorder.begin("phase")
        module = importlib.import_module("timed_outer")
        importlib.import_module("timed_outer")
        with pytest.raises(ValueError, match="planted") as caught:
            importlib.import_module("timed_broken")
        timing.recorder.end(phase)
    _, first, second = timing.recorder.spans
    assert (first.name, first.kind, second.name, second.kind) == ("timed_outer", "import", "timed_broken", "import")
    assert first.parent is phase and first.end_ns - first.begin_ns >= 10_000_000
    assert type(module.__loader__).__name__ == type(module.__spec__.loader).__name__ == "SourceFileLoader"
    assert "import_timing" not in "".join(traceback.format_exception(caught.value))


def test_functions_that_are_timed_raise_as_before() -> None:
    def fails(*_: Any) -> None:
        raise KeyError("the program's own")

    timing = CompileTiming()
    advice = timing._function(compile_timing.TimedFunction("m", "a", "phase", anywhere=True))
    timed: Callable[..., Any] = advised("profile", "m", "a", advice).make(fails)
    with pytest.raises(KeyError, match="the program's own") as caught:
        timed(1)
    assert timing.recorder.spans[0].end_ns > 0 and not timing.recorder.spans[0].unfinished
    assert "graphprobe/internals" not in "".join(traceback.format_exception(caught.value))
