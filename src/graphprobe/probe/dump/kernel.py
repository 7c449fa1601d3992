"""Dumps between the launches of Inductor's compiled code, which is left as it is, with each launch as an op."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from graphprobe.engine.naming import op_of
from graphprobe.internals.inductor.lowered_graph import Lowered, NotSeen, lower
from graphprobe.internals.ir.records import IRNode
from graphprobe.internals.launch_io import LaunchIO, Use, launch_ios
from graphprobe.internals.launches import Launching, LaunchTap
from graphprobe.internals.unseen import unseen
from graphprobe.probe.dump.facts import DATA_OPS, facts_of, info_of, is_scoped, source_text
from graphprobe.probe.dump.running import DumpGraph, DumpModel, GraphOp, Values, current_call, under_way
from graphprobe.probe.dump.traits import OpTraits, traits_of_launches, type_of
from graphprobe.records import Direction
from graphprobe.select import OpFacts
from graphprobe.store.dump_records import OpInfo

Arguments = tuple[Any, ...]


def compile_watched(model: DumpModel, gm: GraphModule, example_inputs: Sequence[Any], settings: dict[str, Any]) -> Any:
    """Inductor's last part on a graph of AOTAutograd; what comes out tells the dump of its launches."""
    direction: Direction = "backward" if settings.get("is_backward") else "forward"
    session = model.session
    try:
        output, lowered = lower(gm, example_inputs, settings)
    except NotSeen as error:
        session.failed(f"reading what {model.name}'s {direction} graph was lowered to", error.error)
        return error.output
    if not callable(getattr(output, "current_callable", None)):
        return output  # a graph without a call to compile
    if lowered is None or lowered.module is None:
        session.missing("no Python wrapper to watch (cpp_wrapper, or a graph without kernels)", model.name, "graph")
        return output
    try:
        trains = direction == "forward" and not settings.get("is_inference")
        output.current_callable = _watched(model, direction, lowered, output.current_callable, trains)
    except Exception as error:
        session.failed(f"reading the code of {model.name}'s {direction} graph", error)
    return output


def _watched(
    model: DumpModel, direction: Direction, lowered: Lowered, plain: Callable[[Any], Any], trains: bool
) -> Callable[[Any], Any]:
    assert lowered.module is not None
    session = model.session
    data, launches = ops_of_code(lowered, direction)
    by_line = {op.line: op for op in launches}
    all_ops = [*data, *(op.op for op in launches)]
    graph = session.graph(DumpGraph(model, direction, all_ops, "kernel", perturbs=False, trains=trains))
    tap = LaunchTap(lowered.module, lowered.code, around=lambda launching: _around(graph, by_line, launching))

    def run(inputs: Any) -> Any:
        forward, call = session.begin(graph, inputs)
        if call is None:
            with unseen:
                result = plain(inputs)
        else:
            with unseen, under_way(call):
                for op in data:
                    if op.index in call.wanted:
                        call.after(call.before(op.index, ()), (("output.0", inputs[op.index]),))
                with tap.recording():
                    result = call.result = plain(inputs)
        session.finish(graph, forward, result)
        return result

    run.__dict__.update(getattr(plain, "__dict__", {}))
    return run


def _around(graph: DumpGraph, by_line: dict[int, LaunchOp], launching: Launching) -> Any:
    """One launch, told to the call under way on this thread."""
    call = current_call()
    found = by_line.get(launching.line)
    if call is None or call.graph is not graph or found is None or found.op.index not in call.wanted:
        with unseen:
            return launching.run()
    execution = None
    try:
        execution = call.before(found.op.index, found.inputs(launching.args, launching.kwargs))
    except Exception as error:
        graph.model.session.failed(f"reading the arguments of {found.op.info.op_name}", error)
    try:
        with unseen:
            result = launching.run()
    except BaseException as error:
        call.raised(execution, error)
        raise
    if execution is not None:
        try:
            outputs = found.outputs(launching.args, launching.kwargs, result)
        except Exception as error:
            graph.model.session.failed(f"reading what {found.op.info.op_name} wrote", error)
        else:
            call.after(execution, outputs)
    return result


class LaunchOp:
    """A launch of a wrapper: the op, and the line it is on."""

    __slots__ = ("_buffers", "_reads", "_writes", "line", "op")

    def __init__(self, op: GraphOp, io: LaunchIO) -> None:
        self.op = op
        self.line = io.line
        self._reads = [(f"input.{index}", use) for index, use in enumerate(io.reads)]
        self._writes = [(f"output.{index}", use) for index, use in enumerate(io.writes)]
        self._buffers = frozenset(use.position for use in (*io.reads, *io.writes))

    def inputs(self, args: Arguments, kwargs: Mapping[str, Any]) -> Values:
        """The buffers it is about to read, and its arguments that are no buffers."""
        found = [(slot, _taken(use, args, kwargs)) for slot, use in self._reads]
        buffers = self._buffers
        found += [(f"arg.{i}", value) for i, value in enumerate(args) if i not in buffers]
        return found + [(f"arg.{name}", value) for name, value in kwargs.items() if name not in buffers]

    def outputs(self, args: Arguments, kwargs: Mapping[str, Any], result: Any) -> Values:
        """The buffers it has written."""
        return [
            (slot, _taken(use, args, kwargs) if use.result is None else _inside(result, use.result))
            for slot, use in self._writes
        ]


