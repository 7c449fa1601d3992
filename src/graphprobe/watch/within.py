"""Looks into the step that went wrong: its calls are made again in child processes, uncompiled and as compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import torch

from graphprobe.diagnose.program import tensors_of
from graphprobe.diagnose.script import OTHER_CALL, ScriptOptions, overrides_of
from graphprobe.diagnose.searches.in_place import ONCE, differences_in_place
from graphprobe.engine.values import one_file_bytes, why_not
from graphprobe.errors import UsageError, raised_from
from graphprobe.findings import Diagnosis
from graphprobe.internals import after_fork
from graphprobe.internals.quiet import quiet
from graphprobe.report.diagnosis import first_line_from
from graphprobe.settings.limits import STEP_LIMIT_S, NoTimeLeft, TimeBudget
from graphprobe.store.files import replace_file
from graphprobe.store.watch_file import FirstOperation, StepObservation, WatchAnswer
from graphprobe.watch.further_back import Sleepers
from graphprobe.watch.observation import is_all_finite
from graphprobe.watch.step_calls import Again, StepCall, in_child, place_of

MOST_NAMED = 5
"""Parameters and arguments that are named of those that are wrong."""

NO_CALL = (
    "no call of a compiled function or of a module was seen in this step, so that nothing can be made again; begin to "
    "watch before torch.compile is called"
)
NO_FORK = "no child process can be forked here: the step's calls were not made again as they are"
BEHIND = "it comes out of the code between the step's calls and the loss: every call's own results are finite"
NOT_AGAIN = "made again, no call of the step shows it: what the step read of time, threads or other ranks was otherwise"
NOT_BACK = "no copy of the program from before this came to the step again"
BACK = "a copy of the program ran steps {first} to {last} again, each parameter observed"
PARTED = "run again, step {step} has the loss {now}, and had {was}: what it read, of workers or the clock, came once"
SPENT = "{told}: the step was not looked into to its end"


@dataclass
class StepInquiry:
    """One look into a step.

    Attributes:
        answer: what is known, which grows.
        calls: of the step, in order.
        folder: takes what proves it.
        budget: for all of it.
    """

    answer: WatchAnswer
    calls: Sequence[StepCall]
    folder: Path
    budget: TimeBudget
    _forks: bool = field(default_factory=after_fork.can_fork)

    def of_values(self) -> None:
        """Find what made a loss, a gradient or a result that is not finite."""
        for call in self.calls:
            self.answer.state += [name for name in wrong_state(call) if name not in self.answer.state]
        if not self._forks:
            self.answer.notes.append(NO_FORK)
        behind = False
        for call in self.calls if self._forks else ():
            again = self._again(call, compiled=False)
            behind = behind or (again is not None and again.behind)
            if again is not None and not again.finite and again.raised is None:
                self._uncompiled_too(call, again)
                return
            as_compiled = self._again(call, compiled=True)
            if as_compiled is not None and not as_compiled.finite:
                self._only_compiled(call)
                return
        if not self._forks and any(self._only_compiled(call) for call in self.calls):
            return
        if self.calls and self._forks and not self.answer.state:
            self.answer.notes.append(BEHIND if behind else NOT_AGAIN)

    def of_spike(self) -> None:
        """Find out whether a call of the step returns other values compiled than uncompiled."""
        for call in self.calls:
            compiled = call.function.compiled
            found = None
            if self._forks:
                with call.as_then():
                    arguments = (call.args, call.kwargs)
                    called = call.function.called
                    found = differences_in_place(compiled.fn, called, arguments, self.budget, afresh=False)
            if found == []:
                continue
            if self._only_compiled(call, certain=bool(found)):
                return
        if self.calls and self.answer.uncompiled == "unknown":
            self.answer.uncompiled = "yes"

    def of_shadow(self) -> None:
        """Diagnose the call that is wrong; where compiled afresh it is right, the answer has the function's line."""
        (call,) = self.calls
        self._only_compiled(call, certain=ONCE not in self.answer.what)
        self.answer.call, self.answer.uncompiled = call.name, "no"
        if self.answer.operation is None:
            place = call.function.name.partition("(")[2].rstrip(")")
            name = call.function.name.partition(" ")[0]
            self.answer.operation = FirstOperation(op=name, source=place, problems=[self.answer.what])
            file, given = self.folder / "inputs.safetensors", enumerate(tensors_of((call.args, call.kwargs)))
            with contextlib.suppress(OSError, UsageError):  # a full disk, a tensor without plain memory
                replace_file(file, one_file_bytes({f"tensor {i}": tensor.detach() for i, tensor in given}))
                self.answer.inputs = str(file)

    def of_drift(self) -> None:
        """Diagnose the step's calls, until one is wrong compiled."""
        any(self._only_compiled(call, certain=False) for call in self.calls)

    def of_exception(self, error: BaseException, call: StepCall | None) -> None:
        """Find where an exception comes from, and whether the call that raised it does so uncompiled."""
        source = place_of(error)
        self.answer.operation = FirstOperation(op=raised_from(error).line, source=source)
        if call is None and "_dynamo" not in raised_from(error).trace:
            self.answer.uncompiled = "yes"
        if call is None or not self._forks:
            return
        again = self._again(call, compiled=False)
        if again is not None and again.raised is not None:
            self.answer.call, self.answer.uncompiled = call.name, "yes"
            found = FirstOperation(op=again.raised, source=again.source or source, module=again.module)
            self.answer.operation = found
        elif again is not None:
            self._only_compiled(call)

    def _again(self, call: StepCall, *, compiled: bool) -> Again | None:
        """What came of a call made again in a child; None if that did not end well, which is noted."""
        keep = None if compiled else self.folder / "inputs.safetensors"
        again = in_child(partial(call.again, compiled=compiled, keep=keep), Again, self.budget)
        way = "as compiled" if compiled else "uncompiled"
        if isinstance(again, str):
            self.answer.notes.append(f"{call.name} could not be made again {way}: {again}")
            return None
        if again.raised is not None and self.answer.kind != "exception":
            self.answer.notes.append(f"made again {way}, {call.name} raised {again.raised}")
        return again

    def _uncompiled_too(self, call: StepCall, again: Again) -> None:
        self.answer.call, self.answer.uncompiled = call.name, "yes"
        file = self.folder / "inputs.safetensors"
        if again.operations:
            self.answer.operation = again.operations[0]
            self.answer.inputs = str(file) if file.exists() else None
        elif not self.answer.state:
            self.answer.state = wrong_state(call, masks=True)

    def _only_compiled(self, call: StepCall, *, certain: bool = True) -> bool:
        """Diagnose a call which is right uncompiled; whether it is wrong compiled, then the answer has it.

        `certain`: it was seen to be wrong with the code that the program has compiled.
        """
        options = ScriptOptions(budget=self.budget, out=self.folder)
        compiled, calls = call.function.compiled, [(call.args, call.kwargs)]
        with call.as_then():
            out = self.folder / f"diagnosis-{call.number}"
            diagnosis = options.diagnosis(compiled.fn, overrides_of(compiled), calls, out=out)
        if diagnosis.verdict != "fault" and not (certain and self._forks):
            if diagnosis.verdict == "undecided":
                self.answer.notes += diagnosis.notes
            return False
        self.answer.call, self.answer.uncompiled = call.name, "no"
        self.answer.diagnosis = msgspec.to_builtins(diagnosis)
        if diagnosis.findings:
            self.answer.operation = _operation_from(diagnosis)
            self.answer.dossier = diagnosis.findings[0].dossier
        else:
            self.answer.notes.append(OTHER_CALL)
        return True


