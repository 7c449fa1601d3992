"""What makes a small failing graph simpler: edits as data, passes that propose them, and the measure they lower.

An edit is recorded and applied later, to the graph with the inputs of each of its calls. What it does to the graph
follows from the edit and the graph alone, apart from `Resize`, which tries what fits the inputs.
"""

from __future__ import annotations

from graphprobe.diagnose.reduction.edits import (
    attributes,
    dims,
    dtypes,
    inline_hop,
    merge,
    outputs,
    requires_grad,
    scalars,
    static,
    strides,
    values,
)
from graphprobe.diagnose.reduction.edits.attributes import Lift
from graphprobe.diagnose.reduction.edits.base import EditBase, EditPass, NotApplicable
from graphprobe.diagnose.reduction.edits.dims import Resize
from graphprobe.diagnose.reduction.edits.dtypes import Cast
from graphprobe.diagnose.reduction.edits.inline_hop import InlineBranch
from graphprobe.diagnose.reduction.edits.measure import Size, size_of
from graphprobe.diagnose.reduction.edits.merge import DropInput, Merge
from graphprobe.diagnose.reduction.edits.outputs import DropCalls, KeepOutputs
from graphprobe.diagnose.reduction.edits.requires_grad import DropGrad
from graphprobe.diagnose.reduction.edits.scalars import SetScalar
from graphprobe.diagnose.reduction.edits.static import FoldNumber, InlineNumber
from graphprobe.diagnose.reduction.edits.strides import Contiguous, Unshare
from graphprobe.diagnose.reduction.edits.values import Fill

__all__ = [
    "PASSES",
    "Edit",
    "EditBase",
    "EditPass",
    "NotApplicable",
    "Size",
    "size_of",
]

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
    inline_hop.PASS,
    outputs.PASS,
    outputs.DEAD,
    merge.UNUSED,
    attributes.PASS,
    static.PASS,
    dims.PASS,
    dtypes.PASS,
    strides.PASS,
    requires_grad.PASS,
    merge.PASS,
    values.PASS,
    scalars.PASS,
)
"""In the order in which they should be asked: what removes most first."""
