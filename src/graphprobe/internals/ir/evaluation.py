"""Evaluates the IR that Inductor lowers a graph to, before scheduling and code generation, in plain PyTorch.

With it a wrong lowering can be told from wrong generated code: the IR either says what the graph says, or not.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx
from torch._guards import detect_fake_mode
from torch._inductor import ir
from torch._inductor.compile_fx import fake_tensor_prop, maybe_disable_comprehensive_padding
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from graphprobe.errors import UnsupportedTorchError
from graphprobe.internals.inductor.stages import copy_graph
from graphprobe.internals.ir.buffers import Buffers
from graphprobe.internals.ir.index import NotEvaluated
from graphprobe.internals.names import SUPPORTED_HINT
from graphprobe.internals.quiet import quiet


@dataclasses.dataclass
class IrValues:
    """What the IR of a graph evaluates to.

    Attributes:
        outputs: the graph's outputs in order, tensors with the IR's strides; None for outputs that are None and for
            those that could not be evaluated.
        mutated: graph inputs that the IR writes to, by placeholder, and what they hold at the end.
        dtypes: in words, dtypes and shapes that differ from the FX graph's, values of another kind of dtype (bool, int,
            float) than the buffer that the IR stores them into, and operations on a bool and a number, which generated
            code does not convert to one another.
        unsupported: operations that were not evaluated, and why; those that need their values among them.
        faults: reads and writes outside of a buffer, and assertions of the IR that do not hold.
    """

    outputs: list[Tensor | int | float | None] = dataclasses.field(default_factory=list)
    mutated: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    dtypes: list[str] = dataclasses.field(default_factory=list)
    unsupported: list[str] = dataclasses.field(default_factory=list)
    faults: list[str] = dataclasses.field(default_factory=list)


def evaluate_ir(gm: fx.GraphModule, inputs: Sequence[Any]) -> IrValues:
    """Lower a graph as Inductor would and evaluate the IR on copies of `inputs`. No code is generated.

    Args:
        gm: an ATen graph as Inductor has it after its post-grad passes; it is left as it is. Where its values have no
            fake tensors, or not those of `inputs`, they are made from `inputs` with static shapes.
        inputs: the real inputs, in the order of the placeholders.

    Lowering may add guards and symbols to the shape environment of the graph's fake tensors, as in a compilation.

    Raises:
        UnsupportedTorchError: this torch keeps what the evaluation reads in another way.
        Exception: what the lowering raises, unchanged.
    """
    with torch.no_grad(), _lowered(gm, inputs, False, False) as (graph, module, fakes):
        with quiet(), mock.patch.object(ir.FlexibleLayout, "allow_indexing", True):
            return _Evaluation(graph, module).run(fakes, inputs)


def lower(gm: fx.GraphModule, inputs: Sequence[Any], *, is_inference: bool = False, is_backward: bool = False) -> None:
    """Lower a graph and throw the IR away; `gm` and `inputs` as for `evaluate_ir`. Raises what the lowering raises.

    Args:
        is_inference: lower as for a graph without a backward.
        is_backward: lower as for a backward graph.
    """
    with torch.no_grad(), _lowered(gm, inputs, is_inference, is_backward):
        pass


@contextlib.contextmanager
def _lowered(
    gm: fx.GraphModule, inputs: Sequence[Any], is_inference: bool, is_backward: bool
) -> Iterator[tuple[GraphLowering, fx.GraphModule, list[Any]]]:
    """The lowered copy of a graph, its handlers in force."""
    module = copy_graph(gm)
    output = next(node for node in module.graph.nodes if node.op == "output")
    if "original_output_strides" not in output.meta:
        output.meta.pop("user_visible_output_idxs", None)  # of use only together
    view_to_reshape(module)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    if len(placeholders) != len(inputs):
        raise ValueError(f"the graph takes {len(placeholders)} inputs, not {len(inputs)}")
    fakes = [node.meta.get("val") for node in placeholders]
    found = detect_fake_mode([fake for fake in fakes if isinstance(fake, FakeTensor)])
    fitting = all(_fits(fake, value) for fake, value in zip(fakes, inputs, strict=True))
    if found is not None and fitting:
        mode = found
    else:
        mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        fakes = [mode.from_tensor(x, static_shapes=True) if isinstance(x, Tensor) else x for x in inputs]
        fitting = False
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    if not fitting or not all("val" in node.meta for node in calls):
        with mode:
            fake_tensor_prop(module, fakes, force_allow_non_fake_inputs=True)
    graph = GraphLowering(
        module, example_inputs=fakes, shape_env=mode.shape_env, is_inference=is_inference, is_backward=is_backward
    )
    graph.freeze_runtime_asserts()
    with (
        V.set_fake_mode(mode),
        maybe_disable_comprehensive_padding(fakes),
        V.set_graph_handler(graph),
        V.set_extern_kernel_nodes([]),
    ):
        graph.run(*fakes)
        yield graph, module, fakes


def _fits(fake: Any, value: Any) -> bool:
    """Whether a placeholder's fake value can stand for a real input."""
    if not isinstance(value, Tensor):
        return not isinstance(fake, Tensor) and (fake is not None or value is None)
    if not isinstance(fake, FakeTensor) or fake.dtype != value.dtype or fake.ndim != value.ndim:
        return False
    pairs = [*zip(fake.shape, value.shape, strict=True), *zip(fake.stride(), value.stride(), strict=True)]
    return fake.device == value.device and all(a == b for a, b in pairs if type(a) is int)


