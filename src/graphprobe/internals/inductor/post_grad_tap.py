"""The place after Inductor's last FX pass: what is lowered is the graph as the edit leaves it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx import GraphModule

from graphprobe.internals.inductor.stages import COMPILE_FX
from graphprobe.internals.patches import Patch, PatchSet
from graphprobe.internals.require import require

NAME = "_recursive_post_grad_passes"
PURPOSE = "the dump engine 'instrument'"

Edit = Callable[[GraphModule], None]


class _Edits(threading.local):
    def __init__(self) -> None:
        self.stack: list[Edit] = []
        self.depth = 0


class _PostGradTap:
    """One a process: in place for as long as some thread needs it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.patches = PatchSet()


_edits = _Edits()
_tap = _PostGradTap()


@contextmanager
def after_post_grad(edit: Edit) -> Iterator[None]:
    """Call `edit` on each graph that this thread lowers in the block, after the program's own custom passes, too.

    Graphs nested in another, such as the branches of a `cond`, are not handed in. Nothing is left in place afterwards.

    Raises:
        UnsupportedTorchError: this torch runs its last passes elsewhere.
    """
    require(COMPILE_FX, NAME, purpose=PURPOSE)
    with _tap.lock:
        if not _tap.users:
            _tap.patches.apply(importlib.import_module(COMPILE_FX), Patch("instrument", COMPILE_FX, NAME, _make))
        _tap.users += 1
    _edits.stack.append(edit)
    try:
        yield
    finally:
        _edits.stack.remove(edit)
        with _tap.lock:
            _tap.users -= 1
            if not _tap.users:
                _tap.patches.undo()


def _make(original: Callable[..., Any]) -> Callable[..., Any]:
    def recursive_post_grad_passes(gm: GraphModule, *args: Any, **kwargs: Any) -> Any:
        _edits.depth += 1
        try:
            result = original(gm, *args, **kwargs)
        finally:
            _edits.depth -= 1
        if _edits.depth == 0 and _edits.stack:
            _edits.stack[-1](gm)
        return result

    return recursive_post_grad_passes
