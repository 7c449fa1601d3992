"""What the search works on: units that a case keeps or drops, and candidates made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec

from graphprobe.reduce.outcome import Answer


class Candidate(Protocol):
    """A case that may be judged. Two with the same digest are the same case."""

    @property
    def digest(self) -> str:
        """Identity of its structure and values."""

    @property
    def size(self) -> tuple[int, ...]:
        """What is compared to call one candidate simpler than another; ties are broken by the digest."""


C = TypeVar("C", bound=Candidate)
C_co = TypeVar("C_co", bound=Candidate, covariant=True)


class Unit(msgspec.Struct, frozen=True):
    """The least that a case can drop.

    Attributes:
        name: unique within the space.
        weight: what it counts in a case's size.
        path: the groups that it belongs to, outermost first, e.g. modules; units of a group stand together.
    """

    name: str
    weight: int = 1
    path: tuple[str, ...] = ()


class Space(Protocol[C_co]):
    """All the subsets of a case's units."""

    @property
    def units(self) -> Sequence[Unit]:
        """In the order in which they run."""

    def candidate(self, keep: frozenset[int]) -> C_co | None:
        """The case with just these units (indices into `units`); None if it cannot be built."""


class Shrink(Protocol[C]):
    """A way to make what is left of a case simpler."""

    @property
    def name(self) -> str:
        """For statistics and progress."""

    def proposals(self, case: C) -> Iterator[C]:
        """Simpler candidates, the boldest first. After one is accepted it is asked anew."""


Oracle = Callable[[C], Answer]
