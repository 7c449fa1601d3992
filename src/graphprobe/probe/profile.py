"""Profile the compile time of a block of a program, or of a whole one."""

from __future__ import annotations

import os
import platform
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO

import torch

import graphprobe
from graphprobe.analysis.timing import CacheEvent, Compile, Profile, Span, TimingSummary, summary_of, write_profile
from graphprobe.errors import UsageError
from graphprobe.export.chrome_trace import export_profile
from graphprobe.internals.compile_timing import CompileTiming, OpenSpan
from graphprobe.internals.compiler_settings import own_passes
from graphprobe.report.notebook import html_of, text_of
from graphprobe.report.profile_document import print_profile
from graphprobe.store.files import file_to_write


class _Active:
    """At most one profile at a time: two would time each other."""

    lock = threading.Lock()
    current: profile | None = None


class profile:  # noqa: N801  # used like a function, as contextlib's are
    """Times what torch compiles while the block runs.

        with graphprobe.profile() as p:
            model(x).sum().backward()
        p.report()
        p.save("before.json")

    Compiles on other threads are part of it. Nothing of torch's caches is changed or bypassed: where they have
    something, the profile is that of a warm compile, and says so. Afterwards nothing is left in place.
    """

    def __init__(self, *, program: str = "") -> None:
        """`program` is what the profile is called in reports."""
        self.program = program
        self._timing: CompileTiming | None = None
        self._result: Profile | None = None
        self._pid = 0

    def start(self) -> None:
        """Begin; raises UsageError where a profile is under way in this process, or this one has been used."""
        if self._timing is not None:
            raise UsageError("this profile has been started before", hint="make a new one: graphprobe.profile()")
        with _Active.lock:
            if _Active.current is not None:
                raise UsageError("a profile is under way already", hint="leave the enclosing graphprobe.profile()")
            _Active.current = self
        self._pid = os.getpid()
        self._timing = CompileTiming()
        self._unix_ns, self._begin_ns, self._cpu_ns = time.time_ns(), time.perf_counter_ns(), time.process_time_ns()
        self._timing.install()

    def stop(self, *, exit_code: int | None = None, error: str | None = None) -> Profile:
        """End; `exit_code` and `error` are kept in the profile. Returns the profile, the same one again if stopped."""
        timing = self._started()
        if self._result is not None:
            return self._result
        end_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        timing.remove()
        with _Active.lock:
            if _Active.current is self:
                _Active.current = None
        self._result = Profile(
            graphprobe=graphprobe.__version__,
            torch=str(torch.__version__),  # a subclass of str
            python=platform.python_version(),
            began_unix_ns=self._unix_ns,
            wall_ns=end_ns - self._begin_ns,
            cpu_ns=cpu_ns - self._cpu_ns,
            spans=_spans(timing.recorder.spans, self._begin_ns),
            compiles=[Compile(**fact) for fact in timing.compiles],
            caches=[CacheEvent(**fact) for fact in timing.caches],
            threads=list(timing.recorder.threads),
            program=self.program,
            exit_code=exit_code,
            error=error,
            notes=_notes(timing),
            own_passes=own_passes(),
        )
        return self._result

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(error=None if error is None else f"{type(error).__name__}: {error}")

    @property
    def forked(self) -> bool:
        """Whether this is a child that was forked since: the profile is its parent's."""
        return self._pid != os.getpid()

    @property
    def result(self) -> Profile:
        """The profile; raises UsageError until the block has ended."""
        if self._result is None:
            self._started()
            raise UsageError("the profile is still under way", hint="leave the block first")
        return self._result

    def summary(self) -> TimingSummary:
        """Phases, passes, functions and caches, slowest first."""
        return summary_of(self.result)

    def report(self, *, top: int = 10, file: IO[str] | None = None) -> None:
        """Print the summary to `file`, by default standard output; `top` is the length of its tables."""
        print_profile(self.result, top=top, file=file)

    def __str__(self) -> str:
        return text_of(self.result) if self._result is not None else repr(self)

    def _repr_html_(self) -> str | None:
        return html_of(self.result) if self._result is not None else None

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write the profile as JSON; raises UsageError where the file exists, unless `force`."""
        target = file_to_write(os.fspath(path), named=os.fspath(path), force=force, by="force=True")
        write_profile(self.result, target)
        return target

    def save_trace(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write a Chrome trace, for chrome://tracing and ui.perfetto.dev; errors as `save`."""
        target = file_to_write(os.fspath(path), named=os.fspath(path), force=force, by="force=True")
        export_profile(self.result, target)
        return target

    def _started(self) -> CompileTiming:
        if self._timing is None:
            raise UsageError("the profile has not been started", hint="with graphprobe.profile() as p: ...")
        return self._timing


def _spans(opened: list[OpenSpan], begin_ns: int) -> list[Span]:
    """Parents by index. They begin before what is inside them, so their index is lower."""
    index_of = {id(span): index for index, span in enumerate(opened)}
    return [
        Span(
            name=span.name,
            begin_ns=span.begin_ns - begin_ns,
            end_ns=span.end_ns - begin_ns,
            cpu_ns=max(0, span.cpu_ns),
            thread=span.thread,
            parent=-1 if span.parent is None else index_of[id(span.parent)],
            compile_id=span.compile_id,
            kind=span.kind,  # type: ignore[arg-type]  # only the kinds there are get recorded
            detail=span.detail,
            unfinished=span.unfinished,
        )
        for span in opened
    ]


def _notes(timing: CompileTiming) -> list[str]:
    notes = list(timing.missing)
    if os.environ.get("TORCH_COMPILE_DEBUG", "0") not in ("", "0"):
        notes.append("TORCH_COMPILE_DEBUG is set: what it writes is part of the times")
    return notes
