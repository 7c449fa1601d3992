"""What surrounds an operator in this thread: the node of the autograd graph, the mode around torch's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphprobe.internals.operators.autograd_edges import sequence_number
from graphprobe.internals.require import require

_current_node: Callable[[], Any] = require(
    "torch._C", "_current_autograd_node", purpose="telling which backward an operator belongs to"
)
_function_modes: Callable[[], list[Any]] = require(
    "torch.overrides", "_get_current_function_mode_stack", purpose="ending the overflow check"
)
_NEVER = 1 << 63
"""What gathers the gradient of a leaf has the largest number there is."""


def next_sequence_number() -> int:
    """Number that the next node made by this thread gets."""
    return sequence_number()


def running_node() -> tuple[str, int] | None:
    """Name of the node that runs, and the number that it got in the forward, -1 if none; None outside a backward."""
    node = _current_node()
    if node is None:
        return None
    number = int(node._sequence_nr())
    return str(node.name()), number if number < _NEVER else -1


def innermost_function_mode() -> Any:
    """The mode that sees calls of torch's functions first; None without one."""
    modes = _function_modes()
    return modes[-1] if modes else None
