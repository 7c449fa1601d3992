"""Decides which op made a non-finite value, from its inputs and outputs; on a device, without waiting for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from graphprobe.engine.tensor_stats import readable, stats_of, text_of
from graphprobe.errors import UsageError
from graphprobe.internals.quiet import quiet
from graphprobe.internals.tensors import span_of
from graphprobe.probe.dump.running import Values
from graphprobe.probe.dump.traits import OpTraits, Signs, largest
from graphprobe.store.dump_reader import OutputProblem

SKIPPED = ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "resize_", "set_")
"""Ops whose outputs hold whatever was there before."""

Kind = Literal["nan", "inf", "saturated"]

MOST_ELEMENTS = 8
"""Elements of an output that are named."""

_JUDGED = frozenset({torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz})
_JUDGED |= {torch.float8_e5m2, torch.float8_e5m2fnuz}


class FloatSummary(NamedTuple):
    """What an overflow shows in, of one tensor of floats.

    Attributes:
        slot: where it lies.
        memory: address of its storage, 0 when unknown.
        nan, positive, negative: how many elements are NaN, +inf, -inf.
        low, high: the least and the largest finite element, 0 without any.
        limit: largest finite number of a dtype that is narrow enough to be judged by saturation; else 0.
    """

    slot: str
    memory: int
    nan: int
    positive: int
    negative: int
    low: float = 0.0
    high: float = 0.0
    limit: float = 0.0

    @property
    def signs(self) -> Signs:
        """Signs of its infinities."""
        return frozenset("+" * bool(self.positive) + "-" * bool(self.negative))

    @property
    def extremes(self) -> Signs:
        """At which ends of the dtype's range elements lie."""
        if not self.limit:
            return frozenset()
        return frozenset("+" * (self.high == self.limit) + "-" * (self.low == -self.limit))

    @property
    def finite(self) -> bool:
        """Whether all of it is finite."""
        return not (self.nan or self.positive or self.negative)


class BadOutput(NamedTuple):
    """What is wrong with one output: `sign` of an infinity or of the end of the range, empty for NaN."""

    slot: str
    kind: Kind
    sign: str = ""


@dataclass(frozen=True, slots=True)
class OverflowVerdict:
    """What an op has to do with an overflow. A carrier read values that an origin before it had spoiled."""

    role: Literal["origin", "carrier"]
    problems: tuple[BadOutput, ...] = ()


class OverflowJudge:
    """Judges the ops of one step in the order in which they ran, forward and backward.

    It keeps in mind which memory holds values that an origin has spoiled.
    """

    def __init__(self) -> None:
        self._spoiled: set[int] = set()

    def look(self, known: Callable[[], tuple[OpTraits, Values, Values]], outputs: Values) -> OverflowVerdict | None:
        """The verdict on an op whose values can be looked at now; `known` is called only when an output is odd.

        It returns what the op means, its inputs as they were before it, and the program's own, which tell where they
        lie.
        """

        def read() -> tuple[OpTraits, Sequence[FloatSummary]]:
            traits, inputs, live = known()
            own = dict(live)
            return traits, [one._replace(memory=memory_of(own[one.slot])) for one in summaries(inputs)]

        return self.judge(read, summaries(outputs))

    def judge(
        self, known: Callable[[], tuple[OpTraits, Sequence[FloatSummary]]], outputs: Sequence[FloatSummary]
    ) -> OverflowVerdict | None:
        """The same from numbers: `known` returns what the op means, and those of its inputs."""
        odd = [found for found in outputs if not found.finite or found.extremes]
        for found in outputs:
            if found.finite:
                self._spoiled.discard(found.memory)
        if not odd:
            return None
        traits, read = known()
        spoiled = any(not found.finite and found.memory in self._spoiled for found in read)
        nan = any(found.nan for found in read)
        signs = frozenset().union(*(found.signs for found in read))
        problems = []
        for found in odd:
            problems += self._problems(found, traits.meant(found.slot, signs), read, nan, signs, spoiled)
        bad = {problem.slot for problem in problems}
        carried = spoiled and any(not found.finite for found in odd)
        for found in odd:
            if found.slot in bad or (spoiled and not found.finite):
                self._spoiled.add(found.memory)
            else:
                self._spoiled.discard(found.memory)
        if problems:
            return OverflowVerdict("origin", tuple(problems))
        return OverflowVerdict("carrier") if carried else None

    def _problems(
        self, out: FloatSummary, meant: Signs, read: Sequence[FloatSummary], nan: bool, signs: Signs, spoiled: bool
    ) -> list[BadOutput]:
        if nan or spoiled:
            return []  # what comes of NaN, and of values that were spoiled before, is passed on
        problems = []
        # A NaN of infinities that are meant comes of a row that is masked as a whole; what reads those is no origin.
        if out.nan and not signs:
            problems.append(BadOutput(out.slot, "nan"))
        problems += [BadOutput(out.slot, "inf", sign) for sign in sorted(out.signs - signs - meant)]
        hit = out.extremes - meant
        if hit and all(found.finite and out.limit not in (found.high, -found.low) for found in read):
            problems += [BadOutput(out.slot, "saturated", sign) for sign in sorted(hit)]
        return problems