class _Evaluation:
    def __init__(self, graph: GraphLowering, module: fx.GraphModule) -> None:
        self._graph = graph
        self._module = module
        self._nodes = {node.name: node for node in module.graph.nodes}
        self._buffers = Buffers(graph)
        self._values = IrValues()
        self._written: set[str] = set()
        self._compared: set[str] = set()

    def run(self, fakes: Sequence[Any], inputs: Sequence[Any]) -> IrValues:
        values, buffers = self._values, self._buffers
        for name, fake, value in zip(self._graph.graph_input_names, fakes, inputs, strict=True):
            self._bind_symbols(fake, value)
            buffers.bind(name, value)
        for op in self._graph.operations:
            self._run(op)
        results = next(node for node in self._module.graph.nodes if node.op == "output").args[0]
        nodes = results if isinstance(results, (list, tuple)) else [results]
        for at, (out, node) in enumerate(zip(self._graph.graph_outputs, nodes, strict=True)):
            values.outputs.append(self._read(f"output {at}", out))
            if isinstance(out, (ir.TensorBox, ir.StorageBox, ir.BaseView, ir.Buffer)):
                self._compare(f"output {at}", out, node)
        for name, original in self._graph.graph_inputs_original.items():
            held = self._read(f"input {name}", original) if name in self._written else None
            if isinstance(held, Tensor):
                values.mutated[name] = held
        for name, got in buffers.kinds.items():
            values.dtypes.append(f"{self._node_of(name)} stores {got} as {buffers.dtype(name)}")
        for name, (operation, first, other) in buffers.mixed.items():
            values.dtypes.append(f"{self._node_of(name)} has {first} and {other} in {operation}")
        values.faults.extend(buffers.faults)
        return values

    def _node_of(self, buffer: str) -> str:
        origin = self._graph.get_buffer(buffer).get_origin_node()
        return origin.name if origin is not None else buffer

    def _bind_symbols(self, fake: Any, value: Any) -> None:
        pairs = [(fake, value)]
        if isinstance(value, Tensor) and isinstance(fake, Tensor):
            pairs = [*zip(fake.shape, value.shape, strict=True), *zip(fake.stride(), value.stride(), strict=True)]
        for symbol, number in pairs:
            if isinstance(symbol, (torch.SymInt, torch.SymFloat)):
                # As it was made, and as it is called after guards have made symbols equal.
                for expr in (symbol.node._expr, symbol.node.expr):
                    if expr.is_Symbol:
                        self._buffers.env.setdefault(expr, number)

    def _run(self, op: Any) -> None:
        buffers, values = self._buffers, self._values
        name = op.get_name()
        origins = tuple(node.name for node in (op.get_origins() or ()))
        changed = self._changed(op)
        self._written |= changed
        try:
            buffers.run(op)
        except (AttributeError, ImportError) as error:  # no op raises these: torch has renamed what is read here
            raise UnsupportedTorchError(
                f"torch {torch.__version__} keeps {type(op).__name__} of its IR otherwise: {error}", hint=SUPPORTED_HINT
            ) from error
        except Exception as error:
            reason = str(error) if isinstance(error, NotEvaluated) else f"{type(error).__name__}: {error}"
            values.unsupported.append(f"{name}: {reason}".splitlines()[0])
            for lost in {name, *changed, *_inside(op)}:
                buffers.lost[lost] = reason
            return
        self._compare_once(op, op.get_origin_node())
        for other in changed:
            # The node that a buffer stands for may be what writes to it only after it was first filled.
            buffer = self._graph.try_get_buffer(other)
            origin = buffer.get_origin_node() if buffer is not None else None
            if origin is not None and origin.name in origins:
                self._compare_once(buffer, origin)

    def _changed(self, op: Any) -> set[str]:
        """Names of the buffers whose contents an operation changes, other than its own."""
        names: set[str] = {str(name) for out in op.get_outputs() for name in out.get_mutation_names()}
        names.update(str(name) for name in op.get_mutation_names())
        layout = op.get_output_spec()
        if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
            names.add(layout.get_buffer().get_name())
        return names - {op.get_name()}

    def _compare_once(self, buffer: Any, origin: fx.Node | None) -> None:
        if origin is None or origin.name in self._compared or not isinstance(buffer.get_output_spec(), ir.Layout):
            return
        with contextlib.suppress(NotEvaluated):
            self._buffers.tensor(buffer)
            self._compared.add(origin.name)
            self._compare(origin.name, buffer, origin)

    def _compare(self, name: str, node: Any, origin: Any) -> None:
        """Hold a buffer's dtype and shape against the FX node's."""
        expected = origin.meta.get("val") if isinstance(origin, fx.Node) else None
        if not isinstance(expected, Tensor):
            return
        if expected.dtype != node.get_dtype():
            self._values.dtypes.append(f"{name} has dtype {node.get_dtype()}, not {expected.dtype}")
        sizes = [self._number(n) for n in expected.shape]
        found = [self._number(n) for n in node.get_size()]
        if sizes != found:
            self._values.dtypes.append(f"{name} has shape {found}, not {sizes}")

    def _number(self, size: Any) -> Any:
        try:
            return self._buffers.tensor(size)
        except NotEvaluated:
            return str(size)

    def _read(self, what: str, node: Any) -> Any:
        try:
            return self._buffers.value(node)
        except NotEvaluated as error:
            self._values.unsupported.append(f"{what}: {error}")
            return None


def _inside(op: Any) -> list[str]:
    """The buffer in which an operation's own lies."""
    layout = op.get_output_spec()
    return [layout.view.get_name()] if isinstance(layout, ir.NonOwningLayout) else []
