"""A script, with every call of a compiled function diagnosed before it happens. Imports no torch before the script."""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from graphprobe.diagnose.script_calls import (
    FAILED,
    PROVEN,
    CallBefore,
    Past,
    copied_call,
    gradients_of,
    is_finite,
    is_whole,
    mode_of,
    name_of,
    nothing_compiled,
    requires_grad,
    signature_of,
    undiagnosed,
    unknown,
)
from graphprobe.diagnose.ways.way_watch import WayWatch
from graphprobe.errors import raised_from
from graphprobe.findings import CallsLookedAt, Diagnosis, Finding, NamedStep, told_more
from graphprobe.internals.dynamo.compile_calls import CompileCalls, Compiled
from graphprobe.probe import environment, script
from graphprobe.settings.limits import STEP_LIMIT_S, NoTimeLeft, TimeBudget

if TYPE_CHECKING:
    from graphprobe.diagnose.api import CompileOverrides
    from graphprobe.diagnose.program import Program
    from graphprobe.diagnose.searches.equal_graphs import EqualGraphs
    from graphprobe.diagnose.settings import Compilation, Limits
    from graphprobe.diagnose.ways.way_program import WayCall
    from graphprobe.judge.judging import Difference
    from graphprobe.select.step_ranges import StepSelection

MOST_SEQUENCES = 3
"""Sequences of calls that are diagnosed for one function."""

MOST_LOOKS = 40
"""Calls of a script that are looked at as the script makes them."""

LAST_S = 2.0
"""Time for a diagnosis to say what it knows, once its own is over."""

ELSEWHERE = "processes that the program forked called compiled functions, which were not looked into there"

CRASHES = ("segfault", "hang", "crash_compile", "crash_runtime")
"""Kinds of faults after which the script goes on with the uncompiled function."""

OTHER_CALL = (
    "Compiled afresh, the function is right. In the script this call runs code that was compiled for another call, or "
    "for another function with the same text: no guard has kept it from that."
)
UNPROVEN = "The script, run again, does not show it."

RETURNED = "call {call} returns in the script, and raises {line} as it is repeated: what it returns was not compared"
RAISED = "call {call} raised {line}, which the diagnosis of that call does not show"


@dataclass(frozen=True)
class ScriptOptions:
    """What `diagnose` is asked for each function; None leaves it to the script.

    Attributes:
        backend, dynamic: in the place of what the script gives to `torch.compile`, for the script's own calls too.
        grad: "auto": with gradients where they are on at the call; "apart": each output has its own backward.
        budget: of time, for all diagnoses together.
        step_limit_s: for one compilation with its runs; None: as `diagnose` has it.
        first: end at the first fault.
        exact: a difference in the last bits is a fault, too.
        workaround: try changes of a function that is wrong until it is right.
        out: folder that gets one folder for each diagnosis.
        deep: look into functions that are right, too.
        calls: numbers of the calls to diagnose of each function, from 1; None leaves the choice to the watcher.
    """

    backend: str | None = None
    dynamic: bool | None = None
    grad: bool | Literal["auto", "apart"] = "auto"
    budget: TimeBudget = field(default_factory=lambda: TimeBudget(None))
    out: Path | None = None
    deep: bool = False
    step_limit_s: float | None = None
    first: bool = False
    exact: bool = False
    workaround: bool = True
    calls: StepSelection | None = None

    def overrides(self) -> dict[str, Any]:
        """The arguments of `torch.compile` that are replaced."""
        return {k: v for k, v in (("backend", self.backend), ("dynamic", self.dynamic)) if v is not None}

    def diagnosis(
        self,
        fn: Any,
        asked: CompileOverrides,
        calls: list[tuple[Any, Mapping[str, Any]]],
        *,
        out: Path | None,
        on_step: Callable[[NamedStep], None] | None = None,
    ) -> Diagnosis:
        """The diagnosis of calls of one function, as far as these options let it go."""
        from graphprobe.diagnose.api import climbed

        program, compilation, limits = self._prepared(fn, asked, calls, out)
        return climbed(program, compilation, limits, on_step=on_step)

    def _limited(self, compilation: Compilation) -> Compilation:
        from graphprobe.diagnose.api import with_limits

        return with_limits(compilation, {"first": self.first, "step_limit_s": self.step_limit_s})

    def _prepared(
        self, fn: Any, asked: CompileOverrides, calls: list[tuple[Any, Mapping[str, Any]]], out: Path | None
    ) -> tuple[Program, Compilation, Limits]:
        import torch

        from graphprobe.diagnose.api import prepared
        from graphprobe.diagnose.settings import Limits

        grad = torch.is_grad_enabled() and self.grad
        program, compilation = prepared(fn, (), {}, asked, grad=grad, calls=calls, out=out)
        compilation = self._limited(compilation)
        return program, compilation, Limits(self.budget, self.deep, self.first, self.exact, self.workaround)

    def way_diagnosis(
        self, held: WayCall, *, out: Path | None, on_step: Callable[[NamedStep], None] | None = None
    ) -> Diagnosis:
        """The diagnosis of a call of what was exported, traced or packaged."""
        from graphprobe.diagnose.api import new_folder_for_proofs
        from graphprobe.diagnose.settings import Compilation, Limits
        from graphprobe.diagnose.ways.way_ladder import climbed_way

        compilation = self._limited(Compilation("eager", None, out or new_folder_for_proofs()))
        return climbed_way(held, compilation, Limits(self.budget, self.deep, self.first, self.exact), on_step=on_step)

    def wrong_in_place(
        self, compiled: Compiled, call: tuple[Any, Mapping[str, Any]], out: Path | None, seen: Any = None
    ) -> list[Difference]:
        """What is certainly wrong with a call of what the script has compiled; `seen`: see `judged_in_place`."""
        from graphprobe.diagnose.ladder import Ladder
        from graphprobe.diagnose.searches.in_place import judged_in_place

        program, compilation, limits = self._prepared(compiled.fn, overrides_of(compiled), [call], out)
        return judged_in_place(Ladder(program, compilation, limits), compiled.called or compiled.fn, seen)