def judged(values: Values) -> list[tuple[str, torch.Tensor]]:
    """The slots that can overflow: plain tensors of floats or complex numbers."""
    tensors = [(name, value) for name, value in values if isinstance(value, torch.Tensor)]
    return [(name, value) for name, value in tensors if value.is_floating_point() or value.is_complex()]


def memory_of(tensor: torch.Tensor) -> int:
    """Address of the tensor's storage, 0 when it has none."""
    try:
        return span_of(tensor)[0]
    except RuntimeError:
        return 0


def limit_of(dtype: torch.dtype) -> float:
    """Largest finite number of fp16, bf16 and the 8-bit floats; 0 for dtypes that nothing is judged by."""
    return largest(dtype) if dtype in _JUDGED else 0.0


def summary_of(slot: str, tensor: torch.Tensor) -> FloatSummary:
    """Of a tensor on the CPU; one that cannot be read counts as finite."""
    memory = memory_of(tensor)
    try:
        stats = stats_of(tensor)
    except UsageError:
        return FloatSummary(slot, memory, 0, 0, 0)
    low, high = stats.min or 0.0, stats.max or 0.0
    return FloatSummary(
        slot, memory, stats.nan, stats.positive_inf, stats.negative_inf, low, high, limit_of(tensor.dtype)
    )


def row_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The numbers of a summary on the tensor's device: float64, shape (5,). None for what cannot be read."""
    try:
        plain = readable(tensor)
    except UsageError:
        return None
    with quiet():
        values = torch.view_as_real(plain) if plain.is_complex() else plain
        if values.element_size() == 1:
            values = values.to(torch.float32)
        if not values.numel():
            return torch.zeros(5, dtype=torch.float64, device=values.device)
        finite = torch.isfinite(values)
        known = torch.where(finite, values, 0.0)
        counts = (torch.isnan(values).sum(), (values == torch.inf).sum(), (values == -torch.inf).sum())
        return torch.stack([found.to(torch.float64) for found in (*counts, known.amin(), known.amax())])


def summary_from_row(slot: str, memory: int, dtype: torch.dtype, row: Sequence[float]) -> FloatSummary:
    """The summary of a row that was copied to the host."""
    nan, positive, negative, low, high = row
    return FloatSummary(slot, memory, int(nan), int(positive), int(negative), low, high, limit_of(dtype))


def summaries(values: Values) -> list[FloatSummary]:
    """Those of tensors on any device, for which it waits."""
    found = []
    for slot, tensor in judged(values):
        if tensor.is_cpu:
            found.append(summary_of(slot, tensor))
        elif (row := row_of(tensor)) is not None:
            found.append(summary_from_row(slot, memory_of(tensor), tensor.dtype, row.tolist()))
    return found


def elements(tensor: torch.Tensor, problem: BadOutput) -> OutputProblem:
    """How many elements of an output show a problem, and the first of them by index. Waits for the device."""
    with quiet():
        plain = readable(tensor).to("cpu")
        values = plain.to(torch.float32) if plain.element_size() == 1 else plain
        if problem.kind == "nan":
            hit = torch.isnan(values)
        elif values.is_complex():
            hit = torch.isinf(values)
        else:
            end = torch.inf if problem.kind == "inf" else limit_of(tensor.dtype)
            hit = values == (end if problem.sign == "+" else -end)
        where = hit.nonzero()
        first, count = where[:MOST_ELEMENTS].tolist(), int(hit.sum())
        about = problem.slot, problem.kind, problem.sign, text_of(tensor.dtype), list(tensor.shape)
        return OutputProblem(*about, count, tensor.numel(), first)


def in_words(problems: Sequence[OutputProblem]) -> str:
    """What `elements` found of outputs, as a text."""
    parts = []
    for found in problems:
        end = f"the {'largest' if found.sign == '+' else 'lowest'} {found.dtype}"
        what = {"nan": "NaN", "inf": f"{found.sign}inf", "saturated": end}[found.kind]
        first = f", first at {found.first[0]}" if found.first else ""
        parts.append(f"{found.output} has {what} in {found.elements} of {found.of} elements{first}")
    return "; ".join(parts)
