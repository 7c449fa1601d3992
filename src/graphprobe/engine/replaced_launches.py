"""Runs a compiled graph as it is, with some of its launches replaced by what they were made from.

Nothing is compiled again and nothing is fused otherwise: the wrapper runs line by line, and in the place of a replaced
launch the FX nodes behind it, or its IR in plain torch, fill the very buffers that the kernel would have filled.

A launch is replaced by the piece of the FX graph that it was made from, if there is one. It writes buffers, and each
buffer that later launches need has to be the value of one FX node. From these nodes back, the graph has to end at
values that the launch reads. Where it does not (values that a lowering made on its way, or memory that is written to),
Inductor's IR of the launch takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node

from graphprobe.engine.interpret import Copy, copied, copied_together, flat_outputs
from graphprobe.engine.naming import op_of
from graphprobe.internals.inductor.lowered_graph import LoweredGraph
from graphprobe.internals.ir.index import NotEvaluated, evaluate
from graphprobe.internals.launch_io import LaunchIO, Use, launch_ios
from graphprobe.internals.launches import Launching, LaunchTap
from graphprobe.internals.operators.operators import value_of, writes_to
from graphprobe.internals.tensors import storage_ids

DRAWS = torch.Tag.nondeterministic_seeded
COPY = "aten.copy_.default"

How = Literal["graph", "ir", "no"]


class NoGraph(Exception):
    """There is no such piece of the graph, and why."""


@dataclass(frozen=True)
class LaunchPiece:
    """A piece of the FX graph that computes what a launch computes.

    Attributes:
        graph: takes the values of `takes`, in order, and returns those of `gives`.
        takes: what the launch reads.
        gives: what the launch writes and others need.
        nodes: names of the FX nodes in it.
        numbers: expressions of the symbolic numbers that the piece takes after `takes`.
    """

    graph: GraphModule
    takes: tuple[Use, ...]
    gives: tuple[Use, ...]
    nodes: tuple[str, ...]
    numbers: tuple[Any, ...]


def piece_of(lowered: LoweredGraph, launch: LaunchIO, needed: Sequence[Use]) -> LaunchPiece:
    """The piece of the final graph behind a launch.

    Args:
        needed: what the launch writes and others need.

    Raises:
        NoGraph: see the message.
    """
    sources = _sources(lowered, launch)
    goals: list[Node] = []
    for use in needed:
        node = _goal(lowered, use)
        if node in sources:
            raise NoGraph(f"{use.value} is {node.name}, which it reads")
        goals.append(node)
    if not goals:
        raise NoGraph("it writes nothing that others need")
    nodes, numbers = _between(goals, set(sources))
    used = {n for node in nodes for n in node.all_input_nodes}
    missed = [str(use.value) for node, use in sources.items() if node not in used]
    if missed:
        raise NoGraph(f"it reads {', '.join(missed)}, which the graph has no need of here")
    return _piece(lowered.final, sources, needed, goals, nodes, numbers)


def _sources(lowered: LoweredGraph, launch: LaunchIO) -> dict[Node, Use]:
    """The FX nodes whose values the launch gets."""
    found: dict[Node, Use] = {}
    for use in launch.reads:
        name = str(use.value)
        if lowered.is_constant(name):
            continue  # the graph has it as well
        if name != use.name and name in lowered.inputs:
            raise NoGraph(f"{use.name} took over the memory of {name}")
        node = lowered.origin(name)
        if node is None:
            raise NoGraph(f"it reads {name}, which is no value of the graph")
        if node.op == "call_function" and writes_to(node):
            raise NoGraph(f"it reads {name}, into which {node.name} wrote")
        if not isinstance(value_of(node), torch.Tensor):
            raise NoGraph(f"it reads {name}, which is several values or none")
        found.setdefault(node, use)
    return found


def _goal(lowered: LoweredGraph, use: Use) -> Node:
    """The FX node whose value a buffer holds at the end."""
    node: Node | None = lowered.origin(str(use.value))
    if node is None:
        raise NoGraph(f"it writes {use.value}, which is no value of the graph")
    if node.op != "call_function":
        raise NoGraph(f"it writes {use.value}, which is {node.op} {node.name}")
    if op_of(node) == COPY and isinstance(node.args[1], Node):
        source, target = node.args[1], node.args[0]
        if isinstance(target, Node) and _form(source) == _form(target):
            return source  # a write into an input at the very end
    if writes_to(node):
        raise NoGraph(f"{node.name} writes into {use.value}")
    if not isinstance(value_of(node), torch.Tensor):
        raise NoGraph(f"it writes {use.value}, which is several values or none")
    return node


def _form(node: Node) -> Any:
    value = value_of(node)
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else node


def _between(goals: Sequence[Node], sources: set[Node]) -> tuple[list[Node], list[Node]]:
    """Calls and attributes from `sources` to `goals`, in any order, and the symbolic numbers that they take."""
    found: dict[Node, None] = {}
    numbers: dict[Node, None] = {}
    waiting = list(goals)
    while waiting:
        node = waiting.pop()
        if node in found or node in sources or node in numbers:
            continue
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
            numbers[node] = None
            continue
        if node.op == "placeholder":
            raise NoGraph(f"{node.name} is needed, which it does not read")
        if node.op == "call_function" and writes_to(node):
            raise NoGraph(f"{node.name} writes to its argument")
        if DRAWS in getattr(node.target, "tags", ()) and "attention" not in str(node.target):
            raise NoGraph(f"{node.name} draws random numbers")
        if "inductor_random" in str(node.target) or "inductor_seed" in str(node.target):
            raise NoGraph(f"{node.name} draws random numbers")
        found[node] = None
        waiting += node.all_input_nodes
    return list(found), list(numbers)


def _piece(
    final: GraphModule,
    sources: dict[Node, Use],
    needed: Sequence[Use],
    goals: Sequence[Node],
    nodes: Sequence[Node],
    numbers: Sequence[Node],
) -> LaunchPiece:
    graph = Graph()
    made: dict[Node, Node] = {}
    for node in [*sources, *numbers]:
        made[node] = graph.placeholder(node.name)
    inside = set(nodes)
    for node in final.graph.nodes:
        if node in inside:
            made[node] = graph.node_copy(node, lambda n: made[n])
    graph.output(tuple(made[node] for node in goals))
    names = tuple(node.name for node in final.graph.nodes if node in inside)
    expressions = tuple(node.meta["val"].node.expr for node in numbers)
    return LaunchPiece(GraphModule(final, graph), tuple(sources.values()), tuple(needed), names, expressions)


@dataclass
class MixedLaunch:
    """One launch of a compiled graph, in the order of its lines.

    Attributes:
        io: name, line, what it reads and writes.
        how: what it can be replaced by: the `graph`'s piece, its `ir`, or `no`thing.
        reason: why it is not the graph's piece, or nothing at all.
        piece: of the graph.
        needed: what it writes and others need.
        sources: FX nodes it stems from, by the scheduler's account.
        lines: source lines of the user's program behind these.
    """

    io: LaunchIO
    how: How
    reason: str
    piece: LaunchPiece | None
    needed: tuple[Use, ...]
    sources: tuple[str, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class MixedRun:
    """What one run gave.

    Attributes:
        outputs: of the graph, flat; those that lie in the memory of inputs do so here.
        inputs: of the graph, after the run.
        replaced: positions of the launches that were replaced.
        ran: positions of the launches in the order in which they ran.
    """

    outputs: list[Any]
    inputs: list[Any]
    replaced: frozenset[int]
    ran: list[int]


class CannotReplaceError(Exception):
    """A launch could not be replaced in this run."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"launch {position}: {reason}")
        self.position, self.reason = position, reason


