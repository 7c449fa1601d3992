"""Scheduler IR as plain records, which need no torch to be read."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

NodeKind = Literal["compute", "extern", "template", "nop", "fused", "foreach", "grouped", "other"]


class IRBuffer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value that scheduler nodes read or write.

    Attributes:
        name: Inductor's name, e.g. `buf3` or a graph input's.
        dtype: e.g. `float32`; None for what is no tensor.
        shape, stride: symbolic expressions as text, elements; None for what is no tensor.
        device: e.g. `cpu`, `cuda:0`.
        aliases, mutates: buffers whose memory it shares, or which the writing of this one changes.
    """

    name: str
    dtype: str | None = None
    shape: tuple[str, ...] | None = None
    stride: tuple[str, ...] | None = None
    device: str | None = None
    aliases: tuple[str, ...] = ()
    mutates: tuple[str, ...] = ()


class NodeOrigin(msgspec.Struct, frozen=True, omit_defaults=True):
    """An FX node that a scheduler node was lowered from: its name, its target, and the source line it stems from."""

    name: str
    target: str
    source: str | None = None


class IRNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """One scheduler node, that is, one kernel or one call into a library.

    Attributes:
        name: Inductor's name, e.g. `op4` or `op4_op5` when fused.
        kind: what it is; `fused`, `foreach` and `grouped` have members.
        type: the scheduler's class and the IR's, e.g. `SchedulerNode(ComputedBuffer)`.
        inputs: names of buffers read, in the scheduler's order.
        outputs: buffers written.
        origins: FX nodes it stems from, in graph order.
        members: names of the fused nodes, in order.
        ranges: iteration and reduction ranges as text, when it loops; the latter are empty when it reduces nothing.
        kernel: name of the called kernel, for extern nodes.
        text: Inductor's own long description.
    """

    name: str
    kind: NodeKind
    type: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[IRBuffer, ...] = ()
    origins: tuple[NodeOrigin, ...] = ()
    members: tuple[str, ...] = ()
    ranges: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    kernel: str | None = None
    text: str = ""


class IRGraph(msgspec.Struct, frozen=True, omit_defaults=True):
    """The scheduler's graph at one moment.

    Attributes:
        name: of the nested graph, or an empty string for the outermost.
        nodes: in the scheduler's order.
        inputs: graph inputs and constants that nodes may read.
        outputs: names of the buffers that the graph returns.
    """

    name: str = ""
    nodes: tuple[IRNode, ...] = ()
    inputs: tuple[IRBuffer, ...] = ()
    outputs: tuple[str, ...] = ()


def place_in(trace: str) -> tuple[str, int, str, str]:
    """File, line, function and code of the innermost frame of a stack trace; empty when there is none."""
    found: list[tuple[str, ...]] = re.findall(r'File "([^"]*)", line (\d+), in (\S+)\n\s*(.*)', trace)
    if not found:
        return "", 0, "", ""
    file, line, function, code = found[-1]
    return file, int(line), function, code.strip()


def source_line(node: Any) -> str:
    """`file:line in function: code` of the user's line a node stems from; empty when unknown."""
    file, line, function, code = place_in(node.stack_trace or "")
    return f"{file}:{line} in {function}: {code}" if file else ""
