"""The space that the search works in: pieces of one failing case, with the values that the whole case computes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.reduction.cut import Piece
from graphprobe.diagnose.reduction.edits import PASSES, EditPass, NotApplicable, Recipe, size_of
from graphprobe.diagnose.reduction.edits.measure import sharing
from graphprobe.diagnose.reduction.recording import Recording, record
from graphprobe.diagnose.reduction.transforms import with_plain_floats, without_transforms
from graphprobe.engine.naming import module_of, op_of
from graphprobe.engine.replay import flat_bits
from graphprobe.engine.subgraph import CALLS, attribute, is_item
from graphprobe.engine.values import CapturedValues, capture, why_not, why_opaque
from graphprobe.reduce.space import Shrink, Unit
from graphprobe.store.files import digest_from_bytes


@dataclass(frozen=True)
class FxCandidate:
    """A piece of a problem's case. Making one is cheap; its graph is built when somebody asks for it."""

    problem: Problem = field(repr=False)  # what it is a piece of
    recipe: Recipe  # how it is made

    @functools.cached_property
    def _built(self) -> tuple[GraphModule, list[list[Any]]]:
        return self.problem.build(self.recipe, fresh=False)

    @property
    def graph(self) -> GraphModule:
        """The graph; not to be changed."""
        return self._built[0]

    @property
    def inputs(self) -> list[Any]:
        """The values of the placeholders in the first call; not to be changed."""
        return self._built[1][0]

    @functools.cached_property
    def digest(self) -> str:
        """Equal for equal graphs with equal inputs, whatever they are called."""
        if self.recipe.edits:
            graph, calls = self._built
            values: Any = [[_identity(v) for v in inputs] + [sharing(inputs)] for inputs in calls]
        else:
            graph, values = self.graph, self.problem.digests(self.recipe)
        return combined(_structure(graph), values)

    @functools.cached_property
    def size(self) -> tuple[int, ...]:
        """How often the graph is called, then what `edits.size_of` measures."""
        return (len(self.problem.calls_of(self.recipe)), *size_of(self.graph, self.inputs))

    def changed(self, **parts: Any) -> FxCandidate | None:
        """The piece with other edits or calls; None if it cannot be built."""
        return self.problem.made(msgspec.structs.replace(self.recipe, **parts))

    @property
    def calls(self) -> int:
        """Calls in the graph."""
        return sum(n.op in CALLS and not is_item(n) for n in self.graph.graph.nodes)