@dataclass(frozen=True)
class DiagnosedScript:
    """How the script ended.

    Attributes:
        diagnoses: name and diagnosis, in the order in which they were made.
        problem: what ended the script, one sentence; None where it ended well.
        unfinished: the script was interrupted, or a diagnosis did not end in time.
        equal: names of functions of which several had equal graphs, and a note on these.
        calls: of each function, which of its calls were held against the uncompiled program.
        graphs: how many Dynamo compiled as the script ran.
    """

    diagnoses: list[tuple[str, Diagnosis]]
    problem: str | None = None
    unfinished: bool = False
    equal: list[tuple[str, str]] = field(default_factory=list)
    calls: list[CallsLookedAt] = field(default_factory=list)
    graphs: int = 0


def run_diagnosed(
    program: script.ScriptTarget,
    options: ScriptOptions,
    *,
    on_start: Callable[[str], None] = lambda name: None,
    on_step: Callable[[NamedStep], None] | None = None,
    on_diagnosis: Callable[[str, Diagnosis], None] = lambda name, diagnosis: None,
) -> DiagnosedScript:
    """Run a script and diagnose every function that it compiles; each diagnosis is told as soon as it is made.

    The script is ended once the budget is spent, or at the first fault if that is asked for.

    An exception that the script does not catch is printed as python would.
    """
    script.check(program)
    watcher = _Watcher(options, on_start, on_step, on_diagnosis, program)
    told = watcher.before, watcher.after, watcher.failed, watcher.backward
    calls = CompileCalls(*told, overrides=options.overrides())
    watched = WayWatch(watcher, calls)
    watcher.aside = watched.is_tracing
    calls.install()
    watched.install()
    try:
        with options.budget.alarm(watcher.ring):
            ended = script.run(program)
            watched.at_end()
    except SystemExit:  # just behind its end
        ended = script.Ended(0)
    finally:
        watched.remove()
        calls.remove()
    watcher.wait()
    if watcher.stopped is not None and (watcher.under_way or not watcher.diagnoses):
        late = "its diagnosis had only begun" if watcher.under_way else "no compiled function was called until then"
        watcher.tell(watcher.under_way or program.name, unknown(f"{watcher.stopped}: {late}", unfinished=True))
    problem = f"the script was ended: {watcher.stopped}" if watcher.stopped is not None else ended.problem
    unfinished = bool(options.budget.ended) or any(diagnosis.unfinished for _, diagnosis in watcher.diagnoses)
    if calls.elsewhere[0]:
        watcher.tell("other processes", unknown(ELSEWHERE))
    if calls.unseen or (ended.compiling and not watcher.diagnoses):
        watcher.tell(program.name, undiagnosed(calls.unseen, ended))
    if not watcher.diagnoses:
        raise nothing_compiled(program.name, len(calls.compiled), problem)
    looked_at, graphs = watcher.calls_looked_at(), calls.unseen.total() + sum(one.graphs for one in calls.compiled)
    graphs += watched.graphs
    return DiagnosedScript(watcher.diagnoses, problem, unfinished, watcher.equal(), looked_at, graphs)


