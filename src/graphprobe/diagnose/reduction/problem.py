"""The space that the search works in: pieces of one failing case, with the values that the whole case computes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from torch.fx import GraphModule, Node

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.reduction import digest
from graphprobe.diagnose.reduction.cut import CannotCut, Piece, cut, inputs_of, is_opaque, record_of
from graphprobe.diagnose.reduction.edits import Edit, NotApplicable, Recipe, size_of
from graphprobe.diagnose.reduction.recording import Recording, record
from graphprobe.diagnose.reduction.transforms import with_plain_floats, without_transforms
from graphprobe.engine.naming import module_of
from graphprobe.engine.subgraph import CALLS, is_item
from graphprobe.engine.values import CapturedValues, capture
from graphprobe.reduce.space import Unit
from graphprobe.store.files import digest_from_bytes


@dataclass(frozen=True)
class FxCandidate:
    """A piece of a problem's case. Making one is cheap; its graph is built when somebody asks for it.

    Attributes:
        problem: what it is a piece of.
        recipe: how it is made.
    """

    problem: Problem = field(repr=False)
    recipe: Recipe

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
            values: Any = [[digest.of_value(v) for v in inputs] + [digest.sharing(inputs)] for inputs in calls]
        else:
            graph, values = self.graph, self.problem.digests(self.recipe)
        return digest.combined(digest.structure(graph), values)

    @functools.cached_property
    def size(self) -> tuple[int, ...]:
        """How often the graph is called, then what `edits.size_of` measures."""
        return (len(self.problem.calls_of(self.recipe)), *size_of(self.graph, self.inputs))

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

    def rebased(self, recipe: Recipe, *, timeout_s: float) -> Problem:
        """A piece as a problem of its own, so that edited calls can be left out.

        Raises:
            UsageError, CannotCut, NotApplicable: it cannot be built or run.
        """
        case = self.case_of(recipe)
        return Problem(case, record(case, timeout_s=timeout_s), recipe)

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
        except (CannotCut, NotApplicable):
            return None
        return candidate

    def edited(self, candidate: FxCandidate, edit: Edit) -> FxCandidate | None:
        """The piece with one more edit."""
        recipe = candidate.recipe
        return self.made(msgspec.structs.replace(recipe, edits=(*recipe.edits, edit)))

    def with_calls(self, candidate: FxCandidate, calls: tuple[int, ...]) -> FxCandidate | None:
        """The piece with some of its calls."""
        return self.made(msgspec.structs.replace(candidate.recipe, calls=calls))

    def calls_of(self, recipe: Recipe) -> tuple[int, ...]:
        """The numbers of the calls that a piece makes."""
        return recipe.calls if recipe.calls is not None else tuple(range(len(self.recordings)))

    def piece(self, recipe: Recipe) -> Piece:
        """The piece before any edit; raises CannotCut."""
        return cut(self.case.graph, set(recipe.keep), self.recordings)

    def build(self, recipe: Recipe, *, fresh: bool = True) -> tuple[GraphModule, list[list[Any]]]:
        """A piece's graph, and its inputs for each call; `fresh` as for `inputs_of`.

        Raises:
            CannotCut, NotApplicable: it cannot be built.
        """
        piece = self.piece(recipe)
        graph, calls = piece.graph, [inputs_of(piece, self.recordings, c, fresh=fresh) for c in self.calls_of(recipe)]
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
        piece = self.piece(recipe)
        found = []
        for call in self.calls_of(recipe):
            memory: dict[tuple[int, str], int] = {}
            for i, source in enumerate(piece.sources):
                described, captured = record_of(source, self.recordings, call)
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
        if node.op not in CALLS or not _ran(node, recordings):
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


def _ran(node: Node, recordings: Sequence[Recording]) -> bool:
    return any(node.name in r.snapshots or node.name == r.failed for r in recordings)


def _opaque(node: Node, recordings: Sequence[Recording]) -> bool:
    snapshots = recordings[0].snapshots.get(node.name)
    if node.op not in CALLS or not snapshots:
        return False
    return is_opaque(recordings[0].record(node.name, snapshots[0][1]))


def _paths(modules: Sequence[str | None]) -> Iterator[tuple[str, ...]]:
    """The modules around each unit; one that is entered again counts as another, so that groups stand together."""
    entered: dict[str, int] = {}
    before: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    for module in modules:
        parts = module.split(".") if module else []
        names = tuple(".".join(parts[: i + 1]) for i in range(len(parts)))
        same = 0
        while same < min(len(names), len(plain)) and names[same] == plain[same]:
            same += 1
        path = list(before[:same])
        for name in names[same:]:
            entered[name] = entered.get(name, 0) + 1
            path.append(name if entered[name] == 1 else f"{name}#{entered[name]}")
        before, plain = tuple(path), names
        yield before
