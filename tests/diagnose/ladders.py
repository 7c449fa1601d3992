"""Diagnoses whose steps are made up: the rules of the ladder, without a compilation and without a process."""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from graphprobe.diagnose import ladder, steps
from graphprobe.diagnose.fresh import step_runner
from graphprobe.diagnose.ladder import Ladder
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.rungs import RungReport
from graphprobe.diagnose.settings import Compilation, Limits
from graphprobe.diagnose.unexplained import accuse
from graphprobe.engine.forked_child import Outcome
from graphprobe.findings import Diagnosis, Finding
from graphprobe.judge import Difference
from graphprobe.settings.limits import TimeBudget

X = torch.linspace(-2, 2, 24).reshape(4, 6)
RUNGS = ("dynamo", "aot", "passes", "kernels", "plain")
OFF = Difference("wrong_value", 0, "outputs[0]", "off by 1")
LATE = Outcome(timed_out=True, seconds=10, stack='File "program.py", line 3, in hanging')


def program(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).relu().sum(1)


def states(found: Diagnosis) -> dict[str, str]:
    return {rung.name: rung.state for rung in found.rungs}


class Begun(list[str]):
    """The steps in the order in which they began; `append` is to be called as `on_step` is."""

    def append(self, step: Any) -> None:
        if not step.seconds:
            super().append(step)


class MadeUp:
    """Diagnoses of `program`, which runs uncompiled and no other way.

    Args:
        wrong: what differs, by rung; other rungs are right.
        made: what comes of a step, by the name of its function: a report, an `Outcome`, or what makes one of the step.
        spent_at: the step with which the budget of 60 s is spent; empty: never.

    Attributes:
        begun: the steps in the order in which they began, as the user sees them.
        asked: the steps themselves; `on_asked` is called with the name of each.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        wrong: Mapping[str, list[Difference]] | None = None,
        *,
        spent_at: str = "",
        **made: Any,
    ) -> None:
        self.wrong, self.made, self.begun, self.asked = wrong or {}, made, Begun(), list[Any]()
        self.on_asked: Callable[[str], None] = lambda name: None
        self.budget = TimeBudget(60, clock=lambda: 60.0 * (spent_at in self.begun))
        monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)  # xdist's processes have none
        monkeypatch.setattr(step_runner, "isolated", self._outcome)
        monkeypatch.setattr(ladder, "measure", unmeasured)
        monkeypatch.setattr(ladder.after_fork, "preload", lambda check: check())

    def parts(
        self,
        folder: Path,
        fn: Any = program,
        x: torch.Tensor = X,
        *,
        backend: str = "inductor",
        timeout_s: float = 600,
        **limits: bool,
    ) -> tuple[Program, Compilation, Limits]:
        compilation = Compilation(backend, None, folder, timeout_s=timeout_s)
        return Program(fn, [((x,), {})]), compilation, Limits(self.budget, **limits)

    def diagnosis(self, folder: Path, *, explain: Any = None, **how: Any) -> Diagnosis:
        accusing = partial(accuse, explain=explain or unexplained)
        return Ladder(*self.parts(folder, **how), self.begun.append).climb(accusing, lambda _: None)

    @property
    def names(self) -> list[str]:
        return [getattr(step, "func", step).__name__ for step in self.asked]

    def _outcome(self, step: Callable[[], Any], **_: Any) -> Outcome:
        self.asked.append(step)
        name = self.names[-1]
        self.on_asked(name)
        value = self.made[name] if name in self.made else self._usual(name, step)
        value = value(step) if callable(value) else value
        if isinstance(value, RungReport):
            value = msgspec.structs.replace(value, calls=steps.eager(step.args[0]).calls)
        return (
            value if isinstance(value, Outcome) else Outcome(value=msgspec.to_builtins(value, builtin_types=(bytes,)))
        )

    def _usual(self, name: str, step: Any) -> Any:
        rung = next((name for name in reversed(self.begun) if name in RUNGS), "")
        usual: dict[str, Callable[[], Any]] = {
            "eager": lambda: steps.eager(step.args[0]),
            "identical": lambda: rung not in self.wrong,
            "judged": lambda: {"differences": self.wrong.get(rung, [])},
            "prove_by_program": lambda: msgspec.structs.replace(step.args[2], proof="program"),
            **dict.fromkeys((*RUNGS, "upto"), RungReport),
        }
        return usual[name]() if name in usual else None


def in_float64(_: Program) -> None:
    pass


def unmeasured(_: object, run: Any, *, few: bool) -> list[str]:
    run(in_float64, object)
    return []


def unexplained(_: Ladder, rung: str, found: list[Finding], differences: list[Difference]) -> list[Finding]:
    return [*found] or [Finding(kind=differences[0].kind, stage="unknown")]
