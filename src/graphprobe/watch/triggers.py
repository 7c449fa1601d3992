"""What makes a watch look into a step: the words of `--on`, and when a loss is a spike."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from graphprobe.errors import UsageError, nearest

PLAIN_TRIGGERS = ("nan", "exception", "signal")
"""The triggers without a number, which are the default."""

LEAST_LOSSES, MOST_LOSSES = 20, 100
"""How many losses a spike is held against: none is reported before there are so many; older ones do not count."""


@dataclass
class Triggers:
    """What a watch looks for.

    Attributes:
        named: the plain triggers that are asked for.
        spike: by how much a loss must exceed the median of the last ones; None: spikes are not looked for.
    """

    named: frozenset[str]
    spike: float | None = None
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_LOSSES))

    def is_spike(self, loss: float) -> float | None:
        """The median of the last losses, if this one exceeds it by the factor; None if not. It counts from now on."""
        sizes = self._losses
        median = statistics.median(sizes) if len(sizes) >= LEAST_LOSSES else math.inf
        found = self.spike is not None and abs(loss) > self.spike * median
        if math.isfinite(loss):
            sizes.append(abs(loss))
        return median if found else None


def triggers_from(words: str | Iterable[str]) -> Triggers:
    """The triggers that `nan,spike=10,exception,signal` asks for, a text or a sequence of its parts.

    Raises:
        UsageError: a word is none of these, or the factor of a spike is no number above 1.
    """
    named: set[str] = set()
    spike = None
    for word in words.split(",") if isinstance(words, str) else words:
        name, _, value = str(word).strip().partition("=")
        if name == "spike":
            spike = _factor(str(word), value)
        elif name in PLAIN_TRIGGERS and not value:
            named.add(name)
        else:
            known = [*PLAIN_TRIGGERS, "spike=10"]
            raise UsageError(f"watch(on={str(word)[:80]!r}): there is no such trigger", hint=nearest(name, known))
    return Triggers(frozenset(named), spike)


def _factor(word: str, value: str) -> float:
    try:
        factor = float(value)
    except ValueError:
        factor = math.nan
    if not 1 < factor < math.inf:
        raise UsageError(
            f"watch(on={word[:80]!r}): a spike takes a number above 1", hint="spike=10: ten times the median loss"
        )
    return factor
