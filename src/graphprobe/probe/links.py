"""From launches back to scheduler nodes, FX nodes and source lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphprobe.internals.ir.records import IRNode


def nodes_by_launch(buffers: Sequence[Iterable[str]], nodes: Sequence[IRNode]) -> list[tuple[IRNode, ...]]:
    """The scheduler nodes that each launch carries out.

    A scheduler node writes buffers under names of their own, and nothing can read one before it was written: so the
    first launch that names any buffer of a node is the one that runs it.

    Args:
        buffers: for each launch, in the order in which they ran, the names that it was called with or bound to.
        nodes: the scheduler's nodes after fusion, those of nested graphs included.
    """
    writers: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        for out in node.outputs:
            writers.setdefault(out.name, []).append(index)
    done: set[int] = set()
    found: list[tuple[IRNode, ...]] = []
    for names in buffers:
        here = sorted({index for name in names for index in writers.get(name, ())} - done)
        done.update(here)
        found.append(tuple(nodes[index] for index in here))
    return found
