"""What a dump of ops is to hold: options, JSON file and environment as one frozen plan. Knows nothing of torch."""

from __future__ import annotations

from graphprobe.dump_plan.build import plan_from
from graphprobe.dump_plan.plan import (
    Blacklisted,
    Chosen,
    DumpPlan,
    ModelEntry,
    NameRange,
    OpChooser,
    Position,
    WatchEntry,
)

__all__ = [
    "Blacklisted",
    "Chosen",
    "DumpPlan",
    "ModelEntry",
    "NameRange",
    "OpChooser",
    "Position",
    "WatchEntry",
    "plan_from",
]
