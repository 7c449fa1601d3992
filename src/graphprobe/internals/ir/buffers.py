"""Storage of the buffers of Inductor's IR, and the IR's operations run over it one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor
from torch._inductor import ir
from torch._inductor.utils import sympy_index_symbol
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import resolve_unbacked_bindings
from torch.utils import _pytree as pytree

from graphprobe.internals.ir.index import NotEvaluated, evaluate, numbers
from graphprobe.internals.ir.ops import Nest, TensorOps
from graphprobe.internals.operators.operators import argument_of

MULTI_OUT: Any = getattr(ir, "ExternKernelMultiOut", ())
ALLOCATING: Any = getattr(ir, "AllocatingMultiOutput", ())

_UNKNOWN: Sequence[str] = ("_CollectiveKernel", "EffectfulKernel", "ComplexView", "MemoryCheckKernel")
"""Fallback kernels that are more than the call they name."""


class Buffers:
    """Every buffer of a lowered graph as flat storage, filled as operations run.

    Attributes:
        env: what the graph's symbols stand for.
        results: what calls into libraries returned, for the outputs that are picked out of it.
        lost: buffers without a value, and why.
        faults: accesses outside of a buffer and assertions that do not hold.
        kinds: buffers into which a value of another kind of dtype was stored, and that value's dtype.
        mixed: buffers whose loops have an operation on a bool and a number: the operation, the dtypes.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.env: dict[Any, Any] = {}
        self.results: dict[str, Any] = {}
        self.lost: dict[str, str] = {}
        self.faults: list[str] = []
        self.kinds: dict[str, torch.dtype] = {}
        self.mixed: dict[str, tuple[str, torch.dtype, torch.dtype]] = {}
        self._flats: dict[str, Tensor] = {}
        self._ops = TensorOps(self)

    # What the handler asks for.

    def dtype(self, name: str) -> torch.dtype:
        """The dtype that the IR gives a buffer."""
        found = self.graph.get_dtype(name)
        assert isinstance(found, torch.dtype)
        return found

    def fault(self, text: str) -> None:
        """Take note of it, once."""
        if text not in self.faults:
            self.faults.append(text)

    def flat(self, name: str) -> Tensor:
        """The storage of a buffer; shared where the IR says that a buffer lies in another or overwrites another.

        Raises:
            NotEvaluated: the buffer has no value, or is none.
        """
        if name in self.lost:
            raise NotEvaluated(f"it needs {name}, which has no value")
        if name not in self._flats:
            self._flats[name] = self._allocated(name)
        return self._flats[name]

    def _allocated(self, name: str) -> Tensor:
        if name in self.graph.constants:
            return self.flattened(self.graph.constants[name])
        layout = self.graph.get_buffer(name).get_output_spec()
        if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
            return self.flat(layout.get_buffer().get_name())
        if isinstance(layout, ir.NonOwningLayout):
            view = layout.view
            (offset,) = numbers([view.get_layout().offset], self.env)
            return self.flat(view.get_name())[offset:]
        if not isinstance(layout, ir.Layout):
            raise NotEvaluated(f"{name} is no tensor")
        (count,) = numbers([layout.storage_size()], self.env)
        # What is read before it was written shall be seen.
        fill = torch.nan if layout.dtype.is_floating_point or layout.dtype.is_complex else 0
        return torch.full((count,), fill, dtype=layout.dtype, device=layout.device)

    def flattened(self, value: Tensor) -> Tensor:
        """A copy of the memory that a tensor spans, from its first element on."""
        value = value.detach()
        if not value.numel():
            return torch.empty(0, dtype=value.dtype, device=value.device)
        span = 1 + sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
        return value.as_strided((span,), (1,), value.storage_offset()).clone()

    def bind(self, name: str, value: Any) -> None:
        """Give a graph input its value: a tensor, which is copied, or something that only symbols refer to."""
        if isinstance(value, Tensor):
            self._flats[name] = self.flattened(value)

    # IR nodes as arguments and results.

    def tensor(self, node: Any) -> Any:
        """What an IR node stands for as an argument of a call: a tensor over the buffer's storage, a number, None."""
        if isinstance(node, (list, tuple)):
            return type(node)(self.tensor(x) for x in node)
        if isinstance(node, ir.MutableBox):
            return self.tensor(node.data)
        if isinstance(node, ir.ShapeAsConstantBuffer):
            return self.tensor(node.expr)
        if isinstance(node, (sympy.Basic, torch.SymInt, torch.SymFloat, torch.SymBool)):
            return evaluate(node, self.env)
        if isinstance(node, ir.NoneAsConstantBuffer):
            return None
        if isinstance(node, ir.Constant):
            return torch.tensor(node.value, dtype=node.dtype, device=node.device)
        if isinstance(node, (ir.ReinterpretView, ir.Buffer)):
            return self._strided(node)
        if isinstance(node, ir.IRNode):
            raise NotEvaluated(f"a {type(node).__name__}")
        return node

    def _strided(self, node: Any) -> Any:
        layout = node.get_output_spec()
        if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
            return self.tensor(layout.target)
        name = node.get_name()
        if not isinstance(layout, ir.Layout):
            if name in self.results:
                return self.results[name]
            if name in self.lost:
                raise NotEvaluated(f"it needs {name}, which has no value")
            raise NotEvaluated(f"{name} is no tensor")
        flat = self.flat(name)
        source = node.data.get_dtype() if isinstance(node, ir.ReinterpretView) else layout.dtype
        if source != layout.dtype:
            flat = flat.to(source).view(layout.dtype)
        sizes, strides = numbers(layout.size, self.env), numbers(layout.stride, self.env)
        (offset,) = numbers([layout.offset], self.env)
        return torch.as_strided(flat, sizes, strides, flat.storage_offset() + offset)

    def put(self, buffer: Any, value: Any) -> None:
        """Make `value` what a buffer holds; when it lies as the buffer shall lie, the memory is shared with it."""
        layout = buffer.get_output_spec()
        name = buffer.get_name()
        if not isinstance(layout, ir.Layout) or isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
            self.results[name] = value
            return
        if not isinstance(value, Tensor):
            raise NotEvaluated(f"{name} shall be a tensor and the call returned {type(value).__name__}")
        sizes, strides = numbers(layout.size, self.env), numbers(layout.stride, self.env)
        if list(value.shape) != sizes:
            raise NotEvaluated(f"{name} shall have the shape {sizes} and the call returned {list(value.shape)}")
        if value.dtype != layout.dtype:
            self.kinds[name] = value.dtype
        owning = not isinstance(layout, ir.NonOwningLayout)
        if owning and value.dtype == layout.dtype and list(value.stride()) == strides and value.numel():
            span = 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
            self._flats[name] = value.as_strided((span,), (1,), value.storage_offset())
        else:
            self._strided(buffer).copy_(value)

    def value(self, node: Any) -> Any:
        """A copy of what an IR node stands for now, with the sizes and strides of its layout."""
        found = self.tensor(node)
        if not isinstance(found, Tensor):
            return found
        copy = torch.empty_strided(found.shape, found.stride(), dtype=found.dtype, device=found.device)
        overlapping = any(n > 1 and step == 0 for n, step in zip(found.shape, found.stride(), strict=True))
        return found.clone() if overlapping else copy.copy_(found)

    # Operations.

    def run(self, op: Any) -> None:
        """Run one operation of the IR.

        Raises:
            NotEvaluated: it is of a kind that is not understood, or needs what has no value.
        """
        if isinstance(op, ir.ComputedBuffer):
            self._loops(op)
            return
        for kind, handler in _CALLS:
            if isinstance(op, kind):
                handler(self, op)
                return
        raise NotEvaluated(f"a {type(op).__name__}")

    def _loops(self, op: Any) -> None:
        data = op.data
        if not isinstance(data, (ir.Pointwise, ir.Reduction, ir.Scan, ir.Sort)):
            raise NotEvaluated(f"loops of type {type(data).__name__}")
        outer, inner = data.get_pointwise_size(), data.get_reduction_size()
        sizes = numbers([*outer, *inner], self.env)
        self.flat(op.get_name())
        if 0 in sizes:
            return
        symbols = [sympy.S.Zero if n == 1 else sympy_index_symbol(f"i{at}") for at, n in enumerate(sizes)]
        nest = Nest(op.get_name(), sizes, len(inner), op.get_device(), dict(self.env))
        store = op.get_store_function()
        with V.set_ops_handler(self._ops), self._ops.running(nest):
            self._ops.loop_variables(symbols)
            if data.get_reduction_type():
                store(symbols[: len(outer)], symbols[len(outer) :])
            else:
                store(symbols)

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call with IR nodes as arguments."""
        leaves, spec = pytree.tree_flatten((args, kwargs), is_leaf=lambda x: isinstance(x, ir.IRNode))
        positional, named = pytree.tree_unflatten([self.tensor(leaf) for leaf in leaves], spec)
        if _draws(function, positional, named):
            raise NotEvaluated(f"{function} draws random numbers")
        return function(*positional, **named)


def _draws(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call draws random numbers; an attention without dropout does not."""
    if torch.Tag.nondeterministic_seeded not in getattr(function, "tags", ()):
        return False
    dropped = argument_of(function, args, kwargs, "dropout_p")
    return dropped is None or bool(dropped)


