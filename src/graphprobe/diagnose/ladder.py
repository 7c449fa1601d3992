"""One diagnosis under way: whether the program differs as its user compiles it; only then, rung by rung, where."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import torch

from graphprobe.diagnose import notes, steps
from graphprobe.diagnose.dossier import whole_proof
from graphprobe.diagnose.dossier.writer import complete_dossier
from graphprobe.diagnose.exceptions import Origin
from graphprobe.diagnose.fresh.processes import FreshProcesses
from graphprobe.diagnose.fresh.step_runner import StepRunner
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.references import T, explained, measure
from graphprobe.diagnose.rungs import RungReport
from graphprobe.diagnose.settings import Compilation, Limits
from graphprobe.diagnose.settle import UNSEEN, Climbed, RungSeen, refusal_in, settle, states_of, with_reasons
from graphprobe.diagnose.workarounds.known_faults import known
from graphprobe.engine.forked_child import Outcome
from graphprobe.engine.memory import STEPS, Room, in_float64
from graphprobe.engine.value_file import ValueFile, restored
from graphprobe.errors import COMPILING
from graphprobe.findings import Diagnosis, Finding, Latent, NamedStep, Rung, kind_of_death, told_more
from graphprobe.internals import after_fork, caches
from graphprobe.judge.judging import Difference, Judged, far_off, identical, judged
from graphprobe.judge.observation import Observation, ObservationRecord, read
from graphprobe.judge.uncompiled import Reference, roundoff_of
from graphprobe.judge.verdict import RUNGS, RungName, State
from graphprobe.settings import text_from_size
from graphprobe.settings.limits import NoTimeLeft

log = logging.getLogger(__name__)

INSIDES: Mapping[RungName, tuple[RungName, ...]] = {"aot": ("aot",), "passes": ("aot", "passes")}
"""Rungs that can be run without a look inside, and what is looked into where they are wrong."""


class Ladder:
    """One diagnosis under way.

    Attributes:
        runner: runs the steps.
        top: the rung that the user runs.
        rungs: what is known of each rung that was run, or was not to be run to its end.
        raised_in: the pass of the program's own backend that raises.
    """

    def __init__(
        self,
        program: Program,
        compilation: Compilation,
        limits: Limits,
        on_step: Callable[[NamedStep], None] | None = None,
    ) -> None:
        self.file = ValueFile()
        self.program, self.compilation, self.limits = replace(program, file=self.file), compilation, limits
        self.runner = StepRunner(limits.budget, compilation.timeout_s, on_step or (lambda step: None))
        self.started = time.monotonic()
        self.result = Diagnosis(verdict="undecided")
        self.room = Room(self.runner.board.write, self.result.notes.append)
        self.rungs: dict[RungName, RungSeen] = {}
        self.top: RungName = "plain"
        self.reference: Reference | None = None
        self.suspected: list[Latent] = []  # by searches other than the rungs'
        self.raised_in: str | None = None
        self._measured = self._noise_unknown = False  # unknown: for want of time or memory
        self._no_backward = False
        self._late = ""  # what the budget has ended first, in words

    def climb(
        self,
        accuse: Callable[[Ladder], None],
        look_at_bits: Callable[[Ladder], None],
        registered_wrongly: Callable[[Ladder], tuple[list[Finding], bool]] = lambda ladder: ([], False),
        work_around: Callable[[Ladder], None] = lambda ladder: None,
    ) -> Diagnosis:
        """Run the program as its user does, look into it where that differs, and say what was found.

        `accuse` turns what the rungs of a failure have found into its findings: one at least. `look_at_bits` is called
        if the program is right; if not, `registered_wrongly` tells which own operators are to blame, and if for all.
        `work_around` adds to the findings what to do until they are mended.
        """
        self._accuse, self._look_at_bits, self._registered_wrongly = accuse, look_at_bits, registered_wrongly
        self._work_around = work_around
        ranks, forks = after_fork.ranks(), after_fork.can_fork()
        if ranks > 1 and not forks:
            self.result.notes.append(notes.NO_FORK.format(ranks=ranks))
            return self.result
        self.runner.fresh = None if forks else FreshProcesses(self.program, self.compilation, self.result.notes.append)
        with contextlib.closing(self.runner):
            self._climb()
        if self.result.verdict == "undecided" and self._late:  # the reason stands first
            self.result.notes.remove(self._late)
            self.result.notes.insert(0, self._late)
        self.result.notes += [notes.ALONE.format(ranks=ranks)] if ranks > 1 else []
        self.result.seconds = round(time.monotonic() - self.started, 2)
        return self.result

    def _climb(self) -> None:
        self.reference = self.uncompiled()
        if self.reference is not None:
            with self.in_time("whether the compiled program is right"):
                plain = self.plain()
                self._rung(self.top, plain)
                if self.seen(self.top).differences and self._drop_cut_off():
                    self._rung(self.top, plain)
                top = self.seen(self.top)
                if top.certain:
                    report = top.report if self.compilation.is_inductor else None
                    self.runner.tell(f"{notes.first_fact(top.certain, report)}; {notes.LOOKING}")
            self._settle()
            if self.result.verdict == "healthy" and self.result.raises and self._no_backward:
                self._leave_backward_out(notes.NO_BACKWARD.format(why=self.result.raises))
                self._climb()
                return
            if self.result.verdict == "healthy":
                with self.in_time("whether what torch keeps on disk is right"):
                    self._look_at_entries()
            if self.result.verdict == "healthy" and not self.seen(self.top).alike:
                self._look_at_bits(self)
            if self.result.verdict == "fault" and self.limits.workaround and not self.result.unfinished:
                with self.in_time("whether any change of the program mends it"):
                    self._work_around(self)
            self.result.rungs = self.told_rungs()
            for finding in self.result.findings:
                finding.known = known(finding)
                complete_dossier(finding, self.result.rungs, self.compilation.told_backend)

    def _leave_backward_out(self, why: str) -> None:
        """Begin again, with no backward but those that the program runs itself."""
        self.program = replace(self.program, grad="own")
        self.result.notes[:], self.result.raises = [why], ""
        self.rungs.clear()
        self._no_backward = self._measured = False
        if self.runner.fresh is not None:
            self.runner.fresh.close()
            self.runner.fresh = FreshProcesses(self.program, self.compilation, self.result.notes.append)

    def plain(self) -> Callable[[], RungReport]:
        """The step that runs the program as its user does."""
        return partial(steps.plain, self.program, self.compilation, renewed=not self.compilation.entries)

    def _look_at_entries(self) -> None:
        """Run what is right compiled afresh with what torch has kept of earlier compilations, where that fits it."""
        afresh = self.seen(self.top)
        entries = afresh.report.entries if afresh.report is not None else []
        if not entries:
            return
        self._rung(self.top, partial(steps.plain, self.program, self.compilation, renewed=False))
        kept = self.seen(self.top)
        if not kept.certain:
            self.rungs[self.top] = afresh
            return
        entries = kept.report.entries if kept.report is not None else entries
        self.compilation = replace(self.compilation, entries=tuple(entries))
        self.result.verdict = "fault"
        self._accuse(self)

    def told_rungs(self) -> list[Rung]:
        """How each rung did."""
        rungs: Sequence[RungName] = RUNGS if self.compilation.is_inductor else ("dynamo", "plain")
        return [notes.rung(name, self.seen(name).differences) for name in rungs]

    def _drop_cut_off(self) -> bool:
        """Whether what fails, fails by a library in torch's cache that a killed linker left, and that is gone now."""
        dropped = caches.drop_cut_off_libraries()
        self.result.notes += [notes.CUT_OFF.format(files=", ".join(map(str, dropped)))] if dropped else []
        return any(path.name in d.text + d.log for path in dropped for d in self.seen(self.top).differences or ())

    def seen(self, name: RungName) -> RungSeen:
        """What is known of a rung."""
        return self.rungs.get(name, UNSEEN)

    def states(self) -> dict[RungName, State]:
        """The state of each rung that was run."""
        return states_of(self.rungs)

    def step(self, step: Callable[[], Any], *, compilations: int = 1, least_s: float = 0.0) -> Outcome:
        """Run a step in a child process.

        One that makes several compilations gets the time of so many that hang, and `least_s` in any case.

        Raises:
            NoTimeLeft: the time for all steps is over, and this one was not begun or was ended.
        """
        outcome = self.runner.timed(step, self.saved, max(least_s, self.runner.of_several(compilations)))
        self.compilation = replace(self.compilation, timeout_s=self.runner.limit_s)
        return outcome

    def answer(self, step: Callable[[], Any], kind: type[T], *, least_s: float = 0.0) -> T | None:
        """What a step returned, which is of this kind; None if it did not end well."""
        outcome = self.step(step, least_s=least_s)
        return None if outcome.died or outcome.value is None else msgspec.convert(outcome.value, kind)

    def saved(self) -> FreshProcesses:
        """Processes that begin with the program as it is now."""
        return FreshProcesses(self.program, self.compilation, lambda reason: None)

    @contextlib.contextmanager
    def in_time(self, what: str) -> Iterator[None]:
        """Leave the block where the budget is spent; the notes then say that `what` was not found out."""
        try:
            yield
        except NoTimeLeft as spent:
            self.late(what, spent)

    def late(self, what: str, spent: NoTimeLeft) -> None:
        """Note what the budget has ended."""
        self.result.unfinished = True
        told, *detail = spent.args
        note = "; ".join([f"{told}: {what} was not found out", *detail])
        self._late = self._late or note
        self.result.notes.append(note)

    def uncompiled(self) -> Reference | None:
        self.runner.begin("uncompiled")
        reports: list[steps.EagerReport] = []
        runs: list[list[Observation]] = []
        with self.in_time("whether the compiled program is right"):
            self.room.sizes.know(self.program.tensors())
            for again in (False, True):
                outcome = self.step(partial(steps.eager, self.program, unlike=again))
                if outcome.died or outcome.raised is not None:
                    why = outcome.raised.message if outcome.raised is not None else f"{outcome.end}"
                    self.result.notes.append(f"the uncompiled program cannot be run: {why}")
                    return None
                reports.append(msgspec.convert(outcome.value, steps.EagerReport))
                self._no_backward = reports[0].no_backward
                raised = [call.raised.message for call in reports[0].calls if call.raised is not None]
                if (
                    self._no_backward
                    and self.program.grad is True
                    and any(notes.RAN_BEFORE in message for message in raised)
                ):
                    self._leave_backward_out(notes.OWN_BACKWARD)
                    return self.uncompiled()
                self.file.learn(reports[-1].before[1])
                runs.append(self._read(reports[-1].calls))
                self.room.sizes.run = max(self.room.sizes.run, outcome.grown)
        if self.result.unfinished:
            return None
        before = restored(*reports[0].before)
        roundoff = roundoff_of(chain(before[0], *(part for c in runs[0] for part in (c.outputs, c.inputs))))
        values = (v for c in runs[0] for v in chain(c.outputs, c.inputs, c.gradients) if isinstance(v, torch.Tensor))
        self.room.sizes.largest = max(map(in_float64, values), default=0)
        if reports[0].draws:
            self.compilation = replace(self.compilation, align_random=True)
            self.result.notes.append("the program draws random numbers: compiled random ops were made to draw as eager")
        return Reference(runs, before=before, roundoff=roundoff, draws=reports[0].moves)

    def _read(self, records: Sequence[ObservationRecord]) -> list[Observation]:
        """The calls of a step. What they have in the file is not written again where another step gives the same."""
        for record in records:
            if record.values is not None:
                self.file.learn(record.values[1])
        return [read(record) for record in records]

    def _measure_noise(self, reference: Reference) -> None:
        """How far rounding may take the results, once."""
        if self._measured:
            return
        self._measured = True
        self.runner.begin("float64")
        if self.room.fits("float64", "how far rounding may take the results is not known"):
            self.result.notes += measure(reference, self._on_program, few=self._spare)
        else:
            self._noise_unknown = True

    def _on_program(self, step: Callable[[Program], T], kind: type[T]) -> T | None:
        return self.answer(partial(step, self.program), kind)  # in a child: it changes parameters in place

    def compared(self, report: RungReport) -> list[Difference]:
        """What differs in a rung's calls."""
        return self.held(report).differences or []

    def held(self, report: RungReport, *, as_user: bool = False) -> RungSeen:
        """A rung's calls, held against the uncompiled ones; noise is measured only where something differs.

        `as_user`: judged as those of the program as its user compiles it.
        """
        seen = RungSeen([], report=report, origin=report.origin)
        assert self.reference is not None
        calls, rung = self._read(report.calls), self.runner.name
        what, text = "whether it differs", notes.UNSEEN
        try:
            if self._judge(partial(identical, self.reference, calls), bool):
                return replace(seen, alike=True)
            if (same := self._as_top(calls)) is not None:
                return replace(seen, differences=same)
            what, text = "whether rounding explains what differs", notes.UNJUDGED
            if self._spare and explained(self.reference, calls, self._on_program, self._judge):
                return seen
            if any(call.raised is None for call in calls):  # where all raise, there are no numbers to judge
                self._measure_noise(self.reference)
            self.runner.name = rung
            if not self.room.fits("judging", "whether rounding explains what differs is not known"):
                return replace(seen, differences=notes.unsure_of_numbers([]))
            judge = partial(judged, self.reference, calls, doubting=as_user or rung == self.top)
            found = self._judge(judge, Judged)
            while found is not None and found.asks:
                self.reference.make(found.asks)
                found = self._judge(judge, Judged)
        except NoTimeLeft as spent:
            self._noise_unknown = True
            self.late(what, spent)
            found = None
        finally:
            self.runner.name = rung
        if found is None:
            return replace(seen, differences=[Difference("wrong_value", 0, "outputs", text, weight="unsure")])
        told = notes.unsure_of_numbers(found.differences) if self._noise_unknown else found.differences
        return replace(seen, differences=told, better=found.better)

    def _as_top(self, calls: list[Observation]) -> list[Difference] | None:
        """What differs on the rung that the user runs, if this one gives the same bits; None if it gives others."""
        report, differences = self.seen(self.top).report, self.seen(self.top).differences
        assert self.reference is not None
        if self.runner.name == self.top or report is None or not differences or any(call.raised for call in calls):
            return None
        top = replace(self.reference, eager=[self._read(report.calls)])
        return differences if self._judge(partial(identical, top, calls), bool) else None

    def seen_by(self, look: Callable[[Reference, list[Observation]], T], kind: type[T], report: RungReport) -> T | None:
        """What `look` sees in a rung's calls, in a process of its own; `kind`: of what it gives."""
        assert self.reference is not None
        return self._judge(partial(look, self.reference, self._read(report.calls)), kind)

    def _judge(self, step: Callable[[], Any], kind: type[T]) -> T | None:
        """Judge in a child process, which can be ended, and whose memory goes with it; None if it did not end well."""
        outcome = self.runner.run(step, self.saved)
        if outcome.died or outcome.raised is not None:
            why = outcome.raised.line if outcome.raised is not None else outcome.end
            self.result.notes.append(f"{self.runner.name} could not be judged: {why}")
            return None
        return msgspec.convert(outcome.value, kind)

    def differences(self, report: RungReport) -> list[Difference]:
        """What is certainly wrong with a rung's calls."""
        return [d for d in self.compared(report) if d.certain]

    def _rung(self, name: RungName, step: Callable[[], RungReport]) -> None:
        self.runner.begin(name)
        if name != self.top and self.runner.fresh is None:
            after_fork.preload(self.limits.budget.check)  # once here, not in each child
        if (fitting := self._fitting(name, step)) is None:
            return
        outcome = self.step(fitting)
        log.info("rung %s: %.1f s, grown by %s", name, outcome.seconds, text_from_size(outcome.grown))
        if outcome.died and name == "kernels" and self.compilation.is_inductor:
            # Showing every value is a compilation of its own: is it that one which dies?
            again = self.step(self.looking("kernels", expose=False))
            if not again.died:
                self.result.notes.append("the kernels died when compiled to show their values, and not otherwise")
            outcome = again
        if outcome.short_of_memory:
            self.result.notes.append(notes.NOT_LOOKED_INTO.format(rung=name, why=outcome.end))
            return
        if outcome.died:
            compiling = COMPILING.search(outcome.stack) and outcome.value is not None
            origin = msgspec.convert(outcome.value, Origin) if compiling else None
            died = Difference(kind_of_death(outcome.signal), 0, "", outcome.end, log=outcome.stack)
            self.rungs[name] = RungSeen([died], origin=origin)
            return
        if outcome.raised is not None:
            log.info("%s: %s", name, outcome.raised.trace)
            self.result.notes.append(notes.NOT_LOOKED_INTO.format(rung=name, why=outcome.raised.line))
            return
        report = msgspec.convert(outcome.value, RungReport)
        self.room.sizes.run = max(self.room.sizes.run, outcome.grown if name == self.top else 0)
        self.room.sizes.ops = max(self.room.sizes.ops, report.ops)
        self.rungs[name] = self.held(report)
        self.result.compiles += report.compiles
        self.result.graphs = report.graphs if name == self.top else self.result.graphs
        self.result.notes += report.notes
        self.result.ruled_out += report.right
        self.result.findings += report.findings
        self.runner.tell(*notes.proven(report.findings))
        if report.largest.z > self.result.largest_z.z:
            self.result.largest_z = report.largest
        if name == "passes":
            self._without(report.findings)

    def _fitting(self, name: RungName, step: Callable[[], RungReport]) -> Callable[[], RungReport] | None:
        """The step of a rung, or what is done of it where there is less memory than it needs."""
        if name not in STEPS or name == self.top:
            return step
        less = "it was left out" if name != "kernels" else "the values inside of its kernels were not shown"
        if self.room.fits(name, less):
            return step
        fits = name == "kernels" and self.room.fits("kernels as they are", "it was left out")
        return self.looking("kernels", expose=False) if fits else None

    def climb_rungs(self) -> None:
        """Each rung below the top, looked into; of large programs, only those that are wrong, the last first."""
        late: list[RungName] = ["dynamo", "aot", "passes", "kernels"] if self.compilation.is_inductor else ["dynamo"]
        try:
            if self._spare and self.compilation.is_inductor:
                late = self._spared(late)
            while late:
                self._rung(late[0], self.looking(late[0], inside=not self._spare))
                done = late.pop(0)
                wrong = self.states().get(done) == "wrong"
                for name in INSIDES.get(done, ()) if self._spare and wrong else ():
                    self._rung(name, self.looking(name))
                if wrong and self.limits.first:
                    return
        except NoTimeLeft as spent:
            self.late(f"what is wrong on the rungs {', '.join(late)}", spent)

    def _spared(self, late: list[RungName]) -> list[RungName]:
        """Which rungs of a large program have still to be run, once the passes or kernels that are far off have."""
        top = self.seen(self.top).report
        if top is not None and self.seen_by(far_off, bool, top):
            self._rung("kernels", self.looking("kernels", inside=False, values=False))
        if self.result.findings:
            self.result.notes.append(notes.KERNELS_FIRST)
            return []
        self._rung("passes", self.looking("passes", inside=False))
        if self.states().get("passes") != "right":
            return late
        self.result.notes.append(notes.SPARED)
        return ["kernels"]

    @property
    def _spare(self) -> bool:
        """Whether the program is so large that no more is run than its verdict needs."""
        return self.room.sizes.large and not (self.limits.deep or self.limits.exact)

    def looking(self, name: RungName, *, inside: bool = True, **more: bool) -> Callable[[], RungReport]:
        """The step that looks into a rung, or not `inside` of it where it is right; `more`: for `steps.kernels`."""
        if name in INSIDES and not inside:
            return partial(steps.upto, self.program, self.compilation, "aot" if name == "aot" else "post_grad")
        if name == "kernels":
            alone, launches = bool(self.result.findings), self.seen(name).report is None
            more = {"expose": True, "everywhere": inside, "only_alone": alone, "launches": launches} | more
        return partial(getattr(steps, name), self.program, self.compilation, **more)

    def _without(self, findings: list[Finding]) -> None:
        """Leave the accused passes out and look again: is the program right then, or does another do the same?"""
        accused: set[tuple[str, str | None]] = {(f.stage, f.pass_) for f in findings if f.pass_}
        latest = list(findings)
        while accused and latest:
            skip = [(stage, name) for stage, name in accused if name]
            report = self.answer(partial(steps.passes, self.program, self.compilation, skip=skip), RungReport)
            if report is None:
                return
            if not self.differences(report):
                for finding in latest:
                    finding.reason = told_more(finding.reason, notes.LEFT_OUT)
            latest = [f for f in report.findings if f.pass_ and (f.stage, f.pass_) not in accused]
            self.result.findings += latest
            accused |= {(f.stage, f.pass_) for f in latest}

    # -- the verdict -------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        assert self.reference is not None
        seen = Climbed(self.reference, self.seen(self.top), self.compilation.is_inductor, excess=self._is_excess())
        settled, result = settle(seen), self.result
        result.verdict = settled.verdict
        if settled.final:
            result.notes[:0] = settled.notes
            result.findings += [settled.refusal] if settled.refusal is not None else []
            return
        own, all_told = self._registered_wrongly(self) if settled.verdict == "fault" else ([], False)
        if not all_told and not result.unfinished and (settled.verdict != "healthy" or self.limits.deep):
            self.climb_rungs()
        if settled.verdict == "fault":
            if not all_told:
                self._accuse(self)
            for finding in result.findings if self.program.grad == "apart" else ():
                finding.reason = told_more(finding.reason, notes.APART)
            result.findings[:0] = own
        else:
            self.tell_latent(result.findings)
            result.findings.clear()
        suspected = [latent for rung in self.rungs.values() if rung.report for latent in rung.report.suspected]
        result.latent += list(dict.fromkeys([*suspected, *self.suspected]))
        wider = self._excess_note() if seen.excess and result.verdict == "healthy" else ""
        result.notes[:] = with_reasons(result.notes, seen, result.verdict, late=self._late, wider=wider)
        if result.verdict == "healthy" and seen.raised is not None:
            result.raises = f"{seen.raised.type}: {seen.raised.message}"

    def by_program(self, prove: Callable[..., Finding], where: str) -> None:
        """The first finding with the program as its proof, in a child process, which can be ended."""
        self.runner.begin("proof")
        finding = self.result.findings[0]
        outcome = self.step(
            partial(prove, self.program, self.compilation, finding, where=where), least_s=whole_proof.PROGRAM_S
        )
        if outcome.died or outcome.raised is not None:
            why = outcome.raised.line if outcome.raised is not None else outcome.end
            finding.reason = told_more(finding.reason, f"The program could not be written down as a repro: {why}.")
            return
        self.result.findings[0] = msgspec.convert(outcome.value, Finding)

    def tell_latent(self, findings: Sequence[Finding]) -> None:
        """What was seen inside and shows in nothing that the user can observe."""
        told = [msgspec.convert(f, Latent, from_attributes=True) for f in findings]
        self.result.latent += [latent for latent in told if latent not in self.result.latent]

    def _is_excess(self) -> bool | None:
        """Whether all that differs is gone once kernels round narrow values as eager does; None: no time was left."""
        narrow = self.reference is not None and bool(self.reference.rounded) and self.compilation.is_inductor
        top = self.seen(self.top)
        if not narrow or not (top.differences or top.better) or refusal_in(top) is not None:
            return False
        if any("crash" in d.kind for d in top.differences or ()):
            return False
        self.runner.begin("rounded")
        rounding = self.compilation.with_setting(notes.ROUNDING, True)
        try:
            report = self.answer(partial(steps.plain, self.program, rounding), RungReport)
            held = UNSEEN if report is None else self.held(report)
        except NoTimeLeft as spent:
            self.late("whether kernels only keep narrow values wider", spent)
            return None
        return held.differences == [] and not held.better

    def _excess_note(self) -> str:
        """Which op keeps a narrow value wider, where, and what makes it round."""
        report, top = self.seen("kernels").report, self.seen(self.top)
        with self.in_time("which op keeps a narrow value wider"):
            report = report or self.answer(self.looking("kernels"), RungReport)
        places = [*report.wider, *report.suspected] if report is not None else []
        shown = next(chain(top.differences or (), top.better), None)
        return notes.keeps_wider(next((p for p in places if p.op), None), shown)