class Problem:
    """A case with the values of all its nodes.

    Attributes:
        case: the whole.
        recordings: of its calls.
        base: how the case was made of another problem's; None for the original case.
        units: what can be left out: calls, each with those that only pick from its result or close what it opens.
    """

    def __init__(self, case: Case, recordings: Sequence[Recording], base: Recipe | None = None) -> None:
        self.case, self.recordings, self.base = case, list(recordings), base
        self._storages: dict[tuple[int, str], str] = {}
        self._groups = _groups(case.graph, self.recordings)
        paths = list(_paths([module_of(group[0]) for group in self._groups]))
        self.units: tuple[Unit, ...] = tuple(
            Unit(group[0].name, 1, path) for group, path in zip(self._groups, paths, strict=True)
        )

    @classmethod
    def of(cls, case: Case, *, timeout_s: float) -> Problem:
        """Run the case uncompiled and make a problem of it; raises UsageError when that cannot be done.

        A graph with transforms of `torch.func` is taken as the ATen ops that they lead to, floats that are inputs as
        numbers.
        """
        graph = with_plain_floats(without_transforms(case.graph, case.calls), case.calls)
        case = replace(case, graph=graph)
        return cls(case, record(case, timeout_s=timeout_s))

    def unit_of(self, name: str) -> int | None:
        """The number of the unit that holds this node."""
        return next((i for i, group in enumerate(self._groups) if any(n.name == name for n in group)), None)

    def whole(self) -> FxCandidate | None:
        """The piece with everything in it."""
        return self.candidate(frozenset(range(len(self.units))))

    def candidate(self, keep: frozenset[int]) -> FxCandidate | None:
        """The piece with these units; None if it cannot stand alone."""
        names = tuple(n.name for i in sorted(keep) for n in self._groups[i])
        if not names:
            return None
        return self.made(Recipe(names, base=self.base))

    def made(self, recipe: Recipe) -> FxCandidate | None:
        """The piece of a recipe; None if it cannot be built."""
        candidate = FxCandidate(self, recipe)
        try:
            _ = candidate.graph
        except NotApplicable:
            return None
        return candidate

    def calls_of(self, recipe: Recipe) -> tuple[int, ...]:
        """The numbers of the calls that a piece makes."""
        return recipe.calls if recipe.calls is not None else tuple(range(len(self.recordings)))

    def build(self, recipe: Recipe, *, fresh: bool = True) -> tuple[GraphModule, list[list[Any]]]:
        """A piece's graph, and its inputs for each call; `fresh` as for `Piece.inputs`.

        Raises:
            NotApplicable: it cannot be built.
        """
        piece = Piece(self.case.graph, recipe.keep, self.recordings)
        graph, calls = piece.graph, [piece.inputs(call, fresh=fresh) for call in self.calls_of(recipe)]
        for edit in recipe.edits:
            made = [edit.apply(graph, inputs) for inputs in calls]
            if any(str(g.graph) != str(made[0][0].graph) for g, _ in made[1:]):
                raise NotApplicable(f"{edit} makes another graph of each call")
            graph, calls = made[0][0], [inputs for _, inputs in made]
        return graph, calls

    def case_of(self, recipe: Recipe) -> Case:
        """A piece as a case with the settings of the whole; raises as `build` does."""
        graph, calls = self.build(recipe)
        return replace(self.case, graph=graph, calls=[capture(inputs) for inputs in calls], allowed=[])

    def digests(self, recipe: Recipe) -> list[Any]:
        """What identifies the inputs of a piece without edits."""
        piece = Piece(self.case.graph, recipe.keep, self.recordings)
        found = []
        for call in self.calls_of(recipe):
            memory: dict[tuple[int, str], int] = {}
            for i, source in enumerate(piece.sources):
                described, captured = piece.described(source, call)
                if described["kind"] == "tensor":
                    key = (id(captured), described["storage"])
                    described = {
                        **described,
                        "storage": self._storage(captured, key),
                        "first": memory.setdefault(key, i),
                    }
                found.append([call, source.written, described])
        return found

    def _storage(self, captured: CapturedValues, key: tuple[int, str]) -> str:
        if key not in self._storages:
            self._storages[key] = digest_from_bytes(captured.tensors[key[1]].numpy().tobytes())
        return self._storages[key]


def _groups(gm: GraphModule, recordings: Sequence[Recording]) -> list[list[Node]]:
    """The calls that ran, each with the calls that belong to it.

    Items belong to the call that made the tuple. What takes a value that cannot be saved, such as the mark of an
    autocast that it ends, belongs to the call that made the value. What the run did not come to is left out.
    """
    owner: dict[Node, Node] = {}
    groups: dict[Node, list[Node]] = {}
    for node in gm.graph.nodes:
        if node.op not in CALLS or not any(node.name in r.snapshots or node.name == r.failed for r in recordings):
            continue
        tied = (
            node.args[0] if is_item(node) else next((n for n in node.all_input_nodes if _opaque(n, recordings)), None)
        )
        if isinstance(tied, Node) and tied in owner:
            owner[node] = owner[tied]
        else:
            owner[node] = node
        groups.setdefault(owner[node], []).append(node)
    return list(groups.values())


def _opaque(node: Node, recordings: Sequence[Recording]) -> bool:
    record = recordings[0].first(node) if node.op in CALLS else None
    return record is not None and bool(why_opaque(record))


