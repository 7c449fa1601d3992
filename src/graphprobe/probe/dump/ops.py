"""The nouns of a dump while the program runs: an op of a compiled graph, one execution of it, and who is told."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from graphprobe.probe.dump.traits import NONE, OpTraits
from graphprobe.select import OpFacts
from graphprobe.store.dump_records import OpInfo

if TYPE_CHECKING:
    from graphprobe.probe.dump.model import DumpGraph
    from graphprobe.probe.dump.running import GraphCall

DATA = "Data"
"""Type of an op that is a graph input or a constant, as TorchAir has it."""

Values = Sequence[tuple[str, Any]]
"""Slots with the live value of each: tensors, and arguments without any. Only good until the op goes on."""


@dataclass(frozen=True, slots=True)
class GraphOp:
    """An op of a graph, or a launch of its compiled code.

    Attributes:
        index: its position in `DumpGraph.ops`.
        info: what every record of it says.
        facts: what it can be selected by.
        data: whether it is a graph input or a constant of the graph.
        reads_data: indices of the data ops that it reads.
        notes: for its records, e.g. which buffer lies in which slot.
        scoped: whether the program marked it, in a block that asks for a dump.
        traits: what it reads and writes by name, and which infinities are meant.
    """

    index: int
    info: OpInfo
    facts: OpFacts
    data: bool = False
    reads_data: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    scoped: bool = False
    traits: OpTraits = NONE


@dataclass(slots=True, eq=False)
class OpExecution:
    """One execution of an op, from just before it runs until just after.

    Attributes:
        op, call: which op, in which call of its graph.
        inputs: what it reads, live. An op that writes into one has done so in `after`.
        outputs: what it wrote, live; None before it has run.
        state: by observer, whatever `before` wants `after` to find.
    """

    op: GraphOp
    call: GraphCall
    inputs: Values
    outputs: Values | None = None
    state: dict[OpObserver, Any] = field(default_factory=dict)

    @property
    def graph(self) -> DumpGraph:
        """The graph that the op belongs to."""
        return self.call.graph


class OpObserver(Protocol):
    """Told what ops read and wrote, on the thread that runs them. May look at live tensors, and change none.

    One that raises is detached and reported; the program and the other observers go on.
    """

    def wants(self, graph: DumpGraph) -> Collection[int]:
        """A graph was compiled: indices of the ops it wants to be told of."""

    def due(self, graph: DumpGraph, step: int) -> bool:
        """Whether it wants a call of this graph; asked once a call."""

    def before(self, execution: OpExecution) -> None:
        """An op is about to run."""

    def after(self, execution: OpExecution) -> None:
        """An op has run."""

    def raised(self, execution: OpExecution, error: BaseException) -> None:
        """An op has raised; the error goes on to the program."""

    def call_ends(self, call: GraphCall, error: BaseException | None) -> None:
        """The graph has returned or raised."""

    def close(self) -> list[str]:
        """The dump ends. Returns what the user should know, one sentence each."""
