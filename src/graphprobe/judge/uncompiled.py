"""What the uncompiled program gives, in each run that is as legitimate: a call is judged by it, value by value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from graphprobe.engine.reference import array_from, dtype_of, is_noisy
from graphprobe.engine.rounding import WIDE, noise_of, of_few
from graphprobe.engine.value_file import Loaded, ValueFile, is_stored_once
from graphprobe.engine.values import equal_bits
from graphprobe.judge.observation import Observation
from graphprobe.judge.worst import label_of
from graphprobe.numerics.noise import Array, sigma_from_runs

Asked = Literal["rounded", "own", "perturbed", "edges"]
"""Runs of a reference of which further ones are made only if need be."""


@dataclass
class Reference:
    """What the uncompiled program gives.

    Attributes:
        eager: its calls; the first run is what is compared with, the others are as legitimate.
        wide: the same in float64, None where that was impossible or means nothing.
        perturbed: float64 runs on perturbed inputs.
        rounded: runs in the program's own precision, each narrow result rounded anew; empty where nothing is narrow.
        narrowest: the largest unit roundoff that a result had in these.
        rounds: whether any operator may round. False: floating-point numbers are the same however they are computed.
        own: runs in the program's own precision, each result rounded anew, narrow or wide; made only where the float64
            run and the uncompiled one are far apart.
        edges: runs in the program's own precision, with arguments at the edge of a function that their noise may take
            there; empty where none is near one. What is infinite in one of them and not in another, a rounding decides.
        further: makes runs of each kind that are wanted only where those that are there would accuse, in turn.
        moved_inputs: runs in the program's own precision, on inputs two roundings off. Numbers that these move as
            far as they differ are right; None: they were not asked for.
        problems: why roundings could not be measured, in words; None before they were.
        undefined: runs that differ only where torch leaves open what comes out, the first as the program does it.
        left_open: what is undefined in them, in words.
        before: the inputs before each call.
        roundoff: u of the coarsest dtype among inputs and outputs.
        moved: by how much of themselves the inputs of the perturbed runs were moved.
        draws: random numbers are drawn, in the calls or between them.
        file: has the large values of these runs.
    """

    eager: list[list[Observation]]
    wide: list[Observation] | None = None
    perturbed: list[list[Observation]] = field(default_factory=list)
    rounded: list[list[Observation]] = field(default_factory=list)
    narrowest: float = 0.0
    rounds: bool = True
    own: list[list[Observation]] = field(default_factory=list)
    edges: list[list[Observation]] = field(default_factory=list)
    further: Mapping[Asked, Sequence[Callable[[], list[list[Observation]]]]] = field(default_factory=dict)
    moved_inputs: list[list[Observation]] | None = None
    problems: list[str] | None = None
    undefined: list[list[Observation]] = field(default_factory=list)
    left_open: Sequence[str] = ()
    before: Sequence[Sequence[Any]] = field(default_factory=list)
    roundoff: float = 2.0**-24
    moved: float = 0.0
    draws: bool = False
    file: ValueFile | None = None

    def __post_init__(self) -> None:
        self.moved = self.moved or self.roundoff

    @property
    def exact(self) -> bool:
        """Whether floating-point numbers may not differ at all."""
        return not (self.rounds or self.draws)

    @property
    def few(self) -> bool:
        """Whether the perturbed runs are too few to say more than that something is grossly wrong."""
        return len(self.further.get("perturbed", ())) > 1

    def make(self, asked: Asked) -> bool:
        """Make further runs of one kind, if there are any to be made; whether there are more now."""
        if not self.further.get(asked) or (asked == "perturbed" and self.wide is None):
            return False
        make, *later = self.further[asked]
        self.further = {**self.further, asked: later}
        more = make()
        setattr(self, asked, [*getattr(self, asked), *more])
        return bool(more)

    def in_own_precision(self) -> list[list[Observation]]:
        """`own`, made now if need be."""
        self.make("own")
        return self.own


def roundoff_of(values: Iterable[Any]) -> float:
    """u of the coarsest floating-point dtype among the tensors; that of float64 if there is none."""
    return max((dtype_of(v).unit_roundoff for v in values if is_noisy(v)), default=2.0**-53)


@dataclass(frozen=True)
class Spot:
    """One value of one call, in every run of the uncompiled program.

    Attributes:
        part: `outputs`, `inputs` or `gradients`; j: the position in it.
    """

    reference: Reference
    call: int
    part: str
    j: int

    @property
    def where(self) -> str:
        """As a difference names it."""
        return f"{self.part}[{self.j}]"

    @property
    def label(self) -> str:
        """As a sentence names it."""
        return label_of(self.part, self.j, self.call, len(self.reference.eager[0]))

    def of(self, run: Sequence[Observation] | None) -> Any:
        """The value in a run; None where the run has none."""
        if run is None or self.call >= len(run) or run[self.call].raised is not None:
            return None
        values = getattr(run[self.call], self.part)
        return values[self.j] if self.j < len(values) else None

    def array(self, run: Sequence[Observation] | None) -> Array | None:
        """The tensor in a run as an array."""
        value = self.of(run)
        return array_from(value) if isinstance(value, torch.Tensor) else None

    def arrays(self, runs: Sequence[Sequence[Observation]]) -> Loaded[Array]:
        """The tensor in those runs that have it."""
        return Loaded([run for run in runs if isinstance(self.of(run), torch.Tensor)], lambda r: array_from(self.of(r)))

    def sigma(self, wide: Array | None) -> Array:
        """How far legitimate runs scatter, by element, in the units of the value; without float64 runs by their own.

        Where perturbed runs are few, elements learn from those of their rows and columns.
        """
        value = self.of(self.reference.eager[0])
        found: Array = np.zeros(value.shape)
        if self.reference.exact:
            return found
        if wide is not None:
            u = max(dtype_of(value).unit_roundoff, self.reference.moved)
            found = sigma_from_runs(wide, self.arrays(self.reference.perturbed), self.reference.moved) * u
            if self.reference.few:
                found = of_few(found, len(self.reference.perturbed))
        rounded = self.arrays(self.reference.rounded)
        if rounded:
            eager = array_from(value)
            centre, runs = (eager, []) if wide is None else (wide, self.reference.perturbed)
            facts = dtype_of(value)
            noise = noise_of(eager, centre, self.arrays(runs), rounded, facts, self.reference.narrowest)
            found = found if noise is None else noise.sigma * dtype_of(value).unit_roundoff
        edges = self.arrays(self.reference.edges)
        own = of_few(sigma_from_runs(array_from(value), edges, WIDE), len(edges)) if edges else found
        return np.maximum(found, own)

    def eager_runs(self) -> list[list[Observation]]:
        """The uncompiled runs, without those that lie in the file with the bits of the first."""
        first, *others = self.reference.eager

        def is_first(run: list[Observation]) -> bool:
            mine, its = (getattr(each[self.call], self.part) for each in (first, run))
            return self.j < len(its) and is_stored_once(mine, its, self.j)

        return [first, *(run for run in others if not is_first(run))]

    def unsteady(self) -> bool:
        """Whether the uncompiled program gives other bits each time, as of a clock, or of memory never written."""
        first, *others = self.reference.eager
        e = self.of(first)
        return not all(equal_bits(e, self.of(run)) for run in others)

    def undefined(self) -> torch.Tensor | None:
        """Which elements torch leaves open, or are finite by a rounding; None if there are none."""
        given, *others = [self.of(run) for run in self.reference.undefined] or [None]
        alike = [o for o in others if isinstance(o, torch.Tensor) and o.shape == given.shape]
        found = [(o != given) & ((o == o) | (given == given)) for o in alike]
        value = self.of(self.reference.eager[0])
        for run in self.reference.edges if is_noisy(value) else ():
            other = self.of(run)
            if isinstance(other, torch.Tensor) and other.shape == value.shape:
                found += [test(other) != test(value) for test in (torch.isnan, torch.isposinf, torch.isneginf)]
        mask = torch.stack(found).any(dim=0) if found else None
        return mask if mask is not None and bool(mask.any()) else None

    def before(self) -> Any:
        """The value before the call, where it is one of the inputs."""
        rows = self.reference.before
        known = self.part == "inputs" and self.call < len(rows) and self.j < len(rows[self.call])
        return rows[self.call][self.j] if known else None
