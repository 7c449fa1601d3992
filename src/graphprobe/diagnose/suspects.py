"""A suspect: a node that computes something else than it should, with what is needed to prove it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule, Node

from graphprobe.diagnose.local import LocalError
from graphprobe.engine.naming import module_of, op_of, source_of
from graphprobe.findings import Kind, Stage


@dataclass
class Suspect:
    """One accused node.

    Attributes:
        kind, stage, direction, pass_: as in a Finding.
        graph: graph in which the node can be cut out; right when run op by op.
        node: in `graph`.
        values: of every node of `graph` by name.
        error: what is wrong with it.
        also: names of further ops, the likeliest first.
        others: further nodes of `graph` that belong to a repro.
        kernel: name of the kernel that computes it.
        kernel_source: suffix of its language (`.cpp`, `.py`) and its text.
        inputs: of the whole graph.
        named: the op, where it is another than the node's.
        whole: it fails with the rest of its graph only, so that small pieces need not be tried.
        wrong_alone: it is wrong when compiled by itself, for the sizes at hand.
        measured: errors of other nodes of `graph`, by name, as far as they were measured with this one's.
        known: fields of the finding that are known better from elsewhere, from an exception's frames say.
    """

    kind: Kind
    stage: Stage
    direction: str
    graph: GraphModule
    node: Node
    values: dict[str, Any]
    error: LocalError
    inputs: list[Any]
    pass_: str | None = None
    also: list[str] = field(default_factory=list)
    others: list[Node] = field(default_factory=list)
    kernel: str | None = None
    kernel_source: tuple[str, str] | None = None
    named: str | None = None
    known: dict[str, Any] = field(default_factory=dict)
    whole: bool = False
    wrong_alone: bool = False
    measured: dict[str, LocalError] = field(default_factory=dict)

    @property
    def op(self) -> str:
        """Name of what the node calls, or of the op it stands for."""
        return self.named or op_of(self.node)

    @property
    def source(self) -> str | None:
        """The user's line."""
        return next((s for s in map(source_of, [self.node, *self.others]) if s), None)

    @property
    def module(self) -> str | None:
        """The user's module."""
        return next((m for m in map(module_of, [self.node, *self.others]) if m), None)