def _paths(modules: Sequence[str | None]) -> Iterator[tuple[str, ...]]:
    """The modules around each unit; one that is entered again counts as another, so that groups stand together."""
    entered: dict[str, int] = {}
    before: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    for module in modules:
        parts = module.split(".") if module else []
        names = tuple(".".join(parts[: i + 1]) for i in range(len(parts)))
        pairs = enumerate(zip(names, plain, strict=False))
        same = next((i for i, (name, other) in pairs if name != other), min(len(names), len(plain)))
        path = list(before[:same])
        for name in names[same:]:
            entered[name] = entered.get(name, 0) + 1
            path.append(name if entered[name] == 1 else f"{name}#{entered[name]}")
        before, plain = tuple(path), names
        yield before


class _Number(NamedTuple):
    """In the place of a node."""

    number: int


def _structure(gm: GraphModule) -> list[Any]:
    """A graph without its names: operations, arguments by number, attributes by content."""
    numbers: dict[Node, int] = {}
    rows: list[Any] = []
    for node in gm.graph.nodes:
        target: Any = None
        if node.op in ("call_function", "call_method"):
            target = op_of(node)
        elif node.op in ("get_attr", "call_module"):
            target = _identity(attribute(gm, node.target))
        rows.append([node.op, target, repr(map_arg((node.args, node.kwargs), lambda n: _Number(numbers[n])))])
        numbers[node] = len(numbers)
    return rows


def _identity(value: Any) -> Any:
    """What identifies an input or attribute: a tensor's bits, a graph's structure, a module's text and state."""
    if isinstance(value, torch.Tensor):
        return _of_tensor(value)
    if isinstance(value, GraphModule):
        return _structure(value)
    if isinstance(value, torch.nn.Module):
        return [type(value).__qualname__, repr(value), {k: _of_tensor(v) for k, v in value.state_dict().items()}]
    return repr(value)


def _of_tensor(value: torch.Tensor) -> list[Any]:
    """Dtype, shape, strides, place and bits."""
    bits = digest_from_bytes(flat_bits(value.cpu()).numpy().tobytes()) if why_not(value) is None else repr(value)
    return [str(value.dtype), list(value.shape), list(value.stride()), str(value.device), value.requires_grad, bits]


def combined(*parts: Any) -> str:
    """One digest of plain values."""
    return digest_from_bytes(msgspec.json.encode(parts))


@dataclass(frozen=True)
class EditShrink:
    """One pass of edits."""

    edits: EditPass

    @property
    def name(self) -> str:
        """For statistics and progress."""
        return self.edits.name

    def proposals(self, case: FxCandidate) -> Iterator[FxCandidate]:
        """The case with one more edit, the boldest first."""
        for edit in self.edits.proposals(case.graph, case.inputs):
            made = case.changed(edits=(*case.recipe.edits, edit))
            if made is not None:
                yield made


@dataclass(frozen=True)
class FewerCalls:
    """Makes the compiled function called less often: once, then without one of the calls."""

    name: str = "calls of the graph"

    def proposals(self, case: FxCandidate) -> Iterator[FxCandidate]:
        """The last call alone, the first alone, then each left out."""
        calls = case.problem.calls_of(case.recipe)
        if len(calls) < 2:
            return
        tries = [calls[-1:], calls[:1], *(calls[:i] + calls[i + 1 :] for i in reversed(range(len(calls))))]
        for few in dict.fromkeys(tries):
            made = case.changed(calls=few)
            if made is not None:
                yield made


def shrinks_for(problem: Problem) -> list[Shrink[FxCandidate]]:
    """What is tried once no unit can be left out, in this order."""
    found: list[Shrink[FxCandidate]] = [EditShrink(edits) for edits in PASSES]
    return [FewerCalls(), *found] if len(problem.recordings) > 1 else found