class _Watcher:
    """Decides which calls are diagnosed, and diagnoses them.

    Attributes:
        stopped: why the script goes on no further; None while it does.
        under_way: name of the function that is just being diagnosed; empty while none is.
        aside: whether torch itself is at work, whose own calls of compiled functions are a part of that.
    """

    def __init__(
        self,
        options: ScriptOptions,
        on_start: Callable[[str], None] = lambda name: None,
        on_step: Callable[[NamedStep], None] | None = None,
        on_diagnosis: Callable[[str, Diagnosis], None] = lambda name, diagnosis: None,
        program: script.ScriptTarget | None = None,
    ) -> None:
        """`program`: the script, which may be ended; None: somebody else's program, which goes on in any case."""
        self.options, self.on_start, self.on_step, self.on_diagnosis = options, on_start, on_step, on_diagnosis
        self.diagnoses: list[tuple[str, Diagnosis]] = []
        self.stopped: str | None = None
        self.under_way = ""
        self.aside: Callable[[], bool] = lambda: False
        self._known: EqualGraphs | None = None
        self._pasts = WeakKeyDictionary[Any, list[tuple[tuple[Any, ...], Past]]]()
        self._all: list[Past] = []
        self._program, self._diagnosing, self._calls, self._looks = program, 0, 0, 0  # diagnosing: which thread
        self._pending: dict[Past, tuple[Compiled, int, Any, Any]] = {}  # calls whose backward has not run yet
        self._begun = self._pending  # those of which one has
        self._proofs: Path | None = None

    def before(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Diagnose a call with a new signature; after a crash the script gets the function uncompiled."""
        if self.aside():
            return
        past = self._past_of(compiled)
        past.numbers[threading.get_ident()] = past.count(1)
        past.in_all = self._calls = self._calls + 1
        compiled.uncompiled = compiled.uncompiled or past.uncompiled
        mode = mode_of(compiled.fn, args)
        signature = (mode, signature_of(args, kwargs))
        if self.stopped is None and self._is_wanted(past, signature):
            past.seen[signature] = None
            with self._busy(compiled):
                self._look_at(compiled, past, mode, args, kwargs)
        if self.stopped is None and not past.wrong:
            with self._busy(compiled):
                past.so_far.add(compiled.fn, (args, kwargs))
                other = self.options.calls is None and past.around.is_other(compiled.fn)
                self._look_in_place(compiled, past, args, kwargs, at_any=other)
                past.given[threading.get_ident()] = CallBefore(args, kwargs, past.changes)
                past.graphs = compiled.graphs
        if self.stopped is not None:
            raise SystemExit(0)

    def _is_wanted(self, past: Past, signature: Any) -> bool:
        if self.options.calls is not None:
            return past.number in self.options.calls
        if past.wrong and any(seen[0] == signature[0] for seen in past.seen):
            return False  # the same fault again, most likely
        return len(past.seen) < MOST_SEQUENCES and signature not in past.seen

    def after(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Diagnose the first call whose result is not finite, and look at those for which something was compiled."""
        if self.aside():
            return
        past = self._past_of(compiled)
        if self.stopped is not None or past.wrong:
            return
        if past.last == past.number and past.raises:
            self.told(past.name, past, unknown(RETURNED.format(call=past.number, line=past.raises)))
        call = past.as_before(args, kwargs)
        if past.not_finite is None and not is_finite(result):
            past.not_finite = past.number
            self._look_again(compiled, past, *call)
        new = compiled.graphs > past.graphs and self.options.calls is None
        if new and past.number not in past.looked_at and not past.wrong:
            with self._busy(compiled):
                self._look_in_place(compiled, past, *call, new=True)
        if requires_grad(result):
            self._pending[past] = compiled, past.number, *call
        if self.stopped is not None:
            raise SystemExit(0)

    def backward(self, error: Exception | None) -> None:
        """Diagnose the calls whose backward this was, if it raised, or left the first gradients that are not finite."""
        pending, self._pending = self._pending, {}
        self._begun = pending or self._begun
        for past, (compiled, number, args, kwargs) in (self._begun if error is not None else pending).items():
            if self.stopped is not None or past.wrong or past.gradient_not_finite is not None:
                continue
            if error is None:
                if is_finite(gradients_of(compiled.fn, args, kwargs)):
                    continue
                past.gradient_not_finite = number
            if past.number == number:
                self._look_again(compiled, past, args, kwargs, raised=error is not None)
        if self.stopped is not None:
            raise SystemExit(0)

    def _look_again(self, compiled: Compiled, past: Past, args: Any, kwargs: Any, *, raised: bool = False) -> None:
        """Diagnose this call with its values, unless it was held against the uncompiled one.

        `raised`: a backward of it has raised, which may be one of several: each output has its own then.
        """
        known = past.number in past.looked_at
        if raised or not known:
            with self._busy(compiled):
                self._look_at(compiled, past, None, args, kwargs, apart=raised and known)

    def failed(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> None:
        """Diagnose the first call that raises, unless it raises uncompiled, too."""
        if self.aside():
            return
        past = self._past_of(compiled)
        if self.stopped is not None or past.wrong or past.raised:
            return
        past.raised = True
        call = past.as_before(args, kwargs)
        with self._busy(compiled):
            if past.last != past.number:
                self._look_at(compiled, past, None, *call)
            if not past.explains_exception():
                self._look_in_place(compiled, past, *call, at_any=True)
            if not past.explains_exception():
                told = RAISED.format(call=past.number, line=raised_from(error).line)
                self.told(past.name, past, unknown(told))
        if self.stopped is not None:
            raise SystemExit(0)

    def calls_looked_at(self) -> list[CallsLookedAt]:
        """Of each function, which of its calls were held against the uncompiled one."""
        return [
            CallsLookedAt(p.name, p.count(0), sorted(p.looked_at), p.not_finite, p.gradient_not_finite)
            for p in self._all
        ]

    def _past_of(self, compiled: Compiled) -> Past:
        """The calls of the function so far. Where one function is given to torch.compile again and again, its calls go
        on from one to the next, as what Dynamo has compiled for it does."""
        if "past" not in compiled.kept:
            past = Past(name_of(compiled.fn))
            of: Any = getattr(compiled.fn, "__func__", compiled.fn)
            if inspect.isfunction(of):
                owner = id(getattr(compiled.fn, "__self__", None))
                asked = (owner, compiled.backend, compiled.dynamic, compiled.mode, compiled.options, compiled.fullgraph)
                key = of if of.__closure__ else of.__code__  # as Dynamo has it
                known = self._pasts.setdefault(key, [])
                past = next((its for what, its in known if what == asked), past)
                known.append((asked, past))
            if past not in self._all:
                self._all.append(past)
            compiled.kept["past"] = past
            past.compiled.append(compiled)
        found: Past = compiled.kept["past"]
        return found

    def past_named(self, name: str) -> Past:
        """The calls of something that no `torch.compile` has compiled."""
        self._all.append(Past(name))
        return self._all[-1]

    @contextlib.contextmanager
    def at_work(self, name: str) -> Iterator[None]:
        """A block in which something of this name is diagnosed."""
        self._diagnosing = threading.get_ident()
        self._begin(name)
        try:
            yield
        finally:
            self._diagnosing, self.under_way = 0, ""

    @contextlib.contextmanager
    def _busy(self, compiled: Compiled) -> Iterator[None]:
        self._diagnosing, compiled.busy = threading.get_ident(), True
        try:
            yield
        finally:
            self._diagnosing, self.under_way, compiled.busy = 0, "", False

    def ring(self) -> None:
        """No time is left: the script ends here, unless a function is just being diagnosed, which ends by itself."""
        if self._diagnosing != threading.get_ident():
            self.stopped = self.stopped or self.options.budget.told
            raise SystemExit(0)

    def wait(self) -> None:
        """Wait a little for a diagnosis on another thread, for which no time is left either."""
        until = time.monotonic() + LAST_S
        while self.stopped is not None and self._diagnosing and time.monotonic() < until:
            time.sleep(0.05)

    def _begin(self, name: str) -> None:
        self.under_way = name
        self.on_start(name)

    def tell(self, name: str, diagnosis: Diagnosis) -> None:
        """Take in one more diagnosis."""
        self.diagnoses.append((name, diagnosis))
        self.on_diagnosis(name, diagnosis)

    def _look_at(
        self,
        compiled: Compiled,
        past: Past,
        mode: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        apart: bool = False,
    ) -> None:
        name = past.name if past.number == 1 else f"{past.name}, call {past.number}"
        alone = mode is None or self.options.calls is not None  # this very call is wanted, with its values
        try:
            call = copied_call(compiled.fn, args, kwargs)
            earlier = []
            if not alone:
                earlier = [copied_call(compiled.fn, *kept) for was, kept in past.kept if was == mode and is_whole(kept)]
                past.kept.append((mode, copied_call(compiled.fn, *call)))
            calls = [*earlier, call]
            if self._known is None:
                from graphprobe.diagnose.searches.equal_graphs import EqualGraphs

                self._known = EqualGraphs()
            if not alone and self._known.has(compiled, past.seen, calls, self.options.budget):
                past.looked_at.add(past.number)
                return
            self._begin(name)
            diagnosis = self._diagnose(compiled, name, calls, apart=apart)
            if diagnosis.findings and not any(finding.proof for finding in diagnosis.findings):
                self.prove(diagnosis.findings[0], past.in_all, PROVEN, self.options.overrides())
            refused = [finding.reason for finding in diagnosis.findings if finding.kind == "unsupported"]
            past.last, past.raises = past.number, diagnosis.raises or "".join(refused[:1])
            if not alone:
                self._known.add(compiled, past.seen, calls, diagnosis)
            if diagnosis.verdict != "undecided":
                past.looked_at.add(past.number)
        except NoTimeLeft as spent:
            late = f"{spent}: whether the compiled program is right was not found out"
            diagnosis = unknown(late, unfinished=True)
        except Exception as error:  # the program must go on as it would without being watched
            diagnosis = unknown(FAILED.format(kind=type(error).__name__, error=error))
        compiled.uncompiled = past.uncompiled = any(finding.kind in CRASHES for finding in diagnosis.findings)
        if compiled.uncompiled:
            diagnosis.notes.append("the script went on with the uncompiled function")
        self.told(name, past, diagnosis)

    def told(self, name: str, past: Past, diagnosis: Diagnosis) -> None:
        """Tell a diagnosis, and end the script where no more is wanted."""
        past.wrong = past.wrong or diagnosis.verdict == "fault"
        self.tell(name, diagnosis)
        if self._program is not None and not self.options.budget.left_s:
            self.stopped = self.options.budget.told
        elif self._program is not None and self.options.first and diagnosis.verdict == "fault":
            self.stopped = "there is a first fault"

    def _look_in_place(
        self,
        compiled: Compiled,
        past: Past,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        at_any: bool = False,
        new: bool = False,
    ) -> None:
        """Diagnose a call that goes wrong as the script makes it, though the function is right compiled afresh.

        `at_any`: also if its number is not looked at. `new`: so, and behind it: its code may be wrong afresh, too.
        """
        from graphprobe.diagnose.searches import in_place

        number, call = past.number, (args, kwargs)
        try:
            chosen = in_place.is_looked_at(number) if self.options.calls is None else number in self.options.calls
            wanted = at_any or new or (chosen and (number > 1 or in_place.is_compiled(compiled.fn)))
            if compiled.called is None or not wanted or self._looks >= MOST_LOOKS or environment.world_size() > 1:
                return
            self._looks += 1
            wrong = in_place.differences_in_place(
                compiled.fn, compiled.called, call, self.options.budget, afresh=not new
            )
            if wrong is not None:
                past.looked_at.add(number)
            if wrong and new:
                self._look_at(compiled, past, None, args, kwargs)
            if not wrong or past.wrong:
                return
            self._begin(name := f"{past.name}, call {number}")
            calls = past.so_far.calls if number > 1 else None
            diagnosis = in_place.with_guards(lambda: self._diagnose(compiled, name, calls)) if calls else None
            if diagnosis is None or diagnosis.verdict != "fault":
                diagnosis = self._in_the_script(compiled, past, call, name)
            if diagnosis is None:
                return
        except NoTimeLeft as spent:
            self.stopped = str(spent) if self._program is not None else None
            return
        except Exception as error:  # the program must go on as it would without being watched
            diagnosis, name = unknown(FAILED.format(kind=type(error).__name__, error=error)), past.name
        self.told(name, past, diagnosis)

    def _in_the_script(
        self, compiled: Compiled, past: Past, call: tuple[Any, Mapping[str, Any]], name: str
    ) -> Diagnosis | None:
        """The diagnosis of a call that goes wrong only with what the script compiled before; None if rounding may."""
        began = time.monotonic()
        wrong = self.options.wrong_in_place(compiled, call, self.place("in-the-script"))
        if not wrong:
            return None
        from graphprobe.diagnose.searches.dropped_guards import blame_dropped_guard

        line, first = name.partition("(")[2].partition(")")[0], wrong[0]
        finding = Finding(kind=first.kind, stage="dynamo", source=line or None, worst=first.worst)
        blame_dropped_guard(finding, compiled, [call for _, call in past.kept], call, self.options.budget)
        shown = self.prove(finding, past.in_all, OTHER_CALL, self.options.overrides())
        made = Diagnosis(verdict="fault", findings=[finding]) if shown else Diagnosis(verdict="undecided")
        made.notes += [] if shown else [f"{first.text}. {OTHER_CALL} {UNPROVEN}"]
        made.seconds = round(time.monotonic() - began, 2)
        return made

    def prove(
        self, finding: Finding, number: int, reason: str, options: Mapping[str, Any], *, packaged: bool = False
    ) -> bool:
        """Whether the script, run again up to this call, shows the finding; with that reason it is the proof then.

        Arguments as of `prove_by_script`.
        """
        from graphprobe.diagnose.dossier.whole_proof import prove_by_script

        place, limit_s = self.place("in-the-script"), min(STEP_LIMIT_S, self.options.budget.left_s)
        if self._program is None or place is None:
            return False
        was = finding.reason
        finding.reason = told_more(was, reason)
        shown = prove_by_script(place, finding, self._program, number, options, limit_s, packaged=packaged)
        finding.reason = finding.reason if shown else was
        return shown

    def equal(self) -> list[tuple[str, str]]:
        """Names of functions of which several had equal graphs, and the note on these."""
        return self._known.told(self.diagnoses) if self._known is not None else []

    def _diagnose(
        self, compiled: Compiled, name: str, calls: list[tuple[Any, Mapping[str, Any]]], *, apart: bool = False
    ) -> Diagnosis:
        options, place = overrides_of(compiled), self.place(name)
        asked = replace(self.options, grad=self.options.grad and "apart") if apart else self.options
        return asked.diagnosis(compiled.fn, options, calls, out=place, on_step=self.on_step)

    def place(self, name: str) -> Path | None:
        """The folder of the next diagnosis; None in somebody else's program, where each has one of its own."""
        if self._program is not None and self._proofs is None:
            from graphprobe.diagnose.api import new_folder_for_proofs

            self._proofs = self.options.out or new_folder_for_proofs()
        folder = self._proofs or self.options.out
        short = "".join(c if c.isalnum() else "-" for c in name.partition(" ")[0]).strip("-")
        return None if folder is None else folder / f"{len(self.diagnoses)}-{short}"


def overrides_of(compiled: Compiled) -> CompileOverrides:
    """What `diagnose` is asked in order to compile a function as the program does."""
    from graphprobe.diagnose.api import CompileOverrides

    return CompileOverrides(compiled.backend, compiled.dynamic, compiled.mode, compiled.options, compiled.fullgraph)


def watcher_of(options: ScriptOptions) -> _Watcher:
    """What diagnoses the calls of `CompileCalls`, for somebody who runs the program: `before`, and `diagnoses`."""
    return _Watcher(options)
