"""`with graphprobe.dump(...)`: every call of torch's API, forward and backward, written down while the block runs."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from graphprobe.errors import UsageError
from graphprobe.internals.operators.api_calls import BackwardRuns, put_back, take_out
from graphprobe.probe import environment
from graphprobe.probe.api.hooks import ModuleWatch, OptimizerWatch
from graphprobe.probe.api.patched import ApiMode, CallWatch, CompiledWatch, PatchedCalls, TorchWatch
from graphprobe.probe.api.plan import ApiPlan, OptimizerRecords, StepAt, arguments_from_file, plan_from_arguments
from graphprobe.probe.api.session import ApiSession
from graphprobe.report.document import Command, Content, DocumentVerdict, Facts, Tone, counted
from graphprobe.store.api_writer import ApiWriter
from graphprobe.store.calls import ApiManifest, DumpData, DumpLevel, DumpMode
from graphprobe.store.reader import manifest_of_dump

_open: list[ApiDumper] = []


class ApiDumper:
    """A dump that can be begun, ended, and begun no more. `graphprobe.dump` makes one."""

    def __init__(self, plan: ApiPlan, *, model: Any = None) -> None:
        self.plan = plan
        self._model = model
        self._session: ApiSession | None = None
        self._mode: ApiMode | None = None
        self._watches: list[TorchWatch] = []

    def __enter__(self) -> ApiDumper:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ended = error is None or isinstance(error, GeneratorExit)
        self.close(None if ended else f"{type(error).__name__}: {error}")

    @property
    def path(self) -> Path:
        """The folder of the dump; each rank has one in it."""
        return Path(self.plan.path)

    @property
    def folder(self) -> Path:
        """The folder of this process's rank.

        Raises:
            UsageError: the dump has not begun.
        """
        return self._running().writer.folder

    @property
    def steps(self) -> int:
        """The number of the step that runs now, from 0.

        Raises:
            UsageError: the dump has not begun.
        """
        return self._running().step

    def __str__(self) -> str:
        verdict = self._verdict()
        return f"{verdict.word}: {verdict.sentence}"

    def _repr_html_(self) -> str:
        from graphprobe.report.notebook import html_of

        return html_of(self._verdict())

    def _verdict(self) -> DocumentVerdict:
        """What is shown of it: how many calls are on disk, what is missing, and the command that shows them."""
        if self._session is None:
            return DocumentVerdict("info", "NOT BEGUN", f"the dump to {self.path} has not begun.")
        manifest = manifest_of_dump(self.folder, ApiManifest)
        if manifest is None or manifest.ended_ns is None:
            return DocumentVerdict("info", "RUNNING", f"calls are dumped to {self.path}.")
        missing = Facts([("missing", text) for text in manifest.missing])
        body: list[Content] = [missing, Command(f"graphprobe report {shlex.quote(str(self.path))}")]
        tone: Tone = "warn" if manifest.missing else "good"
        return DocumentVerdict(tone, "DUMPED", f"{counted(manifest.calls, 'call')} to {self.path}.", body)

    def start(self) -> None:
        """Begin to collect in this thread.

        Raises:
            UsageError: it has begun already, another dump runs, or the folder cannot be written to.
        """
        if self._session is not None:
            raise UsageError(f"the dump to {self.plan.path} has begun already", hint="make a new one")
        if _open:
            raise UsageError(
                f"a dump to {_open[0].plan.path} is running", hint="one dump at a time: close that one first"
            )
        manifest = ApiManifest.of(environment.manifest_of_rank({}), plan=self.plan.as_document())
        writer = ApiWriter.create(self.path, manifest=manifest, max_bytes=self.plan.budget_bytes)
        self._session = session = ApiSession(self.plan, writer, model=self._model)
        self._mode = mode = ApiMode(session)
        modules = ModuleWatch(session, recorded=self.plan.level != "api")
        others: list[TorchWatch] = [OptimizerWatch(session, mode)]
        if self.plan.level != "module":
            others += [PatchedCalls(session), BackwardRuns(mode, lambda: session.on and not session.state.off)]
        watches: list[TorchWatch] = [modules, *others, CompiledWatch(session, mode, modules, others)]
        for watch in watches:
            watch.install()
            self._watches.append(watch)
        if self.plan.level != "module":
            put_back(mode, sys.maxsize)
        session.watch_calls = CallWatch(mode if self.plan.level != "module" else None, modules).set
        session.watch_calls(session.on)
        _open.append(self)

    def step(self) -> None:
        """A training step is over: what follows is of the next. From the first call on, optimizers do not count.

        Raises:
            UsageError: the dump has not begun.
        """
        self._running().advance()

    def flush(self) -> None:
        """Wait until all that was collected is on disk."""
        self._running().writer.flush()

    def close(self, exception: str | None = None) -> None:
        """End the dump: everything is taken out of torch, the rest is written. Only the first call counts."""
        session = self._session
        if session is None or session.closed:
            return
        if self in _open:
            _open.remove(self)
        session.closed = True
        session.finish()
        if self._mode is not None and self.plan.level != "module":
            take_out(self._mode)
        for watch in reversed(self._watches):
            foreign = watch.remove()
            if isinstance(foreign, list) and foreign:
                session.writer.note(f"somebody else has replaced {', '.join(foreign)} since; left as they are")
        session.writer.close("finished" if exception is None else "failed", exception)

    def _running(self) -> ApiSession:
        if self._session is None:
            raise UsageError(f"the dump to {self.plan.path} has not begun", hint="with graphprobe.dump(...) as d:")
        return self._session


def dump(
    path: str | os.PathLike[str] | None = None,
    *,
    data: DumpData | None = None,
    level: DumpLevel | None = None,
    mode: DumpMode | None = None,
    scope: Sequence[str] | None = None,
    steps: str | int | None = None,
    apis: Sequence[str] | str | None = None,
    sample: int | None = None,
    stack: bool | None = None,
    optimizer: OptimizerRecords | None = None,
    step_at: StepAt | None = None,
    model: torch.nn.Module | Mapping[str, torch.nn.Module] | None = None,
    budget_bytes: int | str | None = None,
    config: str | os.PathLike[str] | None = None,
) -> ApiDumper:
    """Write down every call of torch's API, forward and backward, while the `with` block runs.

    Args:
        path: folder of the dump; it is made, and gets a folder `rank<R>`, which must not be there yet.
        data: `stats` (default): statistics of every tensor; `tensor`: its values, too, each once.
        level: `api` (default): functions and methods; `module`: runs of modules; `mix`: both.
        mode: `all` (default); `list`: the calls in `scope`; `range`: those from the first label in `scope` to the
            second, both included; `stack`: where calls stand in the program, and no data.
        scope: labels of calls, such as `Tensor.add.3` or `nn.functional.linear.0.forward`; `*` is any text.
        steps: training steps, `"0|3-5|10"`; all without.
        apis: names of APIs or modules, or globs: `"torch.nn.functional.*"`, `"linear"`; all without.
        sample: of each tensor, the first and last 256 elements and every so many between; statistics are of all.
        stack: the whole stack of each call, not only its line.
        optimizer: `step` (default): one record a step, with gradients before and parameters after; `state`: with the
            optimizer's state; `calls`: with every call inside; `off`: none.
        step_at: what ends a step: `optimizer` (default), unless `step()` is called; or `hand`, `step()` alone.
        model: the module that paths begin with, or several by name; without, the first module that is called.
        budget_bytes: bound of all that is written by this rank, `"2GB"`; dumping ends when it is reached.
        config: JSON file `{"api_dump": {...}}` with the same names; arguments go before it.

    Raises:
        UsageError: an argument cannot be, two exclude each other, or the file is wrong. Nothing has been made then.
    """
    given = {name: value for name, value in locals().items() if value is not None and name not in ("model", "config")}
    arguments = (arguments_from_file(os.fspath(config)) if config is not None else {}) | given
    plan = plan_from_arguments(arguments)
    several = list(model.values()) if isinstance(model, Mapping) else [model]
    if model is not None and not all(isinstance(one, torch.nn.Module) for one in several):
        raise UsageError(f"model is a {type(model).__name__}: expected a torch.nn.Module, or several by name")
    return ApiDumper(plan, model=model)
