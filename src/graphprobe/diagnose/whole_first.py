"""A diagnosis that stops early: the compiled program is compared as it is, and looked into only if it differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from graphprobe.diagnose import steps
from graphprobe.diagnose.api import Ladder, _prepared
from graphprobe.diagnose.compare_calls import Difference, Reference
from graphprobe.findings import Diagnosis


def diagnose_if_different(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    backend: str | Callable[..., Any] = "inductor",
    dynamic: bool | None = None,
    grad: bool | Literal["auto"] = "auto",
    budget_s: float | None = None,
    out: str | Path | None = None,
) -> Diagnosis:
    """As `diagnose` for one call, except that a program that computes the same compiled is not looked into.

    Returns:
        the Diagnosis; a healthy one has run the program uncompiled and in float64, and compiled it once. A program
        that raises both ways is undecided.

    Raises:
        UsageError: as `diagnose` does.
    """
    program, compilation = _prepared(fn, args, kwargs, backend, dynamic, grad, None, None, out)
    return _WholeFirst(program, compilation, budget_s).climb()


class _WholeFirst(Ladder):
    """The ladder with its top first."""

    first: list[Difference] | None = None
    """How the compiled program differs; None where it could not be run."""

    def _rungs(self, reference: Reference) -> None:
        self._rung("plain", lambda: steps.plain(self.program, self.compilation), reference)
        self.first = self.failing.pop("plain", None)
        self.reports.clear()
        if self.first != []:
            super()._rungs(reference)

    def _settle(self) -> None:
        assert self.reference is not None
        raised = next((call.raised for call in self.reference.eager[0] if call.raised is not None), None)
        if self.first == [] and raised is not None:
            # Of wrong arguments that would be so, too.
            self.result.notes.insert(0, f"uncompiled and compiled it raises {raised.type}: {raised.message}")
            return
        if self.first == []:
            self.result.verdict = "healthy"
            self.result.ruled_out.append("the compiled program computes the same")
            return
        super()._settle()
        certain = [difference for difference in self.first or () if difference.certain]
        if self.result.verdict == "healthy" and certain:
            self.result.verdict = "undecided"
            self.result.notes += [
                f"compiled as it is, it differed: {d.kind} in {d.where or 'the call'}: {d.text}; compiled again, to be "
                "looked into, it did not"
                for d in certain
            ]
