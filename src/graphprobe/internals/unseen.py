"""Keeps graphprobe's own frames out of the tracebacks that the observed program, or its user, gets to see."""

from __future__ import annotations

import threading
from itertools import pairwise
from types import TracebackType

OWN = "graphprobe."


class _Unseen(threading.local):
    """`with unseen: original(...)`: an error on its way through carries no frame of graphprobe, this one included.

    Put it around calls of the program's or torch's code, nothing else. It works because leaving a `with` block on an
    error adds no further entry for the frame that holds the block. An error that graphprobe itself raised keeps its
    frames: its innermost frame is graphprobe's, and not the one that holds the block.
    """

    _passing = 0
    """`id` of the error that was last found to be somebody else's; an outer block then need not ask again."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        entries = _entries(error.__traceback__)
        from_c_code = len(entries) == 1
        if not from_c_code and _own(entries[-1]) and self._passing != id(error):
            return
        self._passing = id(error)
        seen: set[int] = set()
        link: BaseException | None = error
        while link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = without_own_frames(link.__traceback__)
            link = link.__cause__ or link.__context__


unseen = _Unseen()


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """`trace` relinked around graphprobe's frames; None when nothing else is in it."""
    kept = [entry for entry in _entries(trace) if not _own(entry)]
    for entry, following in pairwise(kept):
        if entry.tb_next is not following:
            entry.tb_next = following
    if kept and kept[-1].tb_next is not None:
        kept[-1].tb_next = None
    return kept[0] if kept else None


def _entries(trace: TracebackType | None) -> list[TracebackType]:
    found: list[TracebackType] = []
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found


def _own(entry: TracebackType) -> bool:
    return str(entry.tb_frame.f_globals.get("__name__", "")).startswith(OWN)
