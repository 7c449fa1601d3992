"""Comparison of two dumps: pair their calls, judge each pair in units of noise, name the first that goes wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphprobe.faces import loaded_on_use, make_callable

if TYPE_CHECKING:
    from graphprobe.compare.open import open_dump
    from graphprobe.compare.result import CallName, CallResult, LocalTruth, SlotResult, SlotSide
    from graphprobe.compare.run import GRAPH_FORMAT, Comparison, compare_dumps

__all__ = [
    "GRAPH_FORMAT",
    "CallName",
    "CallResult",
    "Comparison",
    "LocalTruth",
    "SlotResult",
    "SlotSide",
    "compare_dumps",
    "open_dump",
]

__getattr__ = loaded_on_use(__name__)
make_callable(__name__, "graphprobe.api")
