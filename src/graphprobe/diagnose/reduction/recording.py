"""The values of a graph's nodes, as each of its users found them, from one uncompiled run in a child process."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch.fx import GraphModule, Interpreter, Node

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.check_case import SEED
from graphprobe.engine.forked_child import isolated
from graphprobe.engine.interpret import copied
from graphprobe.engine.values import CapturedValues, capture, from_bytes, to_bytes
from graphprobe.errors import UsageError
from graphprobe.internals.tensors import has_levels, tree_leaves, tree_map, version_of

ORIGINAL = -1
"""In place of a snapshot's number: the value that the case was called with."""


Ran = tuple[tuple[bytes, bytes], dict[str, list[tuple[int, int]]], dict[str, list[str]], str | None]
"""Parts of a `Recording`, from the child that ran the call: values as bytes, snapshots, writes, failed."""


class _Recorder(Interpreter):
    """Copies every value when it is made, and again when somebody has written to it before it is used."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm)
        self.extra_traceback = False
        self.position = -1
        self.snapshots: dict[str, list[tuple[int, int]]] = {}
        self.writes: dict[str, list[str]] = {}
        self.kept: list[Any] = []
        self.current: Node | None = None
        self._live: dict[str, Any] = {}
        self._versions: dict[str, tuple[int | None, ...]] = {}

    def run_node(self, n: Node) -> Any:
        self.current, self.position = n, self.position + 1
        for source in n.all_input_nodes:
            name = source.name
            if name in self._live and versions(self._live[name]) != self._versions[name]:
                self._keep(name, self._live[name])
        before = {s.name: versions(self._live[s.name]) for s in n.all_input_nodes if s.name in self._live}
        result = super().run_node(n)
        if n.op == "output":
            return result
        changed = [name for name, old in before.items() if versions(self._live[name]) != old]
        if changed:
            self.writes[n.name] = changed
        self._keep(n.name, result, original=n.op == "placeholder")
        return result

    def _keep(self, name: str, value: Any, *, original: bool = False) -> None:
        self._live[name], self._versions[name] = value, versions(value)
        number = ORIGINAL if original else len(self.kept)
        self.snapshots.setdefault(name, []).append((self.position, number))
        if not original:
            self.kept.append(tree_map(_with_gradients, value))


def versions(value: Any) -> tuple[int | None, ...]:
    """Counts of the writes to the memory of a value's tensors."""
    return tuple(version_of(leaf) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _with_gradients(value: Any) -> Any:
    """A copy of a tensor that requires gradients where it does."""
    made = copied(value) if isinstance(value, torch.Tensor) else value
    return made.requires_grad_(value.requires_grad) if made is not value else value


@dataclass(frozen=True)
class Recording:
    """One call of a case.

    Attributes:
        snapshots: for each node, `(position, number)`: from the node at this position on, snapshot `number` holds.
    """

    inputs: CapturedValues  # what it was called with
    placeholders: Mapping[str, int]  # positions of the graph's inputs by name
    values: CapturedValues  # the snapshots
    snapshots: Mapping[str, list[tuple[int, int]]]
    writes: Mapping[str, list[str]]  # for each node that changes memory, the nodes whose values lie there
    failed: str | None  # the node that raised

    def number(self, name: str, position: int) -> int:
        """The snapshot of a node's value that the node at `position` found."""
        return max(entry for entry in self.snapshots[name] if entry[0] <= position)[1]

    def first(self, node: Node) -> dict[str, Any] | None:
        """The description of a node's value as it was made; None where the run did not come to the node."""
        snapshots = self.snapshots.get(node.name)
        return self.record(node.name, snapshots[0][1]) if snapshots else None

    def record(self, name: str, number: int) -> dict[str, Any]:
        """The description of a snapshot, as `capture` makes it."""
        source, at = (self.inputs, self.placeholders[name]) if number == ORIGINAL else (self.values, number)
        found: dict[str, Any] = source.doc["values"][at]
        return found


def record(case: Case, *, timeout_s: float) -> list[Recording]:
    """Run every call of a case uncompiled, in a child process, and keep all values.

    Raises:
        UsageError: that run dies, or values cannot be captured.
    """
    if has_levels(case.graph.graph):
        raise UsageError(
            "values inside of a transform of torch.func cannot be saved, and the transform cannot be traced through",
            hint="Reduce a program that calls what is transformed by itself.",
        )
    found = []
    for i, inputs in enumerate(case.calls):
        if inputs.opaque:
            raise UsageError(f"call {i} cannot be repeated: {'; '.join(inputs.opaque)}")
        outcome = isolated(lambda inputs=inputs: _run(case, inputs), timeout_s=timeout_s)  # type: ignore[misc]
        if outcome.died or outcome.raised is not None:
            why = outcome.signal or (outcome.raised and f"{outcome.raised.type}: {outcome.raised.message}") or "timeout"
            raise UsageError(
                f"call {i}: the uncompiled graph cannot be run: {why}", hint="Only a case that works uncompiled fails."
            )
        values, *notes = msgspec.convert(outcome.value, Ran)
        positions = {n.name: k for k, n in enumerate(case.graph.graph.find_nodes(op="placeholder"))}
        found.append(Recording(inputs, positions, from_bytes(*values), *notes))
    return found


def _run(case: Case, inputs: CapturedValues) -> Ran:
    recorder = _Recorder(copy.deepcopy(case.graph))
    failed = None
    torch.manual_seed(SEED)
    with torch.set_grad_enabled(case.grad):
        try:
            recorder.run(*inputs.restore())
        except Exception:
            failed = recorder.current.name if recorder.current is not None else None
    return to_bytes(capture(recorder.kept, rng=False)), recorder.snapshots, recorder.writes, failed


class Storages(dict[str, torch.Tensor]):
    """Fresh memory for those storages of a capture that are asked for."""

    def __init__(self, captured: CapturedValues) -> None:
        super().__init__()
        self.captured = captured

    def __missing__(self, name: str) -> torch.Tensor:
        entry = self.captured.doc["storages"][name]
        self[name] = self.captured.tensors[name].clone().to(entry["device"])
        return self[name]
