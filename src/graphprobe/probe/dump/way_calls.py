"""Dumps what is exported or traced: its graphs run node by node, with the line, module and phase of each node."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from torch.fx import GraphModule, Interpreter, Node

from graphprobe.internals.bus import Advice, Subscription, advised
from graphprobe.internals.operators.eager_ops import compiled_graph, in_compile
from graphprobe.internals.tensors import tree_leaves
from graphprobe.internals.way_taps import TAP, WayGraph, inputs_in_order
from graphprobe.probe.dump.backend import interpreted
from graphprobe.probe.dump.facts import ops_of_graph, source_text
from graphprobe.probe.dump.origins import OpOrigin, Origins
from graphprobe.probe.dump.running import DumpSession, GraphOp
from graphprobe.records import Direction
from graphprobe.select import OpFacts

BACKWARD_TAGS = ("is_backward", "must_be_in_backward")
NOWHERE = "{}: its nodes have no line and no module, so that compare pairs them by operation and shapes alone"


class WayDump(Subscription):
    """Runs graphs of ways for a dump, and learns of each node that `make_fx` makes what led to it."""

    def __init__(self, session: Callable[[], DumpSession]) -> None:
        """`session`: returns the dump."""
        self._session = session
        self._origins = Origins()
        self._traced: dict[int, dict[str, OpOrigin]] = {}
        self._begun = WeakKeyDictionary[WayGraph, tuple[dict[str, OpOrigin], str]]()
        self._runs = WeakKeyDictionary[GraphModule, tuple[WayGraph, Callable[..., Any]]]()
        self._numbers, self._graphs = itertools.count(), itertools.count()
        super().__init__(
            [advised(TAP, "torch.fx.experimental.proxy_tensor", "PythonKeyTracer.create_node", self._node)]
        )

    def _node(self, tracer: Any, kind: str, *args: Any, **kwargs: Any) -> Advice:
        node, error = yield
        if error is None and kind == "call_function" and not in_compile():
            origin = self._origins.here()
            if origin is not None:
                self._traced.setdefault(id(node.graph), {})[node.name] = origin

    def begins(self, way: WayGraph, gm: GraphModule) -> None:
        """The first graph of a way was made."""
        self._begun[way] = self._traced.pop(id(gm.graph), {}), f"traced_{next(self._numbers)}"
        self._traced.clear()

    def runner(self, way: WayGraph, gm: GraphModule, name: str) -> Callable[..., Any]:
        """What runs the graph in the place of its `forward`; `name`: of what was traced."""
        known = self._runs.get(gm)
        if known is None or known[0] is not way:
            known = self._runs[gm] = way, self._made(way, gm, name)
        run = known[1]

        def forward(*args: Any, **kwargs: Any) -> Any:
            given = inputs_in_order(gm, args, kwargs)
            flat = tree_leaves(given) if hasattr(gm.graph._codegen, "pytree_info") else given
            with compiled_graph():
                return gm.graph.process_outputs(run(*flat))

        return forward

    def _made(self, way: WayGraph, gm: GraphModule, name: str) -> Callable[..., Any]:
        session = self._session()
        origins, frame = self._begun.get(way.way[0], ({}, "traced"))
        model = session.model([name], f"{frame}/{next(self._graphs)}", "interpreter")
        ops = placed(ops_of_graph(gm.graph, "forward", engine="interpreter", perturbs=False), origins)
        if not any(op.info.source or op.info.module for op in ops.values()):
            session.note(NOWHERE.format(way.made_by))
        plain = partial(Interpreter(gm).run, enable_io_processing=False)
        return interpreted(model, "forward", gm, perturbs=False, ops=ops, undumped=plain)


def placed(ops: Mapping[Node, GraphOp], origins: Mapping[str, OpOrigin]) -> dict[Node, GraphOp]:
    """The ops with the phase of each, and what led to those that metadata say nothing of, by the names of nodes.

    What is computed of a gradient is of the backward, whoever has put it into the graph. Inputs, constants and picks of
    one of several results are no ops: those that read them have their values.
    """
    found: dict[Node, GraphOp] = {}
    backward = set[Node]()
    for node, op in ops.items():
        if is_backward(node) or backward & {*node.all_input_nodes}:
            backward.add(node)
        if op.data or op.info.target == "operator.getitem":
            continue
        origin = origins.get(node.name)
        if origin is not None and origin.direction == "backward":
            backward.add(node)
        facts, module = op.facts, op.info.module
        if origin is not None:
            module = module or origin.module
            modules, sources = (module,) if module else (), facts.sources or origin.lines
            facts = OpFacts(names=facts.names, targets=facts.targets, modules=modules, sources=sources)
        direction: Direction = "backward" if node in backward else "forward"
        source = source_text(facts.sources)
        info = msgspec.structs.replace(op.info, direction=direction, source=source, module=module)
        found[node] = replace(op, index=len(found), reads_data=(), info=info, facts=facts)
    return found


def is_backward(node: Node) -> bool:
    """Whether the metadata of a node say that it belongs to a backward."""
    meta = node.meta
    return bool(meta.get("autograd_backward") or meta.get("fwd_nn_module_stack")) or (
        meta.get("partitioner_tag") in BACKWARD_TAGS
    )