def _operation_from(diagnosis: Diagnosis) -> FirstOperation:
    first = diagnosis.findings[0]
    return FirstOperation(
        op=first.op or first.stage_name,
        direction=first.direction,
        source=first.line or "",
        module=first.within or first.module or "",
        problems=[first_line_from(diagnosis)],
    )


def looked_into(
    answer: WatchAnswer,
    calls: Sequence[StepCall],
    folder: Path,
    budget_s: float | None,
    *,
    error: BaseException | None = None,
    raised_in: StepCall | None = None,
) -> WatchAnswer:
    """The answer, with what the step's calls tell, made again in child processes; this process stays as it is.

    Args:
        answer: with the trigger.
        calls: of the step, in order.
        folder: a new one for what proves it.
        budget_s: seconds for all of it; None is no bound.
        error: of the trigger `exception`.
        raised_in: the call that it came out of; None where it did not come out of one.
    """
    inquiry = StepInquiry(answer, calls, folder, TimeBudget(budget_s))
    for call in calls:
        call.settle()
    try:
        with contextlib.suppress(OSError):  # a full disk
            folder.mkdir(parents=True, exist_ok=True)
        if not calls and answer.kind in ("nan", "spike", "drift"):
            answer.notes.append(NO_CALL)
        if answer.kind == "nan":
            inquiry.of_values()
        elif answer.kind == "spike":
            inquiry.of_spike()
        elif answer.kind == "shadow":
            inquiry.of_shadow()
        elif answer.kind == "drift":
            inquiry.of_drift()
        elif error is not None and answer.kind == "exception":
            inquiry.of_exception(error, raised_in)
    except NoTimeLeft as spent:
        answer.notes.append(SPENT.format(told=spent))
    except Exception as failed:  # the program must go on as it would without being watched
        answer.notes.append(f"the look into the step failed: {raised_from(failed).line}")
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    return answer


