"""Where an operator of a program comes from: line, module and phase; a gradient has those of the operator it is of."""

from __future__ import annotations

from typing import NamedTuple

import torch

from graphprobe.internals.operators.autograd_edges import running_node, sequence_number
from graphprobe.internals.operators.eager_ops import Lines, program_lines
from graphprobe.probe.api.session import Paths
from graphprobe.records import Direction

MOST_OPS = 1 << 16
"""Operators whose gradients may still come; older ones are forgotten."""


class OpOrigin(NamedTuple):
    """What led to an operator: lines, outermost first; path of the innermost module, empty outside of all; phase."""

    lines: Lines
    module: str
    direction: Direction


class Origins:
    """Tells the origin of each operator as it runs; a gradient finds its operator by the number of its node."""

    def __init__(self) -> None:
        self._paths = Paths(None)
        self._made: dict[int, OpOrigin] = {}

    def here(self) -> OpOrigin | None:
        """Of what runs now on this thread; None where a compiled graph led here."""
        modules: list[torch.nn.Module] = []
        lines = program_lines(modules)
        if lines is None:
            return None
        node = running_node()
        if node is not None:
            forward = self._made.get(node[1])
            return OpOrigin(forward.lines if forward else lines, forward.module if forward else "", "backward")
        path: str | None = None
        for module in modules:
            path = self._paths.module(module, path)
        found = OpOrigin(lines, path or "", "forward")
        if torch.is_grad_enabled():
            # The node of an operator is made before the operator runs; those that need no gradient make none.
            self._made.setdefault(sequence_number() - 1, found)
            if len(self._made) > MOST_OPS:
                del self._made[next(iter(self._made))]
        return found