def ops_of_code(lowered: Lowered, direction: Direction) -> tuple[list[GraphOp], list[LaunchOp]]:
    """The inputs of a wrapper, whose indices are their positions, and its launches, in the order of lines."""
    data = [_data_op(index, name, lowered.fx.get(name), direction) for index, name in enumerate(lowered.inputs)]
    position = {name: index for index, name in enumerate(lowered.inputs)}
    nodes = {node.name: node for node in lowered.nodes}
    found = []
    ios = list(launch_ios(lowered.code, lowered.nodes).values())
    traits = traits_of_launches(ios, lowered)
    for number, io in enumerate(ios):
        ran = [nodes[name] for name in io.nodes]
        index = len(data) + number
        reads = tuple(dict.fromkeys(position[use.name] for use in io.reads if use.name in position))
        facts, info = _facts(io, number, ran, lowered, direction)
        scoped = any(is_scoped(lowered.fx[name]) for name in info.fx_nodes)
        notes = _notes(io, lowered.values)
        op = GraphOp(index, info, facts, reads_data=reads, notes=notes, scoped=scoped, traits=traits[number])
        found.append(LaunchOp(op, io))
    return data, found


def _data_op(index: int, name: str, node: Node | None, direction: Direction) -> GraphOp:
    facts = OpFacts(names=(name,)) if node is None else facts_of(node)
    info = info_of(facts, direction, "kernel", perturbs=False)
    return GraphOp(index, info, facts, data=True, traits=OpTraits(writes={"output.0": name}))


def _facts(
    io: LaunchIO, number: int, nodes: Sequence[IRNode], lowered: Lowered, direction: Direction
) -> tuple[OpFacts, OpInfo]:
    """What a launch is selected by, from all the FX nodes it was lowered from, and what its records say."""
    names = dict.fromkeys(origin.name for node in nodes for origin in node.origins)
    origins = [lowered.fx[name] for name in names if name in lowered.fx and lowered.fx[name].op not in DATA_OPS]
    origins = _carried_out(origins, io, lowered.values)
    facts = [facts_of(origin) for origin in origins]
    buffers = [name for use in io.writes for name in (use.value, use.name) if name is not None]
    op_name = f"{io.name.removeprefix('extern_kernels.')}.{number}"
    own_target = (io.name,) if io.kind == "op" else ()
    own = (op_name, io.name, *(node.name for node in nodes), *buffers)
    all_of = OpFacts(
        names=tuple(dict.fromkeys((*own, *(origin.name for origin in origins)))),
        targets=tuple(dict.fromkeys((*(target for f in facts for target in f.targets), *own_target))),
        modules=tuple(dict.fromkeys(module for f in facts for module in f.modules)),
        sources=tuple(dict.fromkeys(source for f in facts for source in f.sources)),
    )
    # A fused kernel stores the values of its last nodes; that is where its result comes from.
    last = facts[-1] if facts else None
    info = OpInfo(
        op_type=_type_of(io),
        op_name=op_name,
        engine="kernel",
        perturbs=False,
        target=op_of(origins[-1]) if len(origins) == 1 else io.name if io.kind != "kernel" else "",
        source=source_text(last.sources) if last else "",
        module=next((f.modules[0] if f.modules else "" for f in reversed(facts) if f.modules or f.sources), ""),
        fx_nodes=tuple(origin.name for origin in origins),
        direction=direction,
    )
    return all_of, info


def _carried_out(origins: Sequence[Node], io: LaunchIO, values: Mapping[str, str]) -> list[Node]:
    """The nodes that a launch computes.

    Inductor's origins of a buffer also hold nodes whose value other launches have stored, and what these stem from. So
    the way back from the launch's results ends at values that it reads.
    """
    among = set(origins)
    own = {use.value for use in io.writes}
    read = {values.get(use.value or "") for use in io.reads if use.value not in own}
    written = {values.get(use.value or "") for use in io.writes}
    waiting = [node for node in origins if node.name in written or not among & set(node.users)]
    found: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [n for n in node.all_input_nodes if n in among and n.name not in read]
    return [node for node in origins if node in found]


def _type_of(io: LaunchIO) -> str:
    """`mm` of `extern_kernels.mm`, `convolution` of `aten.convolution.default`, `cpp_fused` of `cpp_fused_relu_0`."""
    if io.kind != "kernel":
        return type_of(io.name)
    kind, fused, _ = io.name.partition("_fused")
    return kind + fused if fused else re.sub(r"_\d+$", "", io.name)


def _notes(io: LaunchIO, values: Mapping[str, str]) -> tuple[str, ...]:
    """Which buffer lies in which slot, and of which FX node that is the value."""
    found = []
    for side, uses in (("input", io.reads), ("output", io.writes)):
        for index, use in enumerate(uses):
            changed = side == "input" and use.value in {other.value for other in io.writes}
            node = values.get(use.value or "") if not changed else None  # it has that value after the launch
            view = "a view of " if use.view else ""
            of = f", the value of {node}" if node is not None else ""
            found.append(f"{side}.{index} is {view}{use.value or use.name}{of}")
    return tuple(found)


def _taken(use: Use, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    """The argument of a use; None where the launch was not given it, e.g. an optional one."""
    if isinstance(use.position, str):
        value = kwargs.get(use.position)
    else:
        value = args[use.position] if use.position is not None and use.position < len(args) else None
    return _inside(value, use.path) if use.path else value


def _inside(value: Any, path: Sequence[int]) -> Any:
    for index in path:
        value = value[index]
    return value
