"""What a step is doing right now, told by its process to the one that waits for it."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from contextvars import ContextVar

SIZE = 256
"""Bytes of a text; a longer one is cut off."""


class Board:
    """A text in memory that this process shares with those that it forks. The last one written is what is read."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, SIZE + 1)

    def write(self, text: str) -> None:
        """Put up a text; nobody waits, and half of one that is read meanwhile is drawn over a second later."""
        data = text.encode()[:SIZE]
        self._memory[: SIZE + 1] = data + bytes(SIZE + 1 - len(data))

    def read(self) -> str:
        """The text; empty at first."""
        return bytes(self._memory[:SIZE]).split(b"\0")[0].decode("utf-8", "ignore")


_board: ContextVar[Board | None] = ContextVar("board", default=None)


@contextlib.contextmanager
def told_on(board: Board) -> Iterator[None]:
    """`doing` writes to this board, here and in the steps that are run from here."""
    before = _board.set(board)
    try:
        yield
    finally:
        _board.reset(before)


def doing(what: str) -> None:
    """Say what is being done, e.g. `op 34 of 512`; where nobody listens, nothing happens."""
    board = _board.get()
    if board is not None:
        board.write(what)
