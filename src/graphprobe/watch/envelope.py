"""The envelope of a step: how far rounding moves gradients and parameters that come of one and the same state.

Each figure of the compiled step is a distance from the uncompiled step of the same state, and is held against the same
figure of uncompiled steps in which every operation rounds anew, of this step and of the last ones, and against its own
of the last steps. So what code does at all times is no news; what it begins to do is.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from graphprobe.numerics.noise import Float64Array

Values = Mapping[str, Float64Array]
"""Of a step, by their names."""

PAST = 32
"""Steps that the envelope is made of."""

WARM = 8
"""Steps after which what compiled code does is known."""

FACTOR, FIRST_FACTOR, NARROW_FACTOR = 2.0, 64.0, 8.0
"""How many times the largest legitimate figure is outside: of code that is known, and before. Sums that another kernel
makes in another order are off by some dozen roundings of float32, which an operation rounded anew is not; the roundings
of a narrow dtype, which are larger, are as many or fewer where code is compiled."""

LEAST_NARROW = 2.0**-7
"""Relative: below it, roundings of float32 may be what is seen of a program with narrow dtypes, too."""

ROUNDING = 2.0**-24
"""Of float32."""

LEAST = 16 * ROUNDING
"""Relative: what is less is never outside."""

LEAST_FIRST = 256 * ROUNDING
"""The same before the code is known."""


class Figure(msgspec.Struct, frozen=True):
    """A figure that is outside of the envelope.

    Attributes:
        name: of what, `gradient of fc1.weight`.
        size: the distance, relative.
        limit: of the envelope.
    """

    name: str
    size: float
    limit: float

    @property
    def excess(self) -> float:
        """How many times the limit it is."""
        return self.size / self.limit


@dataclass
class Envelope:
    """What rounding does to the figures of a program's steps, as far as it has been seen.

    Attributes:
        narrow: results in bfloat16, float16 or less were among those that were rounded anew.
    """

    narrow: bool = False
    _moved: dict[tuple[str, str], deque[list[float]]] = field(default_factory=lambda: defaultdict(_past))
    _own: dict[tuple[str, str], deque[float]] = field(default_factory=lambda: defaultdict(_past))

    def outside(self, mine: Values, plain: Values, moved: Sequence[Values]) -> list[Figure]:
        """The figures that are outside, the farthest first.

        Args:
            mine: the values of a compiled step by their names.
            plain: of the uncompiled step from the same state.
            moved: of uncompiled steps that round anew.
        """
        found = list[Figure]()
        for key, sizes in self._sizes(mine, plain, moved):
            own, limit = self._own[key], 0.0
            legitimate = max((size for step in (*self._moved[key], sizes[1:]) for size in step), default=0.0)
            if len(own) >= WARM:
                limit = max(FACTOR * max(legitimate, *own), LEAST)
            else:
                limit = max(FIRST_FACTOR * legitimate, LEAST_FIRST)
                limit = max(NARROW_FACTOR * legitimate, min(limit, LEAST_NARROW)) if self.narrow else limit
            if not sizes[0] <= limit:
                found.append(Figure(key[0], sizes[0], limit))
        farthest: dict[str, Figure] = {}
        for one in sorted(found, key=lambda figure: -figure.excess):
            farthest.setdefault(one.name, one)
        return [*farthest.values()]

    def take(self, mine: Values, plain: Values, moved: Sequence[Values]) -> None:
        """Take in a step; figures that are outside are no part of what is legitimate."""
        outside = {figure.name for figure in self.outside(mine, plain, moved)}
        for key, sizes in self._sizes(mine, plain, moved):
            if moved:
                self._moved[key].append(sizes[1:])
            if key[0] not in outside:
                self._own[key].append(sizes[0])

    def compiled_anew(self) -> None:
        """Forget what compiled code does: there is other code from now on."""
        self._own.clear()

    def _sizes(
        self, mine: Values, plain: Values, moved: Sequence[Values]
    ) -> Iterator[tuple[tuple[str, str], list[float]]]:
        """Each figure of the compiled step, followed by those of the moved ones: the distance, and the part of it that
        is along the values, which is far less of what roundings do and all of what a wrong factor does."""
        total = _size(plain)
        for name, values in plain.items():
            others = [one.get(name) for one in (mine, *moved)]
            size = math.sqrt(float(np.vdot(values, values)))
            if not math.isfinite(size) or any(o is None or o.shape != values.shape for o in others):
                continue
            scale = max(size, ROUNDING * total * math.sqrt(values.size), 1e-300)
            steps = [o - values for o in others if o is not None]
            yield (name, "distance"), [math.sqrt(float(np.vdot(step, step))) / scale for step in steps]
            yield (name, "along"), [abs(float(np.vdot(step, values))) / scale / max(size, 1e-300) for step in steps]


def _past() -> deque[Any]:
    return deque(maxlen=PAST)


def _size(values: Values) -> float:
    """Root mean square of all values together."""
    count = sum(one.size for one in values.values())
    squares = (float(np.vdot(one, one)) for one in values.values())
    return math.sqrt(sum(s for s in squares if math.isfinite(s)) / max(1, count))