class MixedGraph:
    """A compiled graph whose launches can be replaced one by one.

    Attributes:
        launches: all of them.
        module: the generated module that runs.
        runs: how often it was run.
    """

    def __init__(self, lowered: LoweredGraph, compiled: Callable[[list[Any]], Any], copy: Copy = torch.clone) -> None:
        """`compiled` is the boxed callable that runs `lowered.module`, in this process; `copy` is for its inputs."""
        self._lowered, self._compiled, self._copy = lowered, compiled, copy
        self.launches: list[MixedLaunch] = []
        self.module = lowered.module
        self.runs = 0
        ios = launch_ios(lowered.code, lowered.nodes)
        nodes = {node.name: node for node in lowered.nodes}
        for io in ios.values():
            origins = [origin for name in io.nodes for origin in nodes[name].origins]
            needed = self._needed(io, ios)
            lines = tuple(sorted({origin.source for origin in origins if origin.source}))
            sources = tuple(dict.fromkeys(origin.name for origin in origins))
            self.launches.append(MixedLaunch(io, *self._how(io, needed), needed, sources, lines))
        self._positions = {launch.io.line: at for at, launch in enumerate(self.launches)}

    def _needed(self, io: LaunchIO, ios: Mapping[int, LaunchIO]) -> tuple[Use, ...]:
        """What a launch writes that other launches read, or that leaves the graph."""
        leaving = self._lowered.outputs()
        others = [use for other in ios.values() if other is not io for use in other.reads]
        wanted = leaving | {str(use.value) for use in others} | {use.name for use in others}

        def is_needed(use: Use) -> bool:
            buffer = str(use.value)
            # The wrapper itself may look at a number; a write into other memory may be seen by whoever reads that.
            elsewhere = buffer != use.name or self._lowered.lies_in_another(buffer)
            return bool({buffer, use.name} & wanted) or elsewhere or self._lowered.is_scalar(buffer)

        kept = [use for use in io.writes if is_needed(use)]
        return tuple({str(use.value): use for use in kept}.values())

    def _how(self, io: LaunchIO, needed: Sequence[Use]) -> tuple[How, str, LaunchPiece | None]:
        if not io.nodes:
            return "no", "it belongs to a nested graph, or to no node of the scheduler", None
        try:
            return "graph", "", piece_of(self._lowered, io, needed)
        except NoGraph as error:
            return "ir", str(error), None

    def run(self, inputs: Sequence[Any], replaced: Collection[int] = (), *, forgiving: bool = False) -> MixedRun:
        """Run once on copies of `inputs`, the launches at the positions `replaced` replaced.

        Args:
            forgiving: a launch that cannot be replaced after all is launched, and its `how` is `no` from then on.

        Raises:
            CannotReplaceError: a launch cannot be replaced, unless `forgiving`.
        """
        wanted = frozenset(replaced)
        ran: list[int] = []
        done: set[int] = set()

        def around(launching: Launching) -> Any:
            at = self._positions.get(launching.line)
            if at is None:
                return launching.run()
            ran.append(at)
            if at not in wanted:
                return launching.run()
            try:
                result = self._replace(at, launching)
            except CannotReplaceError as error:
                if not forgiving:
                    raise
                self.launches[at].how, self.launches[at].reason = "no", error.reason
                return launching.run()
            done.add(at)
            return result

        given = copied_together(inputs, self._copy)
        boxed = list(given)
        tap = LaunchTap(self._lowered.module, self._lowered.code, around=around)
        self.runs += 1
        memory = storage_ids(given)
        with torch.no_grad(), tap.recording():
            results = flat_outputs(self._compiled(boxed))
            outputs = [value if memory & storage_ids([value]) else copied(value) for value in results]
        return MixedRun(outputs, given, frozenset(done), ran)

    def _replace(self, at: int, launching: Launching) -> Any:
        launch = self.launches[at]
        variables = launching.variables()
        if launch.how == "graph" and launch.piece is not None:
            try:
                return self._filled(launch, self._from_graph(launch.piece, variables), variables)
            except Exception as error:
                launch.how, launch.reason = "ir", f"its piece of the graph cannot be run: {_first_line(error)}"
        if launch.how == "no":
            raise CannotReplaceError(at, launch.reason)
        try:
            return self._filled(launch, self._from_ir(launch, variables), variables)
        except Exception as error:
            reason = f"{launch.reason}; and its IR cannot be evaluated: {_first_line(error)}"
            raise CannotReplaceError(at, reason) from error

    def _from_graph(self, piece: LaunchPiece, variables: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        symbols = self._lowered.symbols(variables)
        given = [self._value(use, variables, symbols) for use in piece.takes]
        numbers = [evaluate(expr, symbols) for expr in piece.numbers]
        results = Interpreter(piece.graph).run(*(copied(v) for v in given), *numbers)
        return {str(use.value): value for use, value in zip(piece.gives, results, strict=True)}

    def _from_ir(self, launch: MixedLaunch, variables: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        symbols = self._lowered.symbols(variables)
        given: dict[str, torch.Tensor] = {}
        for use in (*launch.io.reads, *(w for w in launch.io.writes if w.value != w.name)):
            memory = variables[use.name]
            given.setdefault(self._lowered.memory_of(str(use.value)), self._value(use, variables, symbols))
            if use.name in self._lowered.inputs:
                given[use.name] = memory
        values, lost = self._lowered.evaluate(launch.io.nodes, given, symbols)
        missing = [str(use.value) for use in launch.needed if use.value not in values]
        if missing:
            raise NotEvaluated(next((lost[name] for name in missing if name in lost), f"{missing[0]} has no value"))
        return values

    def _value(self, use: Use, variables: Mapping[str, Any], symbols: Mapping[Any, Any]) -> torch.Tensor:
        """The value of a buffer as the launch finds it."""
        memory = variables[use.name]
        assert isinstance(memory, torch.Tensor)
        layout = self._lowered.layout(str(use.value), symbols)
        if layout is None or use.name in self._lowered.inputs:
            return memory
        return layout.view(memory)

    def _filled(self, launch: MixedLaunch, values: Mapping[str, torch.Tensor], variables: Mapping[str, Any]) -> Any:
        """Copy values to where the launch would have written them; returns what the launch would have returned."""
        symbols = self._lowered.symbols(variables)
        results: dict[tuple[int, ...], torch.Tensor] = {}
        for use in launch.io.writes:
            value = values.get(str(use.value))
            if value is None:
                continue
            if use.result is not None:
                results[use.result] = self._result(str(use.value), value, symbols)
                continue
            target = self._value(use, variables, symbols)
            if value.ndim == 1 and self._lowered.memory_of(str(use.value)) != use.value and target.ndim != 1:
                target = target.as_strided(value.shape, (1,), target.storage_offset())
            if target.shape != value.shape:
                raise ValueError(f"{use.value} is {tuple(target.shape)}, and its value {tuple(value.shape)}")
            target.copy_(value)
        return _nested(results)

    def _result(self, name: str, value: torch.Tensor, symbols: Mapping[Any, Any]) -> torch.Tensor:
        """The value, laid out as the generated code expects it."""
        try:
            layout = self._lowered.layout(name, symbols)
        except NotEvaluated:  # a size that is known only now
            layout = None
        if layout is None:
            return value.clone()
        if layout.size != tuple(value.shape):
            raise ValueError(f"{name} is {layout.size}, and its value {tuple(value.shape)}")
        return layout.empty().copy_(value)


def _first_line(error: Exception) -> str:
    text = str(error).split("\n")[0]
    return text if isinstance(error, NotEvaluated) else f"{type(error).__name__}: {text}"


def _nested(results: Mapping[tuple[int, ...], torch.Tensor]) -> Any:
    """Tensors at their places in nested tuples, None elsewhere."""
    if not results or () in results:
        return results.get(())
    width = 1 + max(path[0] for path in results)
    return tuple(_nested({path[1:]: v for path, v in results.items() if path[0] == at}) for at in range(width))