def _named(name: str) -> Callable[..., Any]:
    """The function that generated code would call by this name."""
    from torch._inductor.select_algorithm import extern_kernels

    root, _, rest = name.partition(".")
    known: dict[str, Any] = {"aten": torch.ops.aten, "torch": torch, "extern_kernels": extern_kernels}
    found = known.get(root)
    for part in rest.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise NotEvaluated(f"a call of {name}")
    return cast(Callable[..., Any], found)


def _fallback(buffers: Buffers, op: Any) -> None:
    args, kwargs = op.unflatten_args(op.inputs, op.constant_args)
    kwargs = {**op.kwargs, **kwargs}
    if isinstance(op, MULTI_OUT):
        kwargs.update(zip(op.out_arg_names, op.out_variant_output_nodes, strict=True))
    result = buffers.call(op.op_overload, args, kwargs)
    bindings = resolve_unbacked_bindings(buffers.graph.sizevars.shape_env, op.unbacked_bindings) or {}
    for symbol, path in bindings.items():
        buffers.env[symbol] = int(pytree.key_get(result, path))
    buffers.put(op, result)  # from torch 2.15 on, the layout of the one output may have these symbols


def _multi_output(buffers: Buffers, op: Any) -> None:
    if isinstance(op, ALLOCATING):
        return
    found = buffers.tensor(op.inputs[0])
    for _, at in op.indices:
        found = found[at]
    buffers.put(op, found)


