"""`watch`: observes each step of a program, and looks into the first that goes wrong. Imports no torch by itself."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from graphprobe.errors import GraphprobeError, UsageError, raised_from
from graphprobe.internals.dynamo.compile_calls import CompileCalls, Compiled
from graphprobe.internals.importhook import ImportHook
from graphprobe.probe import environment
from graphprobe.records import Where
from graphprobe.settings import Settings, resolve
from graphprobe.store import layout
from graphprobe.store.schema import json_line
from graphprobe.store.watch_file import StepObservation, TriggerKind, WatchAnswer
from graphprobe.store.writer import RunWriter, WrittenFile
from graphprobe.watch.triggers import PLAIN_TRIGGERS, Triggers, triggers_from

if TYPE_CHECKING:
    from graphprobe.watch.further_back import Rerun, Sleepers
    from graphprobe.watch.observation import OptimizerObserver
    from graphprobe.watch.shadow import Shadow
    from graphprobe.watch.step_calls import StepCall, WatchedFunction

EVERY = 50
"""Steps between two observations of each single parameter."""

BUDGET_S = 600.0
"""What the look into a step may take."""

MOST_IN_MEMORY = 1000
MOST_IN_ANSWER = 50
"""Observations that are kept in memory, and those that an answer has of them."""

MOST_CALLS = 64
"""Calls of a step that are kept: of more the last ones."""

WRITTEN_EVERY_S = 0.01
"""How long the observation of a short step waits for those of others, to be written with them."""

log = logging.getLogger("graphprobe")

_open: list[Watching] = []


class _Depth(threading.local):
    """How many compiled functions of this thread are inside of each other, the outermost call, and its shadow."""

    calls = 0
    outermost: StepCall | None = None
    shadow: Shadow | None = None


class Watching:
    """A watch, made by `watch`: a block, or `start` and `stop`.

    Attributes:
        answer: what the first trigger has led to; None while there is none.
        step: how many steps have begun.
        ended: it watches no more.
        folder: of the run, in which `graphprobe/watch.jsonl` has a line for each step.
    """

    def __init__(
        self,
        triggers: Triggers,
        every: int,
        keep: int,
        budget_s: float | None,
        settings: Settings,
        *,
        quiet: bool,
        shadow: int = 0,
    ) -> None:
        """Arguments as of `watch`, checked."""
        self.answer: WatchAnswer | None = None
        self.step = 0
        self._triggers, self._every, self._budget_s, self._quiet = triggers, every, budget_s, quiet
        self._settings, self._keep, self._shadow = settings, keep, shadow
        self._rank: int | None = None
        self._sleepers: Sleepers | None = None
        self._rerun: Rerun | None = None  # of a copy of the program that was woken
        self._ring = deque[StepObservation](maxlen=MOST_IN_MEMORY)
        self._lines: list[StepObservation] = []
        self._calls = deque["StepCall"](maxlen=MOST_CALLS)
        self._over = self.ended = self._stepping = False  # over: the step of `_calls`
        self._raised: tuple[BaseException, StepCall] | None = None
        self._loss: Any = None
        self._inference = 0
        self._depth, self._pid = _Depth(), os.getpid()
        self._written_at = 0.0
        self._observer: OptimizerObserver | None = None
        self._handles: list[Any] = []
        self._writer: RunWriter | None = None
        self._compiled = CompileCalls(self._before, self._after, self._failed, starts=self._starts)
        self._hook = ImportHook({"torch.optim.optimizer": self._register})

    @property
    def folder(self) -> Path:
        """Of the run. Raises UsageError before the watch has begun."""
        if self._writer is None:
            raise UsageError("watch: it has not begun", hint="with graphprobe.watch() as watched: ...")
        return self._writer.run_dir

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of the process that is watched."""
        return os.getpid() != self._pid

    def start(self) -> None:
        """Begin. Raises UsageError if it has begun before, or the folder cannot be made."""
        if self._writer is not None:
            raise UsageError("watch: it has begun already", hint="make another one for another block")
        settings = self._settings
        chosen = settings.out_dir
        root = environment.default_root(os.environ) if chosen is None else Path(chosen)
        manifest = environment.manifest(settings)
        self._writer = RunWriter.create(root, manifest=manifest, rank=environment.rank(), max_bytes=settings.max_bytes)
        self._rank = manifest.rank if manifest.world_size > 1 else None
        self._writer.event(
            where=Where(rank=manifest.rank), kind="log", name="watch", file=WrittenFile(layout.WATCH, None, None)
        )
        self._compiled.install()
        self._hook.install()
        _open.append(self)

    def stop(self, error: BaseException | None = None, *, why: str | None = None) -> None:
        """End, with all hooks taken out: `error` or `why` is what has ended the program."""
        if self._rerun is not None:
            self._rerun.end()
        if self._writer is None or self.ended or self.forked:
            return
        self.ended = True
        _open.remove(self)
        if self._sleepers is not None:
            self._sleepers.close()
        self._hook.remove()
        for handle in self._handles:
            handle.remove()
        self._compiled.remove()
        self._write()
        self._writer.update(**environment.torch_facts())
        for missing in self._writer.manifest.missing:
            self._say(f"missing: {missing}")
        ended = why if error is None else raised_from(error).line
        self._writer.close("finished" if ended is None else "failed", ended)

    def ended_by(self, error: BaseException) -> None:
        """Look into the step in which the program was ended by an exception or a signal, if that is a trigger."""
        if self._rerun is not None:
            self._rerun.end()
        interrupted = isinstance(error, KeyboardInterrupt)
        kind: TriggerKind = "signal" if interrupted else "exception"
        if (
            isinstance(error, (SystemExit, GeneratorExit))
            or kind not in self._triggers.named
            or self.answer is not None
        ):
            return
        line = str(error) or "SIGINT" if interrupted else raised_from(error).line.rstrip(": ")
        step = self.step if self._stepping else self.step + 1
        with self._guarded():
            raised_in = self._raised[1] if self._raised is not None and self._raised[0] is error else None
            self._look(kind, step, f"{line} ended the program", error=error, raised_in=raised_in)

    def __enter__(self) -> Watching:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.ended_by(error)
        self.stop(error)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """The program goes on where the watch fails, and is watched no more."""
        try:
            yield
        except GraphprobeError:
            raise
        except Exception as error:
            self._ended_early(error)

    def _ended_early(self, error: Exception) -> None:
        log.warning("graphprobe: the watch failed and looks no further", exc_info=error)
        if self._writer is not None:
            self._writer.missing(f"the watch failed in step {self.step}: {raised_from(error).line}")
        self.stop(why=None)

    def _register(self, module: ModuleType) -> None:
        before, after = module.register_optimizer_step_pre_hook, module.register_optimizer_step_post_hook
        self._handles = [before(self._steps), after(self._stepped)]

    def _steps(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer is about to step."""
        import torch

        if torch.compiler.is_compiling() or self.ended or self.forked:
            return
        with self._guarded():
            self._observe([p for group in optimizer.param_groups for p in group["params"]], optimizer)

    def end_step(self) -> None:
        """End a step, as `graphprobe.step` does."""
        parameters = {id(t): t for call in self._calls for _, t in call.function.state() if t.requires_grad}
        if not (self.ended or self.forked):
            with self._guarded():
                self._observe(parameters.values(), None)
            self._stepped(None, (), {})

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer has stepped."""
        self._stepping = False
        import torch

        if torch.compiler.is_compiling() or self.ended or self.forked:
            return
        if self._keep and self.answer is None and self.step % self._every == 0:
            with self._guarded():
                self._put_to_sleep()
        if self._rerun is not None:
            self._rerun.stepped(self.step)

    def _put_to_sleep(self) -> None:
        """Keep a copy of the program as it is behind this step; in one that wakes up, begin to run on."""
        if self._sleepers is None:
            from graphprobe.watch.further_back import Sleepers

            self._sleepers = Sleepers(self._keep)
        if why := self._sleepers.why_not():
            self._keep = 0
            self._say(f"no copies of the program are kept: {why}")
            return
        self._rerun = self._sleepers.take(self.step)
        if self._rerun is not None:
            self._pid, self._every, self._keep, self._triggers = os.getpid(), 1, 0, triggers_from(())
            self._shadow = 0

    def _observe(self, parameters: Iterable[Any], optimizer: Any) -> None:
        from graphprobe.watch.observation import OptimizerObserver, with_gradients

        self._observer = observer = self._observer or OptimizerObserver()
        self.step, self._stepping = self.step + 1, True
        loss, self._loss = self._loss, None
        self._depth.calls = 0
        full = self.step == 1 or self.step % self._every == 0
        owned = with_gradients(parameters)
        seen = observer.observe(owned, loss, self.step, number=observer.number_of(optimizer), full=full)
        if self._rerun is not None:
            self._rerun.saw(seen)
        self._note(seen)
        # A scaler of gradients leaves the step out, or has told the optimizer to.
        skipped = getattr(optimizer, "found_inf", None) is not None
        if not seen.finite and not skipped and self._wants("nan"):
            names = observer.not_finite(owned)
            self._look("nan", self.step, _not_finite_in_words(names, seen.loss))
        elif isinstance(seen.loss, float):
            median = self._triggers.is_spike(seen.loss)
            if median is not None and self.answer is None:
                self._look("spike", self.step, f"the loss is {seen.loss:.4g}, the median of those before {median:.4g}")
        self._over = True

    def _wants(self, trigger: str) -> bool:
        return trigger in self._triggers.named and self.answer is None

    def _note(self, seen: StepObservation) -> None:
        self._ring.append(seen)
        self._lines.append(seen)
        if time.monotonic() - self._written_at >= WRITTEN_EVERY_S:
            self._write()

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        if self._writer is not None and lines:
            self._writer.append_text(layout.WATCH, "".join(map(json_line, lines)))
        self._written_at = time.monotonic()

    def _starts(self, tensors: Sequence[Any]) -> None:
        """A backward is about to begin."""
        if len(tensors) == 1 and tensors[0].numel() == 1 and tensors[0].dtype.is_floating_point:
            self._loss = tensors[0].detach()

    def _before(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._depth.calls += 1
        if self._depth.calls > 1 or self.ended:
            return
        with self._guarded():
            from graphprobe.watch.step_calls import StepCall

            call = StepCall(self._function(compiled), args, kwargs)
            self._shade(call)
            if self._over:
                self._calls.clear()
                self._over = False
            self._calls.append(call)
            self._depth.outermost = call

    def _shade(self, call: StepCall) -> None:
        """Have one call in so many made uncompiled as well."""
        self._depth.shadow = None
        if self._shadow and call.number % self._shadow == 0 and self.answer is None:
            from graphprobe.watch.shadow import Shadow, why_not

            if why := why_not():
                self._shadow = 0
                self._note_once(why)
                return
            self._depth.shadow = Shadow(call)

    def _held(self, call: StepCall, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Hold a call that has returned against the uncompiled one."""
        shadow, self._depth.shadow = self._depth.shadow, None
        if shadow is None or self.answer is not None:
            return
        from graphprobe.settings.limits import NoTimeLeft, TimeBudget

        with contextlib.suppress(NoTimeLeft):
            wrong = shadow.wrong(args, kwargs, result, TimeBudget(self._budget_s))
            if shadow.note:
                self._note_once(shadow.note)
            if wrong is not None:
                what = f"{call.name} is not as uncompiled, {shadow.named(wrong)}: {wrong.text}"
                self._look("shadow", self.step + call.grad, what, calls=[call])

    def _note_once(self, text: str) -> None:
        assert self._writer is not None
        if text not in self._writer.manifest.notes:
            self._writer.note(text)
            self._say(text)

    def _function(self, compiled: Compiled) -> WatchedFunction:
        if "watched" not in compiled.kept:
            from graphprobe.diagnose.script_calls import name_of
            from graphprobe.watch.step_calls import WatchedFunction

            compiled.kept["watched"] = WatchedFunction(compiled, compiled.called or compiled.fn, name_of(compiled.fn))
        found: WatchedFunction = compiled.kept["watched"]
        return found

    def _after(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._depth.calls = max(0, self._depth.calls - 1)
        call = self._depth.outermost
        if self._depth.calls or self.ended or call is None:
            return
        import torch

        with self._guarded():
            call.ended(result)
            self._held(call, args, kwargs, result)
            if not torch.is_grad_enabled():
                self._infers(call, result)

    def _infers(self, call: StepCall, result: Any) -> None:
        """A call in inference has returned."""
        from graphprobe.watch.observation import has_nan

        self._inference += 1
        finite = not has_nan(result)
        line = StepObservation(step=self.step, time_ns=time.time_ns(), finite=finite, call=self._inference)
        self._note(line)
        with contextlib.suppress(ValueError):
            self._calls.remove(call)
        if not finite and self._wants("nan"):
            self._look("nan", self.step, f"the result of {call.name} holds a NaN", calls=[call])

    def _failed(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> None:
        self._depth.calls = max(0, self._depth.calls - 1)
        call = self._depth.outermost
        if not self._depth.calls and call is not None and not self.ended:
            with self._guarded():
                call.settle()
                self._raised = error, call

    def _look(
        self,
        kind: TriggerKind,
        step: int,
        what: str,
        *,
        calls: Sequence[StepCall] | None = None,
        error: BaseException | None = None,
        raised_in: StepCall | None = None,
    ) -> None:
        """Look into a step, and tell the answer."""
        assert self._writer is not None
        ring = [*self._ring][-MOST_IN_ANSWER:]
        answer = self.answer = WatchAnswer(kind=kind, step=step, what=what, rank=self._rank, ring=ring)
        self._write()
        if kind != "signal":
            self._say(f"step {step}: {what}; looking into the step")
        if "torch" in sys.modules:
            from graphprobe.watch.within import came_back, looked_into, since_when

            if calls is None:
                calls = [] if self._over and kind != "nan" else list(self._calls)
            answer.notes += {call.function.not_kept: None for call in calls if call.function.not_kept}
            folder = self._writer.tool_dir / "watch"
            looked_into(answer, calls, folder, self._budget_s, error=error, raised_in=raised_in)
            seen: Sequence[StepObservation] = self._ring
            if self._sleepers is not None and self._keep and kind in ("nan", "spike"):
                seen = came_back(answer, self._sleepers, self._ring, self._budget_s)
                self._sleepers.close()
            answer.notes += filter(None, (since_when(name, seen) for name in answer.state))
        self._writer.write_text(layout.ANSWER, json_line(answer))
        if not self._quiet:
            from graphprobe.report.watched import print_answer

            print_answer(answer, run=str(self._writer.run_dir), file=sys.stderr)

    def _say(self, text: str) -> None:
        if not self._quiet:
            from graphprobe.report.visible import echo

            echo(f"graphprobe: {'' if self._rank is None else f'rank {self._rank}: '}{text}", err=True)


def step() -> None:
    """End a step, in a program that uses no optimizer of torch. Without a watch, this does nothing.

    Call it when the gradients are there, before they change a parameter.
    """
    for watching in list(_open):
        watching.end_step()


def watch(
    *,
    on: str | Iterable[str] = PLAIN_TRIGGERS,
    every: int = EVERY,
    keep: int = 0,
    shadow: int = 0,
    budget_s: float | None = BUDGET_S,
    out_dir: str | Path | None = None,
    quiet: bool = False,
) -> Watching:
    """`with graphprobe.watch(): …` observes the steps of the block, and looks into the first that goes wrong.

    A step ends with `step()` of an optimizer of torch, or `graphprobe.step()`. Just before that, loss and gradients are
    looked at; outside of training, with gradients off, the results of each call of a compiled function are. Begin
    before `torch.compile` is called: of functions that were compiled before, no call is seen. The program runs as it
    would: nothing that it computes, draws or raises is other than without.

    Args:
        on: what to look into: `nan`, `exception`, `signal` (of the command alone), and `spike=X`, a loss of more than X
            times the median of the last hundred. One text with commas, or several.
        every: each so many steps the norms of all gradients and parameters are observed one by one, with digests.
        keep: so many copies of the program sleep, forked each `every` steps; where a step goes wrong, the one from
            before it began runs on to it, with everything observed. 0: none.
        shadow: one call in so many of each compiled function is made uncompiled as well, in a child process; a
            difference that rounding does not explain is looked into. 0: none.
        budget_s: seconds for the look into a step; None is no bound.
        out_dir: folder of the run's; None: as for `enable`.
        quiet: print nothing.

    Returns:
        the block: its `answer` is what the first trigger has led to, its `folder` the run.

    Raises:
        UsageError: an argument is not of the kind named above; where the block begins: the folder cannot be written to.
    """
    numbers = ("every", every, "steps", 1), ("keep", keep, "copies", 0), ("shadow", shadow, "calls", 0)
    for name, value, of, least in numbers:
        if type(value) is not int or value < least:
            raise UsageError(f"watch({name}={value!r:.80}): it takes a number of {of}, {least} or more")
    settings = resolve(arguments={} if out_dir is None else {"out_dir": str(out_dir)}, environ=os.environ)
    return Watching(triggers_from(on), every, keep, budget_s, settings, quiet=quiet, shadow=shadow)


def _not_finite_in_words(names: Sequence[str], loss: Any) -> str:
    begins = f"the loss is {loss}, and " if isinstance(loss, str) else ""
    if not names:
        return begins.rstrip(", and") or "the gradients are not finite"
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{begins}the gradient of {names[0]}{more} is not finite"
