"""A run of `drift`: every step observed, and steps of the compiled run made again uncompiled, from the same state."""

from __future__ import annotations

import gc
import hashlib
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch

from graphprobe.diagnose.program import tensors_of
from graphprobe.engine.rounding import RoundedAnew
from graphprobe.engine.tensor_stats import stats_of
from graphprobe.engine.values import why_not
from graphprobe.internals.dynamo.compile_calls import Compiled
from graphprobe.internals.names import require
from graphprobe.internals.quiet import quiet
from graphprobe.numerics.noise import Array, Float64Array
from graphprobe.numerics.verdict import NARROW
from graphprobe.settings import resolve
from graphprobe.store import layout
from graphprobe.store.schema import json_line
from graphprobe.store.watch_file import OutsideStep, StepObservation, StepsHeld, WatchAnswer
from graphprobe.watch.envelope import Envelope, Figure
from graphprobe.watch.further_back import Rerun, Sleepers
from graphprobe.watch.observation import OptimizerObserver, plain_tensor, with_gradients
from graphprobe.watch.triggers import triggers_from
from graphprobe.watch.watcher import Watching
from graphprobe.watch.within import looked_into

Part = Literal["uncompiled", "compiled", "moved"]

LOSS, DRAWN, NARROWEST = "loss", "random numbers", "narrowest"

MOVED_MORE, MOVED_EVERY, MOVED_FIRST = 16, 4, 8
"""Moved runs of a step in which something is outside of what others have shown. Else there is one in each of the first
steps, and then in one of so many."""

STRONG = 8.0
"""How many times its limit a figure is looked into at once; a smaller one has to last."""

LASTS = 2
"""Steps in which what lasts is outside again."""

MOST_LOOKS = 3
"""Steps that are diagnosed."""

AGAIN_S = 120.0
"""What one run of a step may take."""

NOT_AGAIN = "step {step} did not come to its end uncompiled, made again: what it reads of workers or others came once"
OTHER_DRAWS = "in step {step} the compiled program drew random numbers otherwise than the uncompiled one"