def _extern_out(buffers: Buffers, op: Any) -> None:
    if isinstance(op, ir.RandomSeeds):
        raise NotEvaluated("random seeds")
    if isinstance(op, ir.DeviceCopy):
        buffers.put(op, buffers.tensor(op.inputs[0]).to(op.get_device(), copy=True))
        return
    function = _named(op.python_kernel_name)
    out = {"out": op.output_view if op.output_view is not None else op}
    buffers.call(function, [*op.inputs, *op.constant_args], {**op.kwargs, **out})


def _extern_alloc(buffers: Buffers, op: Any) -> None:
    function = _named(op.python_kernel_name)
    buffers.put(op, buffers.call(function, [*op.inputs, *op.constant_args], op.kwargs))


def _scatter(buffers: Buffers, op: Any) -> None:
    inputs, constants = op.inputs, op.constant_args
    args = [inputs[0], constants[0], inputs[1], inputs[2] if op.src_is_tensor else constants[1]]
    kwargs = {key: value for key, value in op.kwargs.items() if value is not None}
    if "scatter_reduce" not in op.python_kernel_name:
        kwargs.pop("include_self", None)
    buffers.call(op.op_overload, args, kwargs)


def _index_put(buffers: Buffers, op: Any) -> None:
    rest = iter(op.inputs[2:])
    indices = [None if index is None else next(rest) for index in op.indices]
    args = [op.inputs[0], indices, op.inputs[1], *op.constant_args]
    buffers.call(torch.ops.aten.index_put_.default, args, {})


def _copy(buffers: Buffers, op: Any) -> None:
    buffers.tensor(op.inputs[0]).copy_(buffers.tensor(op.inputs[1]))


def _scalar(buffers: Buffers, op: Any) -> None:
    found = buffers.tensor(op.inputs[0]).item()
    for key in op.keypath:
        divisor = getattr(key, "divisor", None)
        found = found // int(evaluate(divisor, buffers.env)) if divisor is not None else int(found)
    buffers.env[op.sym] = found


def _nothing(buffers: Buffers, op: Any) -> None:
    """An allocation; what lies in it was written where it lies."""
    if isinstance(op, ir.ConcatKernel):
        parts: Sequence[Any] = op.inputs
        for part in parts:
            if part.get_name() in buffers.lost:
                raise NotEvaluated(f"it needs {part.get_name()}, which has no value")
        buffers.flat(op.get_name())


def _refuse(buffers: Buffers, op: Any) -> None:
    raise NotEvaluated(f"a {type(op).__name__}")


def _classes(*names: str) -> tuple[type, ...]:
    """Classes of Inductor's IR; those that this torch does not have are left out."""
    return tuple(found for name in names if (found := getattr(ir, name, None)) is not None)


_CALLS: list[tuple[tuple[type, ...], Callable[[Buffers, Any], None]]] = [
    (_classes(*_UNKNOWN, "SetSourceTensorKernel"), _refuse),
    (_classes("MultiOutput"), _multi_output),
    (_classes("FallbackKernel"), _fallback),
    (_classes("ExternKernelOut"), _extern_out),
    (_classes("ExternKernelAlloc"), _extern_alloc),
    (_classes("ScatterFallback"), _scatter),
    (_classes("IndexPutFallback"), _index_put),
    (_classes("InplaceCopyFallback"), _copy),
    (_classes("DynamicScalar"), _scalar),
    (_classes("AssertScalar", "NopKernel"), _nothing),
]
