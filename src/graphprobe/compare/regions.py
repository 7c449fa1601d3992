"""Compiled code, recorded as one call: in which precision it computes, as far as its records tell."""

from __future__ import annotations

from typing import NamedTuple

from graphprobe.compare.measures import noise_unit
from graphprobe.store.calls import Call

TFLOAT32 = 2.0**-11
"""u of the products of float32 that a device computes from ten bits of each number."""


class Region(NamedTuple):
    """What the records of one call tell of compiled code; without `unit` it is none.

    Attributes:
        unit: u of the coarsest dtype in which the code of either side computes, gets or gives values.
        operations: in the larger of the two.
        judged: whether results that differ by much more than `unit` are wrong. They need not be where a record does not
            know all that is inside, or where rounding may turn results into others altogether.
    """

    unit: float = 0.0
    operations: int = 0
    judged: bool = False


def region_of(candidate: Call, reference: Call) -> Region:
    """What is known of a pair of calls of which at least one is compiled code."""
    calls = candidate, reference
    compiled = [call.compiled for call in calls if call.is_compiled]
    if not compiled:
        return Region()
    names = {slot.meta.dtype for call in calls for slot in call.slots if slot.meta is not None}
    judged, operations = True, 0
    for region in compiled:
        if region is None:
            judged = False
            continue
        judged = judged and not region.unknown and not region.unsteady
        operations = max(operations, region.operations)
        names.update(region.dtypes, (text.rpartition(" ")[2] for text in region.autocast))
    units = (TFLOAT32 if name == "tfloat32" else noise_unit(name, name) for name in names)
    return Region(max(units, default=0.0), operations, judged)