class DriftRun(Watching):
    """One of the runs that `drift` holds against each other.

    Attributes:
        held: what came of holding the steps of the compiled run; of the others it stays empty.
    """

    def __init__(self, part: Part, *, seed: int, steps: int, budget_s: float | None, out_dir: Path) -> None:
        """`seed`: of the roundings of a moved run. `steps`: after so many the program is ended."""
        settings = resolve(arguments={"out_dir": str(out_dir)}, environ=os.environ)
        super().__init__(triggers_from(()), 1, 0, budget_s, settings, quiet=True)
        self.held = StepsHeld()
        self._part, self._seed, self._last = part, seed, steps
        self._begun, self._data = False, ""
        self._holds, self._states = part == "compiled", Sleepers(2)
        self._worker: Rerun | None = None  # of a process that makes one step again
        self._envelope, self._rounded_anew = Envelope(), None
        self._runs: list[dict[str, bytes]] = []  # of this step: the uncompiled one, and moved ones
        self._old: dict[str, Array] = {}
        self._graphs = 0
        self._suspects = deque[tuple[OutsideStep, frozenset[str]]](maxlen=MOST_LOOKS * LASTS)
        self._looks = 0

    def start(self) -> None:
        """Begin: the compiled program is to draw as the uncompiled one, the others are not to be compiled."""
        if self._part == "compiled":
            require("torch._inductor", "config", purpose="the random numbers of drift").fallback_random = True
        else:
            torch.compiler.set_stance("force_eager")
        self._observer = OptimizerObserver()
        super().start()

    def stop(self, error: BaseException | None = None, *, why: str | None = None) -> None:
        """End, with what was held on disk."""
        if self._worker is not None:
            self._worker.end()
        if self._writer is not None and not self.ended and not self.forked:
            self._states.close()
            self.held.graphs = sum(compiled.graphs for compiled in self._compiled.compiled)
            if self._part == "compiled":
                self._writer.write_text(layout.HELD, json_line(self.held))
        super().stop(error, why=why)

    def _before(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (self._begun or self._depth.calls or self.ended or self.forked):
            self._begun = True
            with self._guarded():
                self._begins(compiled, args, kwargs)
        super()._before(compiled, args, kwargs)

    def _begins(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A step is about to make its first call of a compiled function."""
        with quiet():
            tensors = [t for t in tensors_of((args, kwargs)) if why_not(t) is None]
            digests = "".join(stats_of(plain_tensor(t).cpu()).digest for t in tensors)
        self._data = hashlib.sha256(digests.encode()).hexdigest()[:16]
        if self._part == "moved" and self.step == 0:
            self._round_anew(self._seed, compiled)
        if not self._holds:
            return
        if why := self._states.why_not():
            self._holds = False
            self.held.notes.append(f"no step was made again from the same state: {why}")
            return
        for _ in range(2):  # the second one sleeps on, for more moved runs
            asked = self._states.take(self.step)
            if asked is not None:
                self._serve(asked, compiled)
                return

    def _serve(self, asked: Rerun, compiled: Compiled) -> None:
        """In a copy of the program: make the step again, uncompiled and so many times moved, each in one more copy."""
        gc.disable()  # a collection would copy the memory of the program
        own, self._states = Sleepers(1), Sleepers(1)
        for number in range(asked.until + 1):
            self._worker = own.take(self.step) if asked.until else asked
            if self._worker is not None:
                self._pid, self._holds = os.getpid(), False
                torch.compiler.set_stance("force_eager")
                if number:
                    self._round_anew((self.step << 8) + number + (asked.until == MOVED_MORE), compiled)
                return
            woken = own.wake(1, before=self.step + 1, timeout_s=AGAIN_S)
            asked.woken.runs.append(woken.runs[0] if woken is not None and woken.runs else None)
            if asked.woken.runs[-1] is None:
                break
        asked.end()

    def _round_anew(self, seed: int, compiled: Compiled) -> None:
        """From here on each result is rounded anew, the parameters first."""
        mode = RoundedAnew(torch.Generator().manual_seed(seed), least=0.0)
        with quiet():
            mode.move([t for _, t in self._function(compiled).state() if isinstance(t, torch.nn.Parameter)])
        self._rounded_anew = mode.__enter__()  # type: ignore[no-untyped-call]

    def _steps(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        loss = self._loss
        if self._worker is not None:
            run = _as_bytes(self._gradients(optimizer, loss))
            if self._rounded_anew is not None:
                run[NARROWEST] = np.float64(self._rounded_anew.narrowest).tobytes()
            self._worker.woken.runs = [run]
            return
        super()._steps(optimizer, args, kwargs)
        if self._holds and self._begun and not (self.ended or self.forked):
            with self._guarded():
                self._hold_gradients(optimizer, loss)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._worker is not None:
            for run in self._worker.woken.runs:
                run |= _as_bytes(self._state(optimizer))  # type: ignore[operator]
            self._worker.end()
        if self._runs and not (self.ended or self.forked):
            with self._guarded():
                self._hold_state(optimizer)
        super()._stepped(optimizer, args, kwargs)
        self._begun, self._runs = False, []
        if self.step >= self._last and not (self.ended or self.forked):
            self.stop()
            raise SystemExit(0)

    def _note(self, seen: StepObservation) -> None:
        super()._note(msgspec.structs.replace(seen, data=self._data))

    def _gradients(self, optimizer: Any, loss: torch.Tensor | None) -> dict[str, Array]:
        assert self._observer is not None
        with quiet():
            found = {f"gradient of {self._observer.name_of(p)}": _array(p.grad) for p in _owned(optimizer)}
            if loss is not None:
                found[LOSS] = _array(loss)
            return found | {DRAWN: torch.get_rng_state().numpy()}

    def _state(self, optimizer: Any) -> dict[str, Array]:
        """Parameters, and the buffers of what is compiled."""
        assert self._observer is not None
        with quiet():
            found = {f"update of {self._observer.name_of(p)}": _array(p) for p in _owned(optimizer)}
            functions = [c.kept["watched"] for c in self._compiled.compiled if "watched" in c.kept]
            for name, tensor in (one for function in functions for one in function.state()):
                if not isinstance(tensor, torch.nn.Parameter) and tensor.is_floating_point():
                    found[f"buffer {name}"] = _array(tensor)
        return found

    def _hold_gradients(self, optimizer: Any, loss: torch.Tensor | None) -> None:
        """Hold loss and gradients of a step against those of uncompiled ones."""
        mine = self._gradients(optimizer, loss)
        self._old = self._state(optimizer)
        if not self._make_again(int(self.step <= MOVED_FIRST or self.step % MOVED_EVERY == 0)):
            return
        self.held.held += 1
        if self._runs[0][DRAWN] != mine[DRAWN].tobytes():
            self._holds, self._runs = False, []
            self.held.notes.append(OTHER_DRAWS.format(step=self.step))
            return
        self._judge(mine)

    def _hold_state(self, optimizer: Any) -> None:
        """Hold what a step has changed against what uncompiled ones have, where its gradients are right."""
        if not (self._suspects and self._suspects[-1][0].step == self.step):
            self._judge(self._state(optimizer))

    def _make_again(self, moved: int) -> bool:
        """Make the step again from its beginning; whether all of it came to an end."""
        woken = self._states.wake(moved, before=self.step + 1, timeout_s=AGAIN_S * (moved + 1))
        runs = [run for run in (woken.runs if woken is not None else []) if run]
        if len(runs) <= moved:
            self._holds = False
            self.held.notes.append(NOT_AGAIN.format(step=self.step))
            return False
        self._runs = [*self._runs, *runs[1:]] if self._runs else [*runs]
        return True

    def _judge(self, mine: dict[str, Array]) -> None:
        """Hold the values of a step against those of the runs, and look into the step where something is outside."""
        graphs = sum(compiled.graphs for compiled in self._compiled.compiled)
        if graphs != self._graphs:
            self._graphs = graphs
            self._envelope.compiled_anew()
        self._envelope.narrow |= any(np.frombuffer(run[NARROWEST])[0] >= NARROW for run in self._runs[1:])
        values, *runs = self._numbers(mine)
        outside = self._envelope.outside(values, runs[0], runs[1:])
        if outside and len(self._runs) <= MOVED_MORE and self._make_again(MOVED_MORE):
            values, *runs = self._numbers(mine)
            outside = self._envelope.outside(values, runs[0], runs[1:])
        self._envelope.take(values, runs[0], runs[1:])
        if outside:
            self._suspect(outside)

    def _numbers(self, mine: dict[str, Array]) -> list[dict[str, Float64Array]]:
        """The values of this step and of the runs as float64; of parameters by how much the step has changed them."""
        found: list[dict[str, Float64Array]] = []
        for run in (_as_bytes(mine), *self._runs):
            numbers = {}
            for name, like in mine.items():
                raw = run.get(name)
                if name == DRAWN or raw is None:
                    continue
                values = np.frombuffer(raw, like.dtype).astype(np.float64)
                old = self._old.get(name) if name.startswith("update") else None
                numbers[name] = values if old is None else values - old
            found.append(numbers)
        return found

    def _suspect(self, outside: Sequence[Figure]) -> None:
        """Take note of what is outside in this step; what is far outside, or lasts, is looked into."""
        first, names = outside[0], frozenset(one.name for one in outside)
        step = OutsideStep(step=self.step, what=first.name, size=first.size, limit=first.limit, others=len(outside) - 1)
        for earlier, its in self._suspects:
            if 0 < self.step - earlier.step <= LASTS and names & its:
                earlier.lasts = True
                step = earlier
        if step.answer is None and (step.lasts or first.excess >= STRONG) and self._looks < MOST_LOOKS:
            self._looks += 1
            step.answer = self._looked_into(step)
        if step not in self.held.outside:
            self.held.outside.append(step)
            self._suspects.append((step, names))
        self._holds = not (step.lasts or (step.answer is not None and step.answer.diagnosis is not None))

    def _looked_into(self, step: OutsideStep) -> WatchAnswer | None:
        """What a diagnosis of the step's calls finds."""
        if step.what.startswith("update"):
            return None
        assert self._writer is not None
        answer = WatchAnswer(kind="drift", step=self.step, what=f"the {step.what} is outside of the envelope")
        folder = self._writer.tool_dir / f"step-{self.step}"
        return looked_into(answer, list(self._calls), folder, self._budget_s)


def _array(tensor: Any) -> Array:
    values = plain_tensor(tensor).cpu()
    return values.to(values.dtype if values.dtype == torch.float64 else torch.float32).reshape(-1).numpy().copy()


def _as_bytes(values: dict[str, Array]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in values.items()}


def _owned(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters of an optimizer that have gradients."""
    return with_gradients(p for group in optimizer.param_groups for p in group["params"])