def wrong_state(call: StepCall, *, masks: bool = False) -> list[str]:
    """Parameters that are not finite, and buffers and arguments that hold a NaN, before a call.

    An infinity in a buffer or an argument is no fault, for masks have them; with `masks` these are named, too.
    """
    with quiet():
        state = [(name, tensor) for name, tensor in call.state() if why_not(tensor) is None]
        strict = [masks or isinstance(tensor, torch.nn.Parameter) for _, tensor in state]
        pairs = zip(state, strict, strict=True)
        return [name for (name, tensor), all_of in pairs if _is_wrong(tensor, infinities=all_of)][:MOST_NAMED]


def _is_wrong(tensor: torch.Tensor, *, infinities: bool) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    return not is_all_finite(tensor) if infinities else bool(torch.isnan(tensor).any())


def came_back(
    answer: WatchAnswer, sleepers: Sleepers, ring: Sequence[StepObservation], budget_s: float | None
) -> Sequence[StepObservation]:
    """Add what a copy of the program from before the first suspicious step tells, which runs on to this one.

    Returns:
        its observations, of each parameter at each step; the ring where it does not come to the same steps again.
    """
    full = [(seen.step, dict(zip(seen.names, seen.sizes, strict=False))) for seen in ring if seen.names]
    spoilt = [step for step, sizes in full if any(isinstance(size, str) for size in sizes.values())]
    limit_s = STEP_LIMIT_S if budget_s is None else budget_s
    woken = sleepers.wake(answer.step, before=min([answer.step, *spoilt]), timeout_s=limit_s)
    if woken is None or not woken.seen:
        answer.notes.append(NOT_BACK)
        return ring
    first = {seen.step: seen for seen in ring if seen.call is None}
    answer.notes.append(BACK.format(first=woken.seen[0].step, last=woken.seen[-1].step))
    parted = next((seen for seen in woken.seen if not _is_alike(seen, first.get(seen.step))), None)
    if parted is not None:
        was = first.get(parted.step)
        answer.notes.append(PARTED.format(step=parted.step, now=parted.loss, was=was and was.loss))
        return ring
    answer.notes += [note for note in (begins_at(woken.seen),) if note]
    if answer.operation is None and woken.operations:
        answer.operation, answer.uncompiled = woken.operations[0], "yes"
        answer.notes = [note for note in answer.notes if note not in (BEHIND, NO_CALL)]
    return woken.seen


def _is_alike(seen: StepObservation, first: StepObservation | None) -> bool:
    """Whether a step that was made again is what it was the first time, as far as rounding lets it be."""
    if first is None or not (isinstance(seen.loss, float) and isinstance(first.loss, float)):
        return first is not None and type(seen.loss) is type(first.loss)
    return abs(seen.loss - first.loss) <= 0.01 * abs(first.loss) + 1e-6


def begins_at(seen: Sequence[StepObservation]) -> str:
    """In which step and parameter's gradient it begins, in words; empty if nothing grows."""
    for step in seen:
        wrong = [name for name, size in zip(step.names, step.gradients, strict=False) if isinstance(size, str)]
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            return f"it begins in step {step.step}, in the gradient of {wrong[-1]}{more}"
    grown: list[tuple[float, int, str]] = []
    for before, now in pairwise(seen):
        past = dict(zip(before.names, before.gradients, strict=False))
        for name, size in zip(now.names, now.gradients, strict=False):
            was = past.get(name)
            if isinstance(size, float) and isinstance(was, float) and was > 0:
                grown.append((size / was, now.step, name))
    if not grown:
        return ""
    factor, number, name = max(grown)
    return f"the gradient of {name} grew most, in step {number}: by a factor of {factor:.3g}"


def since_when(name: str, ring: Sequence[StepObservation]) -> str:
    """Between which observations a parameter became something other than finite, in words; empty if not known."""
    sizes = [(seen.step, dict(zip(seen.names, seen.sizes, strict=False)).get(name)) for seen in ring if seen.names]
    good = [step for step, size in sizes if isinstance(size, float)]
    bad = [step for step, size in sizes if isinstance(size, str)]
    if not good or not bad or bad[0] < good[-1]:
        return ""
    return f"{name} was finite before step {good[-1]}, and not before step {bad[0]}"
