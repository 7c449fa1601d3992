"""The recipe of a candidate, as JSON: what a worker needs to cut it out of the case again."""

from __future__ import annotations

import msgspec

from graphprobe.diagnose.reduction.edits import Edit


class Recipe(msgspec.Struct, frozen=True):
    """A piece of a case.

    Attributes:
        keep: names of the nodes that are kept, in the order of the graph.
        edits: what is done to the piece, in this order.
        calls: numbers of the calls that are made; None: all.
        base: a piece that was made a case of its own, of which this is a piece; None: of the original case.
    """

    keep: tuple[str, ...]
    edits: tuple[Edit, ...] = ()
    calls: tuple[int, ...] | None = None
    base: Recipe | None = None


def to_json(recipe: Recipe) -> bytes:
    """The recipe as JSON."""
    return msgspec.json.encode(recipe)
