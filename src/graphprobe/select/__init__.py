"""The grammars of selections: which steps, and which ops. Knows nothing of torch."""

from __future__ import annotations

from graphprobe.select.matching import (
    LayerMatcher,
    LayerSelection,
    LayerToken,
    OpFacts,
    Unmatched,
    layers_from_list,
    layers_from_text,
    name_matches,
    type_matches,
)
from graphprobe.select.step_ranges import MAX_STEP, StepSelection, steps_from_text

__all__ = [
    "MAX_STEP",
    "LayerMatcher",
    "LayerSelection",
    "LayerToken",
    "OpFacts",
    "StepSelection",
    "Unmatched",
    "layers_from_list",
    "layers_from_text",
    "name_matches",
    "steps_from_text",
    "type_matches",
]
