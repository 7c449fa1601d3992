"""`with graphprobe.scope.data_dump():` inside a model marks the ops of the block for the dump. Loads no torch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

__all__ = ["data_dump"]

KEY = "graphprobe.data_dump"
"""Name of the mark in what torch keeps of a node for others, `node.meta["custom"]`."""


def data_dump() -> AbstractContextManager[None]:
    """Select exactly the ops that are traced in this block, and their gradients, for the op dump.

    No graph break: it works with `fullgraph=True`. Outside a compile it does nothing. With `dump_layer` or a
    `dump_list` the block adds to them; without, it alone selects.
    """
    import torch

    if not torch.compiler.is_compiling():
        return nullcontext()
    marked: AbstractContextManager[None] = torch.fx.traceback.annotate({KEY: True})
    return marked
