"""What is being compiled on this thread, as a stack: model, which of its graphs, which stage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from graphprobe.records import Direction


class Frame(msgspec.Struct, frozen=True):
    """One level of the stack.

    Attributes:
        token: the observer's own object for the model; opaque here.
        direction: the graph being worked on, None while only the whole model is known.
        phase: the stage of the compiler.
        subgraph: attribute name of the nested graph module being worked on.
        root: the graph that a stage was started on, which goes on to the graphs nested in it; None before any is.
    """

    token: Any
    direction: Direction | None = None
    phase: str | None = None
    subgraph: str | None = None
    root: Any = None


class _Stack(threading.local):
    def __init__(self) -> None:
        self.frames: list[Frame] = []


_stack = _Stack()


UNOBSERVED = Frame(None)
"""Entered around a compile that nobody wants to see, or whose observer failed: nothing below it is told."""


def current() -> Frame | None:
    """The innermost frame of this thread, or None when nothing observed is being compiled."""
    return _stack.frames[-1] if _stack.frames and _stack.frames[-1] is not UNOBSERVED else None


def unobserved() -> bool:
    """Whether a compile that is not observed is under way on this thread."""
    return bool(_stack.frames) and _stack.frames[-1] is UNOBSERVED


@contextmanager
def entered(frame: Frame | None) -> Iterator[None]:
    """Make `frame` the innermost one for the duration; None changes nothing."""
    if frame is None:
        yield
        return
    _stack.frames.append(frame)
    try:
        yield
    finally:
        _stack.frames.pop()
