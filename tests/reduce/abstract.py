"""Abstract cases for the tests of the reducer: a case is a set of numbers, and what fails is said by a few rules."""

import dataclasses
import functools
import hashlib
import random
from collections.abc import Callable, Iterable, Iterator

from graphprobe.reduce import Answer, OracleVerdict
from graphprobe.reduce.space import Unit

FAILS = Answer(OracleVerdict.FAILS, "boom")
PASSES = Answer(OracleVerdict.PASSES)
UNRESOLVED = Answer(OracleVerdict.UNRESOLVED, detail="cannot be built")


@dataclasses.dataclass(frozen=True)
class Case:
    """Units that are kept, and a value that shrinks can make smaller."""

    keep: frozenset[int]
    value: int = 0

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(f"{sorted(self.keep)} {self.value}".encode()).hexdigest()

    @property
    def size(self) -> tuple[int, ...]:
        return len(self.keep), self.value


@dataclasses.dataclass(frozen=True)
class Refused:
    """Refuses sets with the first of a pair but without the second, and the empty one."""

    pairs: tuple[tuple[int, int], ...]

    def __call__(self, keep: frozenset[int]) -> bool:
        return bool(keep) and not any(a in keep and b not in keep for a, b in self.pairs)


@dataclasses.dataclass
class Numbers:
    """The space of subsets of `among`; the empty one cannot be built, nor those that `buildable` refuses."""

    among: tuple[int, ...]
    value: int = 0
    buildable: Callable[[frozenset[int]], bool] = bool

    def __post_init__(self) -> None:
        self.units = [Unit(str(number)) for number in self.among]

    def candidate(self, keep: frozenset[int]) -> Case | None:
        chosen = frozenset(self.among[index] for index in keep)
        return Case(chosen, self.value) if chosen and self.buildable(chosen) else None


def space(count: int, *, value: int = 0) -> Numbers:
    return Numbers(tuple(range(count)), value)


@dataclasses.dataclass
class Rule:
    """An oracle: fails if all culprits are there and no spoiler is there without its cure; counts its calls.

    `needs` are pairs: the first cannot be built without the second.
    """

    culprits: frozenset[int]
    needs: tuple[tuple[int, int], ...] = ()
    spoilers: tuple[tuple[int, int], ...] = ()
    least: int = 0
    asked: list[str] = dataclasses.field(default_factory=list)

    def __call__(self, case: Case) -> Answer:
        self.asked.append(case.digest)
        return self.judge(case)

    def judge(self, case: Case) -> Answer:
        keep = case.keep
        if any(a in keep and b not in keep for a, b in self.needs):
            return UNRESOLVED
        if any(a in keep and b not in keep for a, b in self.spoilers):
            return PASSES
        return FAILS if self.culprits <= keep and case.value >= self.least else PASSES

    @property
    def calls(self) -> int:
        return len(self.asked)


def rebase(space: Numbers) -> Callable[[Case], Numbers]:
    """Makes the space of what is left of a case of this space."""
    return lambda case: Numbers(tuple(sorted(case.keep)), case.value, space.buildable)


def closure(culprits: Iterable[int], needs: Iterable[tuple[int, int]]) -> frozenset[int]:
    """The culprits and all that they need: the one smallest failing set, where nothing else matters."""
    kept = set(culprits)
    pairs = list(needs)
    while more := {b for a, b in pairs if a in kept} - kept:
        kept |= more
    return frozenset(kept)


def scattered(seed: int, count: int, culprits: int, constraints: int = 0) -> Rule:
    """Culprits and pairs drawn by chance; which of a pair comes first is left to chance, too."""
    rng = random.Random(seed)
    chosen = frozenset(rng.sample(range(count), culprits))
    return Rule(chosen, tuple((*rng.sample(range(count), 2),) for _ in range(constraints)))  # type: ignore[misc]


class Halve:
    """Shrinks the value: to nothing, to half, by one."""

    name = "halve"

    def proposals(self, case: Case) -> Iterator[Case]:
        for value in (0, case.value // 2, case.value - 1):
            if 0 <= value < case.value:
                yield dataclasses.replace(case, value=value)
