"""Graphs that are equal but for the values in them, such as those of a model's blocks: one of them is looked into."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch.fx import GraphModule

from graphprobe.diagnose.program import Call, Program
from graphprobe.engine.forked_child import isolated
from graphprobe.findings import Diagnosis
from graphprobe.internals.dynamo.compile_calls import Compiled
from graphprobe.internals.quiet import is_fake, quiet
from graphprobe.settings.limits import STEP_LIMIT_S, TimeBudget

EQUAL = "{count} equal graphs, looked into once, with the values of the first"
"""The note on them."""


def fingerprint(gm: GraphModule) -> str:
    """A digest of what a graph computes: its calls with their arguments, its constants, the forms of its values."""
    made = hashlib.blake2b(digest_size=16)
    constants: list[Any] = [*gm.parameters(), *gm.buffers()]
    for part in gm.modules():
        made.update(part.code.encode() if isinstance(part, GraphModule) else repr(part).encode())
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            made.update(repr(form_of(node.meta.get("val", node.meta.get("example_value")))).encode())
            if node.op == "get_attr":
                constants.append(attrgetter(node.target)(part))
    with quiet():
        for tensor in filter(_is_plain, constants):
            flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
            made.update(repr((form_of(tensor), tensor.requires_grad)).encode())
            made.update(flat.reshape(-1).view(torch.uint8).numpy().data)
    return made.hexdigest()


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not is_fake(value)


def form_of(value: Any) -> Any:
    """Shape, strides, dtype, device and `requires_grad` of a tensor, of each in a list; of all else the type."""
    if isinstance(value, (list, tuple)):
        return [form_of(item) for item in value]
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    stride = tuple(map(str, value.stride())) if value.layout is torch.strided else ()
    return tuple(map(str, value.shape)), stride, value.dtype, value.device, value.requires_grad


@dataclass
class Looked:
    """A diagnosis, what it was of, and of how many functions; `graphs`: their fingerprints, once asked for."""

    compiled: Compiled
    calls: Sequence[Call]
    diagnosis: Diagnosis
    graphs: list[str] | None = None
    count: int = 1


class EqualGraphs:
    """The compiled functions of a program that were diagnosed, for those that have the same graphs."""

    def __init__(self) -> None:
        self._looked: dict[Any, list[Looked]] = {}  # those that may be equal together

    def add(self, compiled: Compiled, signatures: Iterable[Any], calls: Sequence[Call], diagnosis: Diagnosis) -> None:
        """Remember what was diagnosed."""
        if not diagnosis.unfinished:
            self._looked.setdefault(_look(compiled, signatures), []).append(Looked(compiled, calls, diagnosis))

    def has(self, compiled: Compiled, signatures: Iterable[Any], calls: Sequence[Call], budget: TimeBudget) -> bool:
        """Whether a function with the same graphs was diagnosed: then this one is counted there, and runs as that does.

        Args:
            signatures: of its calls so far.
            budget: for finding out.

        Raises:
            NoTimeLeft: the budget was ended meanwhile.
        """
        looked = self._looked.get(_look(compiled, signatures), [])
        graphs = graphs_of(compiled, calls, budget) if looked else []
        for known in looked if graphs else ():
            if known.graphs is None:
                known.graphs = graphs_of(known.compiled, known.calls, budget)
            if known.graphs == graphs:
                notes = known.diagnosis.notes
                notes[:] = [note for note in notes if note != EQUAL.format(count=known.count)]
                known.count += 1
                notes.append(EQUAL.format(count=known.count))
                compiled.uncompiled = known.compiled.uncompiled
                return True
        return False

    def told(self, diagnoses: Sequence[tuple[str, Diagnosis]]) -> list[tuple[str, str]]:
        """Of the functions whose diagnosis was one for several: name and note."""
        everything = chain.from_iterable(self._looked.values())
        counts = {id(looked.diagnosis): looked.count for looked in everything if looked.count > 1}
        return [(name, EQUAL.format(count=counts[id(d)])) for name, d in diagnoses if id(d) in counts]


def _look(compiled: Compiled, signatures: Iterable[Any]) -> tuple[Any, ...]:
    """What compiled functions have in common that may have equal graphs: class, code, forms of the state, settings."""
    fn = compiled.fn
    owner = getattr(fn, "__self__", fn)
    state: list[Any] = []
    if isinstance(owner, torch.nn.Module):
        state = [(name, form_of(value)) for name, value in [*owner.named_parameters(), *owner.named_buffers()]]
    code = getattr(fn, "__code__", None), type(owner)
    settings = (compiled.backend, compiled.dynamic, compiled.mode, compiled.options, compiled.fullgraph)
    return code, repr(state), repr(settings), *signatures


def graphs_of(compiled: Compiled, calls: Sequence[Call], budget: TimeBudget) -> list[str]:
    """Fingerprints of the graphs that Dynamo makes of these calls, made in a child process; none if that fails."""

    def step() -> list[str]:
        found: list[str] = []

        def backend(gm: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            found.append(fingerprint(gm))
            return gm.forward

        torch.compiler.reset()
        made = torch.compile(compiled.fn, backend=backend, dynamic=compiled.dynamic, fullgraph=compiled.fullgraph)
        Program(compiled.fn, calls, effects=False).run(lambda fn: made)
        return found

    return isolated(step, timeout_s=min(STEP_LIMIT_S, budget.left_s), wait=budget.check).value or []
