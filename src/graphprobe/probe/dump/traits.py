"""What observers of overflows and of overwritten memory know of an op beforehand, read from the graph or the code."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch.fx import Graph, Node

from graphprobe.engine.naming import op_of
from graphprobe.internals.inductor.dump_taps import Lowered
from graphprobe.internals.launches.launch_io import LaunchIO, buffer_of
from graphprobe.internals.operators.operators import writes_to
from graphprobe.probe.dump.infinities import SILENT, Signs, Table, signs_of_graph, tables, union


@dataclass(frozen=True, slots=True, eq=False)
class OpTraits:
    """What is known of an op before it runs.

    Attributes:
        reads: names of the values it reads: FX nodes, or buffers of the compiled code.
        writes: by slot of its outputs, the name of the value that lies there then.
        returns: those of its values that the graph returns.
        mutates: slots of the inputs that it may write into.
        infinities: by slot of its outputs, which infinities are meant; `""` for slots that are not there.
    """

    reads: tuple[str, ...] = ()
    writes: Mapping[str, str] = field(default_factory=dict)
    returns: frozenset[str] = frozenset()
    mutates: tuple[str, ...] = ()
    infinities: Mapping[str, Table] = field(default_factory=dict)

    def meant(self, slot: str, reads: Signs) -> Signs:
        """Signs of the infinities that are meant in an output, if the inputs hold infinities of the signs `reads`."""
        table = self.infinities.get(slot, self.infinities.get("", SILENT))
        return table[("-" in reads) + 2 * ("+" in reads)]

    def may_write(self, slot: str) -> bool:
        """Whether the op may write into what lies in this slot of its inputs."""
        return any(slot == name or slot.startswith(name + ".") for name in self.mutates)


NONE = OpTraits()

_IN_PLACE = ("setitem", "iadd", "isub", "imul", "itruediv")


def traits_of_graph(graph: Graph) -> dict[Node, OpTraits]:
    """Those of each node."""
    whole = signs_of_graph(graph)
    returned = {found.name for node in graph.nodes if node.op == "output" for found in node.all_input_nodes}
    result = {}
    for node in graph.nodes:
        result[node] = OpTraits(
            tuple(read.name for read in node.all_input_nodes),
            {"output.0": node.name},
            frozenset({node.name} & returned),
            tuple(_mutated_slots(node)),
            {"": union([tables([node], whole)[node]])},
        )
    return result


def traits_of_launches(ios: Sequence[LaunchIO], lowered: Lowered) -> list[OpTraits]:
    """Those of each launch of a wrapper, and of its inputs before them."""
    graphs = {id(node.graph): node.graph for node in lowered.fx.values()}
    whole: dict[Node, Signs] = {}
    for graph in graphs.values():
        whole |= signs_of_graph(graph)
    order = {node: index for index, node in enumerate(whole)}
    origins = {node.name: [origin.name for origin in node.origins] for node in lowered.nodes}
    returned = _returned(lowered.code, {use.name for io in ios for use in io.writes})
    result = []
    for io in ios:
        names = {name for node in io.nodes for name in origins.get(node, ())}
        nodes = sorted((lowered.fx[name] for name in names if name in lowered.fx), key=lambda node: order[node])
        found = tables([node for node in nodes if node.op != "placeholder"], whole)
        infinities = {"": union(found.values())} if found else {}
        writes = {}
        returns = set()
        for index, use in enumerate(io.writes):
            value = use.value or use.name
            writes[f"output.{index}"] = value
            node = lowered.fx.get(lowered.values.get(value, ""))
            if node is not None and node in found:
                infinities[f"output.{index}"] = union([found[node]])
            if use.name in returned:
                returns.add(value)
        into = {use.name for use in io.writes if use.position is not None}
        mutates = tuple(f"input.{index}" for index, use in enumerate(io.reads) if use.name in into)
        reads = tuple(use.value or use.name for use in io.reads)
        result.append(OpTraits(reads, writes, frozenset(returns), mutates, infinities))
    return result


def _mutated_slots(node: Node) -> list[str]:
    written = writes_to(node)
    name = op_of(node).rpartition(".")[2] if node.op in ("call_function", "call_method") else ""
    in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    if not written and in_place and node.args and "_schema" not in dir(node.target):
        written = [node.args[0]]
    out = node.kwargs.get("out")
    written = [*written, *_listed(out)]
    slots = [(f"input.{index}", value) for index, value in enumerate(node.args)]
    slots += [(f"kwarg.{name}", value) for name, value in node.kwargs.items()]
    return [slot for slot, value in slots if any(into is not None and into in _listed(value) for into in written)]


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _returned(code: str, written: set[str]) -> set[str]:
    """The variables that launches write and the wrapper returns, be it as a view or under another name."""
    parents: dict[str, str] = {}
    found: set[str] = set()
    for function in ast.walk(ast.parse(code)):
        if not isinstance(function, ast.FunctionDef) or function.name != "call":
            continue
        for line in ast.walk(function):
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                base = buffer_of(line.value)
                if base is not None:
                    parents[line.targets[0].id] = base
            if isinstance(line, ast.Return) and isinstance(line.value, ast.Tuple):
                found |= {name for item in line.value.elts if (name := buffer_of(item)) is not None}
    for name in list(found):
        seen = {name}
        while name not in written and name in parents and parents[name] not in seen:
            name = parents[name]
            seen.add(name)
        found.add(name)
    return found
