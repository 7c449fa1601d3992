"""`with graphprobe.scope.data_dump():` inside a model marks the ops of the block for the dump. Loads no torch."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext

__all__ = ["data_dump"]

KEY = "graphprobe.data_dump"
"""Name of the mark in what torch keeps of a node for others, `node.meta["custom"]`."""


class _Block(threading.local):
    depth = 0


_block = _Block()


class _Eager(nullcontext[None]):
    """A block in eager code, where only `dump_op_switch` has ops to dump."""

    def __enter__(self) -> None:
        _block.depth += 1

    def __exit__(self, *exception: object) -> None:
        _block.depth -= 1


def in_block() -> bool:
    """Whether this thread runs eager code inside a `data_dump` block."""
    return _block.depth > 0


def data_dump() -> AbstractContextManager[None]:
    """Select exactly the ops that are traced in this block, and their gradients, for the op dump.

    No graph break: it works with `fullgraph=True`. In eager code it selects the ops of the block, without gradients,
    for a dump with `dump_op_switch`, and does nothing else. With `dump_layer` or a `dump_list` the blocks add to
    them; without, they alone select, in everything that is compiled for that dump.
    """
    import torch

    if not torch.compiler.is_compiling():
        return _Eager()
    marked: AbstractContextManager[None] = torch.fx.traceback.annotate({KEY: True})
    return marked
