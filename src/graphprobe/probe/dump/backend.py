"""Dumps as a backend: each graph of a compiler is run by the engine that the plan names.

Graphs that are exported or traced run node by node, with the line, module and phase of each node.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import torch
from torch.fx import GraphModule, Interpreter, Node

from graphprobe.dump_plan import DumpPlan
from graphprobe.errors import SettingError
from graphprobe.internals.aot_backends import aot_compile, boxed_call, inductor_with_mode, lookup
from graphprobe.internals.dynamo.compile_facts import under_compile
from graphprobe.internals.dynamo.dynamo_taps import current_compile_id
from graphprobe.internals.inductor.stages import inductor_graphs, post_grad_graph, uses_cuda_graphs
from graphprobe.internals.operators.eager_ops import compiled_graph
from graphprobe.internals.tensors import InputMemory, tree_leaves
from graphprobe.internals.unseen import unseen
from graphprobe.internals.way_taps import WayGraph, inputs_in_order
from graphprobe.probe.dump.facts import DATA_OPS, ops_of_graph, source_text
from graphprobe.probe.dump.kernel import compile_watched
from graphprobe.probe.dump.overflow import OverflowObserver, UncompiledOverflows
from graphprobe.probe.dump.running import DumpGraph, DumpModel, DumpSession, Forward, GraphCall, GraphOp, under_way
from graphprobe.probe.dump.sessions import begin_single_ops, session_for
from graphprobe.probe.dump.single_ops import OpOrigin
from graphprobe.probe.dump.tensors import is_tensor, slots_from_inputs, slots_from_outputs
from graphprobe.records import Direction
from graphprobe.select import OpFacts
from graphprobe.store.dump_records import Engine

Compiled = Callable[..., Any]

UNCHANGED = ("eager", "aot_eager")
"""Backends whose graphs the interpreter runs as the backend itself would."""

BACKWARD_TAGS = ("is_backward", "must_be_in_backward")
NOWHERE = "{}: its nodes have no line and no module, so that compare pairs them by operation and shapes alone"


class DumpBackend:
    """A backend that compiles as another does, and dumps.

    Args:
        plan: enabled.
        name: the other backend's name; only of `inductor` is there code to stand in.
        mode: Inductor's.

    Attributes:
        stage: the last that the backend has, whose graphs an interpreter runs: `dynamo`, `aot`, or `post_grad`.

    Raises:
        SettingError: the backend has no such engine.
    """

    def __init__(self, plan: DumpPlan, *, name: str = "inductor", mode: str | None = None) -> None:
        inductor = name == "inductor"
        engine: Engine = plan.engine or ("kernel" if inductor else "interpreter")
        if engine not in ENGINES:
            raise SettingError(
                f"dump_config.engine = {engine!r} is not available", hint=f"there is {' and '.join(ENGINES)}"
            )
        if engine != "interpreter" and not inductor:
            raise SettingError(
                f"dump_config.engine = {engine!r}: the backend {name!r} launches no kernels of Inductor's",
                hint="use engine = 'interpreter', or the backend 'inductor'",
            )
        self.__name__ = name
        self.plan = plan
        self.engine = engine
        self.stage = "post_grad" if inductor else "dynamo" if name.startswith("eager") else "aot"
        self._mode = mode
        # The eager backends run these very graphs; in the place of compiled code they change the rounding.
        self._perturbs = self.engine == "interpreter" and name not in UNCHANGED
        self._opened = session_for(plan)
        begin_single_ops(self._opened)

    @property
    def session(self) -> DumpSession:
        """The dump; a new one when the last was closed."""
        if self._opened.closed:
            self._opened = session_for(self.plan)
            if self.plan.single_ops:  # torch is compiling, which is no moment to begin
                self._opened.note("dump_op_switch: ops outside compiled graphs are watched from the next backend on")
        return self._opened

    def __call__(
        self,
        gm: GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> Compiled:
        """Compile Dynamo's graph; `mode` and `options` are those of `torch.compile`."""
        session, mode = self.session, mode or self._mode
        try:
            names, owner = under_compile()
            model = session.model(names, current_compile_id(), self.engine, owner=owner)
        except Exception as error:  # the folder is gone, or the disk is full: the program goes on
            session.failed("opening the dump", error)
            with unseen:
                return self._plain(gm, example_inputs, mode, options)
        if self.engine == "interpreter" and self.stage == "dynamo":
            session.note("the interpreter runs Dynamo's graphs: gradients are autograd's, and have no ops to dump")
        elif self._perturbs:
            session.note(f"the interpreter runs the {self.stage} graphs in the place of what {self.__name__} compiles")
        if uses_cuda_graphs(mode, options):
            session.note("CUDA graphs are off in what is dumped: no op is seen while one is replayed")
        if self.plan.quant_dumpable:
            _check_quantised(session, gm)
        again = _Again(model, gm, differentiates=self.stage != "dynamo") if self.plan.overflow else None
        with unseen:
            compiled = self._compiled(model, gm, example_inputs, mode, options)
        return compiled if again is None else again.behind(compiled)

    def _compiled(
        self,
        model: DumpModel,
        gm: GraphModule,
        example_inputs: Sequence[Any],
        mode: str | None,
        options: dict[str, Any] | None,
    ) -> Compiled:
        if self.stage == "dynamo":
            whole: Compiled = self._hidden(interpreted(model, "pre_grad", gm, perturbs=self._perturbs))
            return whole
        if self.stage == "aot":
            return self._through_aot(model, gm, example_inputs)

        def inner(graph: GraphModule, inputs: Sequence[Any], settings: dict[str, Any]) -> Any:
            output = ENGINES[self.engine](model, graph, inputs, settings)
            if callable(getattr(output, "current_callable", None)):
                output.current_callable = self._hidden(output.current_callable)
                return output
            return self._hidden(output)

        return inductor_graphs(gm, example_inputs, mode=mode, options=options, inner=inner)

    def __repr__(self) -> str:
        return f"graphprobe.dump({self.__name__!r}, engine={self.engine!r})"

    def _plain(
        self, gm: GraphModule, example_inputs: Sequence[Any], mode: str | None, options: dict[str, Any] | None
    ) -> Compiled:
        if self.__name__ != "inductor":
            plain: Compiled = lookup(self.__name__)(gm, example_inputs)
            return plain
        compiled: Compiled = inductor_with_mode(mode)(gm, example_inputs, options=options)
        return compiled

    def _through_aot(self, model: DumpModel, gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        def compile_graph(direction: Direction, graph: GraphModule, inputs: Any) -> Any:
            trains = direction == "forward"
            run = interpreted(model, direction, graph, perturbs=self._perturbs, trains=trains)
            return self._hidden(boxed_call(run))

        return aot_compile(
            gm,
            example_inputs,
            forward=partial(compile_graph, "forward"),
            backward=partial(compile_graph, "backward"),
            min_cut=True,
            decompose=False,
            keep_mutations=True,
        )

    def _hidden(self, run: Any) -> Any:
        """What runs a graph, so that its ops are not taken for ops outside compiled graphs as well."""
        if not self.plan.single_ops or not callable(run):
            return run

        def call(*args: Any) -> Any:
            with unseen, compiled_graph():
                return run(*args)

        call.__dict__.update(getattr(run, "__dict__", {}))
        return call


def _interpret_post_grad(
    model: DumpModel, graph: GraphModule, inputs: Sequence[Any], settings: dict[str, Any]
) -> Compiled:
    inference = bool(settings.get("is_inference"))
    direction: Direction = "backward" if settings.get("is_backward") else "forward"
    after = post_grad_graph(graph, inputs, inference)
    trains = direction == "forward" and not inference
    return boxed_call(interpreted(model, direction, after, perturbs=True, trains=trains))


def _check_quantised(session: DumpSession, gm: GraphModule) -> None:
    """`quant_dumpable`: an interpreter keeps every value there is, a fused kernel does not."""
    if session.plan.engine == "interpreter":
        return
    quantises = [node.name for node in gm.graph.nodes if "quantize" in str(node.target)]
    if quantises:
        session.note(
            f"quant_dumpable: values before {', '.join(quantises[:5])} are dumped where a kernel stores them; "
            "one that Inductor fuses stays inside a kernel. engine='interpreter' shows every value"
        )


ENGINES: dict[str, Callable[[DumpModel, GraphModule, Sequence[Any], dict[str, Any]], Any]] = {
    "kernel": compile_watched,
    "interpreter": _interpret_post_grad,
}
"""By name, what makes a callable of a graph that AOTAutograd has handed to Inductor."""


def interpreted(
    model: DumpModel,
    direction: Direction,
    gm: GraphModule,
    *,
    perturbs: bool,
    trains: bool = False,
    ops: dict[Node, GraphOp] | None = None,
    undumped: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """A function of `gm`'s inputs that tells the dump of each node, in the steps that are dumped.

    In the others the graph runs as Python code, node by node just the same, or `undumped` does: the results are those
    of the interpreter.
    """
    session = model.session
    ops = ops or ops_of_graph(gm.graph, direction, engine="interpreter", perturbs=perturbs)
    graph = session.graph(DumpGraph(model, direction, list(ops.values()), "interpreter", perturbs, trains))

    def run(*args: Any) -> Any:
        forward, call = session.begin(graph, args)
        plain = InputMemory(args if perturbs else ())  # the graphs of eager backends get what torch gives them
        args = tuple(plain.values) if perturbs else args
        with unseen:
            if call is None:
                result = (undumped or gm)(*args)
            else:
                with under_way(call):
                    result = call.result = _TellingInterpreter(gm, call, ops).run(*args, enable_io_processing=False)
        session.finish(graph, forward, result)
        return plain.restored(result)

    return run


class _TellingInterpreter(Interpreter):
    """Tells a call of each node; values are freed after their last use, as in the compiled code."""

    def __init__(self, gm: GraphModule, call: GraphCall, ops: dict[Node, GraphOp]) -> None:
        super().__init__(gm)
        self.extra_traceback = False
        self._call = call
        self._ops = ops

    def run_node(self, n: Node) -> Any:
        op = self._ops.get(n)
        if op is None or op.index not in self._call.wanted:
            with unseen:
                return super().run_node(n)
        execution = self._call.before(op.index, [] if n.op in DATA_OPS else self._inputs(n))
        try:
            with unseen:
                result = super().run_node(n)
        except BaseException as error:
            self._call.raised(execution, error)
            raise
        self._call.after(execution, list(slots_from_outputs(result)))
        return result

    def _inputs(self, node: Node) -> list[tuple[str, Any]]:
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        return list(slots_from_inputs(args, kwargs))


class _Again:
    """Runs the first call of a model that overflows again, uncompiled: Dynamo's graph, on copies of its inputs.

    What the call writes into is copied before it; in the first call of all, where nobody knows that yet, whatever needs
    no gradient is.
    """

    def __init__(self, model: DumpModel, gm: GraphModule, *, differentiates: bool) -> None:
        """`differentiates`: the backward is compiled, too, and looked at."""
        observers = model.session.observers
        self._model = model
        self._observer = next(one for one in observers if isinstance(one, OverflowObserver))
        self._graph = GraphModule(gm, copy.deepcopy(gm.graph))  # Inductor's passes edit the one that it is given
        self._written: set[int] | None = None
        self._answered = False
        self._differentiates = differentiates

    def behind(self, run: Compiled) -> Compiled:
        """`run`, and whatever there is to do after a call of it."""

        def call(*args: Any) -> Any:
            if self._answered:
                with unseen:
                    return run(*args)
            given = list(args[0] if len(args) == 1 and isinstance(args[0], list) else args)
            copies: dict[int, Any] = {}
            try:
                for at, value in enumerate(given):
                    if is_tensor(value) and (not value.requires_grad if self._written is None else at in self._written):
                        copies[at] = value.detach().clone()
                versions = list(map(_version, given))
            except Exception as error:
                self._failed(error)
            with unseen:
                result = run(*args)
            try:
                if not self._answered:
                    self._after(given, copies, versions, result)
            except Exception as error:
                self._failed(error)
            return result

        call.__dict__.update(getattr(run, "__dict__", {}))
        return call

    def _failed(self, error: Exception) -> None:
        self._answered = True
        self._model.session.failed("running a call again, uncompiled", error)

    def _after(self, given: list[Any], copies: dict[int, Any], versions: list[int], result: Any) -> None:
        written = {at for at, value in enumerate(given) if _version(value) != versions[at]}
        self._written = written | (self._written or set())
        casts = [(kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]

        def look(gradients: Sequence[Any] | None) -> None:
            if self._answered or not self._observer.unanswered(self._model):
                return
            self._answered = True
            text = "whether the uncompiled program makes it, too, is not known: "
            try:
                if any(_version(value) != versions[at] and at not in copies for at, value in enumerate(given)):
                    text += "an input of the call has been overwritten"
                else:
                    with (
                        torch.random.fork_rng({v.device for v in given if is_tensor(v) and v.is_cuda}),
                        ExitStack() as on,
                    ):
                        for kind, dtype in casts:
                            on.enter_context(torch.autocast(kind, dtype))
                        inputs = [_copied(copies.get(at, value), value) for at, value in enumerate(given)]
                        text = self._forward(inputs) if gradients is None else self._backward(inputs, gradients)
            except Exception as error:
                text += f"{type(error).__name__}: {error}"
            self._observer.answer(self._model, text)

        look(None)
        outputs = [value if is_tensor(value) else None for value in result] if self._differentiates else []
        for node in {value.grad_fn for value in outputs if value is not None and value.grad_fn is not None}:
            slots = [value.output_nr if value is not None and value.grad_fn is node else None for value in outputs]
            node.register_hook(lambda _, got, slots=slots: look([None if at is None else got[at] for at in slots]))

    def _forward(self, inputs: list[Any]) -> str:
        session, model = self._model.session, self._model
        ops = ops_of_graph(self._graph.graph, "pre_grad", engine="interpreter", perturbs=False)
        observer = UncompiledOverflows(session.plan, session.writer)
        graph = DumpGraph(model, "pre_grad", list(ops.values()), "interpreter", perturbs=False)
        call = GraphCall(session, graph, Forward(0), 0, [(observer, observer.wants(graph))])
        with under_way(call):
            _TellingInterpreter(self._graph, call, ops).run(*inputs, enable_io_processing=False)
        if observer.origins:
            return f"uncompiled, the same call on the same inputs makes it, too: {observer.origins[0]}"
        return "uncompiled, the same call on the same inputs makes no infinity and no NaN"

    def _backward(self, inputs: list[Any], gradients: Sequence[Any]) -> str:
        with torch.enable_grad():
            outputs = self._graph(*inputs)
        pairs = [(out, gradient) for out, gradient in zip(outputs, gradients, strict=True) if gradient is not None]
        wanted = [value for value in inputs if is_tensor(value) and value.requires_grad]
        found = torch.autograd.grad(
            [out for out, _ in pairs], wanted, [gradient for _, gradient in pairs], allow_unused=True
        )
        if all(bool(gradient.isfinite().all()) for gradient in filter(is_tensor, found)):
            return "uncompiled, the gradients of the same call on the same inputs are finite"
        return "uncompiled, the gradients of the same call on the same inputs are not finite, either"


def _copied(value: Any, like: Any) -> Any:
    return value.detach().clone().requires_grad_(like.requires_grad) if is_tensor(value) else value


def _version(value: Any) -> int:
    return value._version if is_tensor(value) and not value.is_inference() else 0


class WayDump:
    """Runs graphs of ways for a dump, with what led to each node that `make_fx` has made."""

    def __init__(self, session: Callable[[], DumpSession]) -> None:
        """`session`: returns the dump."""
        self._session = session
        self._frames = WeakKeyDictionary[WayGraph, str]()
        self._runs = WeakKeyDictionary[GraphModule, tuple[WayGraph, Callable[..., Any]]]()
        self._numbers, self._graphs = itertools.count(), itertools.count()

    def begins(self, way: WayGraph) -> None:
        """The first graph of a way was made."""
        self._frames[way] = f"traced_{next(self._numbers)}"

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
        origins, frame = way.way[0].origins, self._frames.get(way.way[0], "traced")
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
