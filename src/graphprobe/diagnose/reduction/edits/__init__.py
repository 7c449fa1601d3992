"""What makes a small failing graph simpler: edits as data, passes that propose them, and the measure they lower.

An edit is recorded and applied later, to the graph with the inputs of each of its calls. What it does to the graph
follows from the edit and the graph alone, apart from `Resize`, which tries what fits the inputs.
"""

from __future__ import annotations

import msgspec

from graphprobe.diagnose.reduction.edits import dims, inputs, outputs, values
from graphprobe.diagnose.reduction.edits.base import EditBase, EditPass, NotApplicable
from graphprobe.diagnose.reduction.edits.dims import Resize
from graphprobe.diagnose.reduction.edits.inputs import Contiguous, DropGrad, DropInput, Lift, Merge, Unshare
from graphprobe.diagnose.reduction.edits.measure import Size, size_of
from graphprobe.diagnose.reduction.edits.outputs import DropCalls, InlineBranch, KeepOutputs
from graphprobe.diagnose.reduction.edits.values import Cast, Fill, FoldNumber, InlineNumber, SetScalar

__all__ = ["PASSES", "Edit", "EditBase", "EditPass", "NotApplicable", "Recipe", "Size", "size_of"]

Edit = (
    InlineBranch
    | KeepOutputs
    | DropCalls
    | Lift
    | InlineNumber
    | FoldNumber
    | DropInput
    | Resize
    | Merge
    | Cast
    | Unshare
    | Contiguous
    | DropGrad
    | Fill
    | SetScalar
)
"""What `msgspec.json.decode(text, type=Edit)` reads; the tag `type` is the name of the class."""

PASSES: tuple[EditPass, ...] = (
    outputs.GRAPHS,
    outputs.OUTPUTS,
    outputs.DEAD,
    inputs.UNUSED,
    inputs.ATTRIBUTES,
    values.STATIC,
    dims.DIMS,
    values.DTYPES,
    inputs.STRIDES,
    inputs.GRADIENTS,
    inputs.MERGE,
    values.VALUES,
    values.SCALARS,
)
"""In the order in which they should be asked: what removes most first."""


class Recipe(msgspec.Struct, frozen=True):
    """A piece of a case: what a worker needs to cut it out again; `msgspec.json` writes and reads it.

    Attributes:
        base: a piece that was made a case of its own, of which this is a piece; None: of the original case.
    """

    keep: tuple[str, ...]  # names of the nodes that are kept, in the order of the graph
    edits: tuple[Edit, ...] = ()  # what is done to the piece, in this order
    calls: tuple[int, ...] | None = None  # numbers of the calls that are made; None: all
    base: Recipe | None = None
