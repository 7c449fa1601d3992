"""Which launches of a compiled graph are wrong: the graph is run as it is, with ever other launches replaced.

A launch is guilty when the outputs are right with it replaced and wrong with every launch replaced but it. As what is
found stays replaced, the search goes on past the first fault. No graph is compiled for any of this.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from graphprobe.diagnose.local import LocalError
from graphprobe.engine.mixed import MixedGraph, MixedLaunch, MixedRun
from graphprobe.internals.inductor.lowered_graph import watched_lowering

Judge = Callable[[MixedRun], LocalError]
"""Says of a run whether what left the graph is right."""

MOST = 8
"""Faults of one graph that are looked for."""

FORMS = ("wrong_dtype", "wrong_shape")
"""What no launch decides, but the code that makes room for its results."""


class FaultyLaunch(msgspec.Struct, frozen=True):
    """A launch whose replacement makes the outputs right.

    Attributes:
        position: among the launches of its graph, by line.
        kernel: its name.
        line: in the generated module.
        how: what it was replaced by: `graph` or `ir`.
        nodes: FX nodes it stems from.
        sources: lines of the user's program behind these.
        runs: of the graph until it was found.
        confirmed: the outputs are wrong with every launch replaced but it.
        z: largest error of the outputs then, in units of noise.
    """

    position: int
    kernel: str
    line: int
    how: str
    nodes: tuple[str, ...]
    sources: tuple[str, ...]
    runs: int
    confirmed: bool
    z: float


class MixingReport(msgspec.Struct):
    """What mixing found in one call of one graph.

    Attributes:
        launches: of the graph.
        runs: of the graph, all of them.
        compilations: graphs compiled meanwhile.
        found: faulty launches, in the order in which they were found.
        kept: launches that could not be replaced, with the reason.
        problem: why there is no answer, or not the whole of it; empty otherwise.
    """

    launches: int = 0
    runs: int = 0
    compilations: int = 0
    found: list[FaultyLaunch] = []
    kept: list[str] = []
    problem: str = ""


def faulty_launches(
    mixed: MixedGraph, inputs: Sequence[Any], judge: Judge, *, wide: bool = False, most: int = MOST
) -> MixingReport:
    """Find the launches that make the outputs of a compiled graph wrong.

    Takes two runs, and for each fault `log2(launches)` to find it, one to see if there is another, one to confirm it.

    Args:
        inputs: of the graph; copied for each run.
        wide: replace by what float64 gives, rounded.
        most: stop after so many.
    """
    report = MixingReport(launches=len(mixed.launches))
    search = _KernelSearch(mixed, inputs, judge, wide)
    before = mixed.runs
    with watched_lowering() as compiled:
        report.problem = search.find(most)
        for at, runs in search.found:
            launch, error = mixed.launches[at], search.all_but(at)
            report.found.append(_faulty(at, launch, runs, error))
    report.runs, report.compilations = mixed.runs - before, len(compiled)
    report.kept = [f"{x.io.name} (line {x.io.line}): {x.reason}" for x in mixed.launches if x.how == "no"]
    return report


def _faulty(at: int, launch: MixedLaunch, runs: int, error: LocalError) -> FaultyLaunch:
    wrong = error.answer == "worse"
    io = launch.io
    return FaultyLaunch(at, io.name, io.line, launch.how, launch.sources, launch.lines, runs, wrong, error.z)


class _KernelSearch:
    def __init__(self, mixed: MixedGraph, inputs: Sequence[Any], judge: Judge, wide: bool) -> None:
        self._mixed, self._inputs, self._judge, self._wide = mixed, inputs, judge, wide
        self._usable: list[int] = []
        self.found: list[tuple[int, int]] = []
        """Position, and runs it took."""

    def _run(self, replaced: Collection[int], *, forgiving: bool = False) -> MixedRun:
        return self._mixed.run(self._inputs, replaced, wide=self._wide, forgiving=forgiving)

    def _error(self, replaced: Collection[int], *, forgiving: bool = False) -> LocalError:
        return self._judge(self._run(replaced, forgiving=forgiving))

    def _wrong(self, prefix: int) -> bool:
        """Whether the outputs are wrong with the first `prefix` launches, and what was found, replaced."""
        return self._error({*self._usable[:prefix], *(at for at, _ in self.found)}).answer == "worse"

    def all_but(self, position: int) -> LocalError:
        """What is wrong with every launch replaced but one."""
        return self._error([at for at in self._usable if at != position])

    def find(self, most: int) -> str:
        """Fill `found`, the last launch first; returns what stood in the way."""
        plain = self._run(())
        if not plain.ran:
            return "no launch was seen: the graph does not run its generated module, but a CUDA graph, say"
        baseline = self._judge(plain)
        if baseline.answer != "worse":
            return f"the outputs of the graph are not wrong: {baseline.answer} {baseline.reason}".rstrip()
        replaced = self._error(range(len(self._mixed.launches)), forgiving=True)
        self._usable = [at for at, launch in enumerate(self._mixed.launches) if launch.how != "no"]
        if replaced.answer == "worse":
            if len(self._usable) < len(self._mixed.launches):
                return f"the outputs are wrong with every launch that can be replaced, too: {replaced.reason}"
            if replaced.kind in FORMS:
                return f"the outputs are wrong whatever the launches compute: {replaced.reason}"
            ir = sum(launch.how == "ir" for launch in self._mixed.launches)
            loops = "what the loops of a launch are and in which order, or " if ir else ""
            return (
                f"the outputs are wrong with every launch replaced, too ({replaced.reason}): "
                f"not the text of the loops is to blame, but {loops}how the buffers share memory"
            )
        right = len(self._usable)
        while right > 0 and len(self.found) < most:
            before = self._mixed.runs
            right = bisect_left(range(1, right), True, key=lambda prefix: not self._wrong(prefix))
            self.found.append((self._usable[right], self._mixed.runs - before))
            if not self._wrong(0):
                return ""
        return "the outputs are wrong with these replaced, too; there are more, or they only fail together"
