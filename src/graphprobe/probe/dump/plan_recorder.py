"""The recorder as a plan has it: with what concerns several graphs at once, marks and the ops outside all graphs."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from graphprobe.dump_plan import DumpPlan, ModelEntry
from graphprobe.probe.dump.recorder import OP_SWITCH, OpRecorder
from graphprobe.probe.dump.session import DumpGraph
from graphprobe.probe.dump.single_ops import MODEL
from graphprobe.store.dump_writer import DumpWriter


class PlanRecorder(OpRecorder):
    """A recorder to which marks of `scope.data_dump` count for the whole dump, where nothing else selects ops.

    Once a graph with a mark was compiled, graphs without one are not dumped any more, whichever came first.
    """

    def __init__(self, plan: DumpPlan, writer: Callable[[], DumpWriter]) -> None:
        super().__init__(with_single_ops(plan), writer)
        self._marks_select = not self._plan.narrowed
        self._marked: set[DumpGraph] = set()

    def wants(self, graph: DumpGraph) -> frozenset[int]:
        if any(op.scoped for op in graph.ops):
            self._marked.add(graph)
        if not self._left_out(graph):
            return super().wants(graph)
        self._models.setdefault(graph.model, 0)
        return frozenset()

    def due(self, graph: DumpGraph, step: int) -> bool:
        return not self._left_out(graph) and super().due(graph, step)

    def _left_out(self, graph: DumpGraph) -> bool:
        return self._marks_select and bool(self._marked) and graph not in self._marked


def with_single_ops(plan: DumpPlan) -> DumpPlan:
    """With `dump_op_switch`, ops outside compiled graphs are those of a model; where no entry is for it, all of it."""
    if not plan.single_ops or plan.entries_for(MODEL):
        return plan
    return msgspec.structs.replace(plan, models=(*plan.models, ModelEntry(MODEL, where=OP_SWITCH)))
