"""The engine that stands between the launches of Inductor's compiled code, which is left as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from graphprobe.internals.inductor.dump_taps import Lowered, NotSeen, lower
from graphprobe.internals.launches.launches import Launching, LaunchTap
from graphprobe.internals.unseen import unseen
from graphprobe.probe.dump.launch_ops import LaunchOp, ops_of_code
from graphprobe.probe.dump.session import DumpGraph, DumpModel, current_call, under_way
from graphprobe.records import Direction


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
    launches = ops_of_code(lowered, direction)
    by_line = {op.line: op for op in launches.ops}
    all_ops = [*launches.data, *(op.op for op in launches.ops)]
    graph = session.graph(model, direction, all_ops, engine="kernel", perturbs=False, trains=trains)
    tap = LaunchTap(lowered.module, lowered.code, around=lambda launching: _around(graph, by_line, launching))
    data = launches.data

    def run(inputs: Any) -> Any:
        forward, call = session.begin(graph, inputs)
        if call is None:
            with unseen:
                result = plain(inputs)
        else:
            with unseen, under_way(call):
                for op in data:
                    if op.index in call.wanted:
                        call.record(op.index, (), (("output.0", inputs[op.index]),))
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
