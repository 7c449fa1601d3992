"""Run an FX graph node by node on real inputs and keep every value as it was when it was made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from graphprobe.engine.memory import size_of
from graphprobe.engine.value_file import LARGE, ValueFile
from graphprobe.internals.operators.operators import value_of, writes_nothing
from graphprobe.internals.quiet import hint
from graphprobe.internals.tensors import physical, without_transforms

Watch = Callable[[Node, tuple[Any, ...], dict[str, Any], Any], None]
"""Gets a node, the arguments it is run with (before it runs it could have changed them), and its result."""

UNCHECKED = ("aten._unsafe_index.", "aten._unsafe_masked_index.")
"""Operators that may read outside of a tensor: what they raise op by op, no kernel has to check."""

SEED = 20130

Copy = Callable[[torch.Tensor], torch.Tensor]
"""Copies flat bytes."""


@dataclass
class GraphRun:
    """One run of a graph.

    Attributes:
        outputs: what it returned.
        inputs: its inputs after the run; tensors it changed are changed.
        values: value of every node by name, copied when it was made.
        failed: the node that raised, and what it raised.
    """

    outputs: Any = None
    inputs: list[Any] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    failed: tuple[Node, BaseException] | None = None


class Recorder(Interpreter):
    """Interpreter that keeps copies, in a file if there is one; `watch` sees each call before it runs."""

    def __init__(
        self,
        gm: GraphModule,
        *,
        keep: bool = True,
        watch: Callable[..., None] | None = None,
        file: ValueFile | None = None,
    ) -> None:
        super().__init__(gm)
        self.extra_traceback = False
        self.keep, self.watch, self.file = keep, watch, file
        self.functional = is_functional(gm)
        self.values: dict[str, Any] = {}
        self.current: Node | None = None

    def run_node(self, n: Node) -> Any:
        self.current = n
        if self.watch is not None and n.op in ("call_function", "call_method"):
            self.watch(n, *self.fetch_args_kwargs_from_env(n))
        try:
            result = super().run_node(n)
        except (IndexError, RuntimeError):
            if (result := _unchecked(n)) is None:
                raise
        if self.keep and n.op != "output":
            kept = (as_copied if self.functional else copied)(result)
            self.values[n.name] = kept if self.file is None else _moved(kept, self.file)
        return result


def _unchecked(node: Node) -> torch.Tensor | None:
    """What compiled code may give where such an operator raises: zeros, of the shape that is known of its result."""
    value = value_of(node) if str(node.target).startswith(UNCHECKED) else None
    if not isinstance(value, torch.Tensor):
        return None
    return torch.zeros([int(hint(size) or 0) for size in value.shape], dtype=value.dtype, device=value.device)


def _moved(value: Any, file: ValueFile) -> Any:
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_moved(item, file) for item in value)
    large = isinstance(value, torch.Tensor) and size_of(value) >= LARGE
    return copied_together([value], file.copy)[0] if large else value


def is_functional(gm: GraphModule) -> bool:
    """Whether a graph calls functions of torch only that write to none of their arguments, by their schemas."""
    return all(_is_functional(node) for node in gm.graph.nodes)


def _is_functional(node: Node) -> bool:
    if node.op != "call_function":
        return node.op in ("placeholder", "get_attr", "output")
    return getattr(node.target, "__module__", "") == "_operator" or writes_nothing(node.target)


def as_copied(value: Any) -> Any:
    """What `copied` gives, where nothing is written to any more: a tensor that looks like its copy stays as it is."""
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(as_copied(item) for item in value)
    return value.detach() if isinstance(value, torch.Tensor) and _fills_its_memory(value) else copied(value)


def _fills_its_memory(tensor: torch.Tensor) -> bool:
    """Whether each byte of the memory is one of the tensor's, once: then a copy has the same strides."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided or tensor.is_meta:
        return False
    plain = not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
    whole = tensor.untyped_storage().nbytes() == tensor.nbytes
    return plain and whole and torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def copied(value: Any) -> Any:
    """Tensors copied with their strides, lists and tuples of them too; anything else unchanged."""
    if isinstance(value, torch.Tensor):
        return copy_tensor(value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(copied(item) for item in value)
    return value


def copy_tensor(value: torch.Tensor) -> torch.Tensor:
    """A detached copy with the same shape, strides (overlaps and gaps aside) and dtype."""
    detached = value.detach()
    return detached.clone() if detached.layout is torch.strided else detached


def cuda_devices(values: Sequence[Any]) -> list[int]:
    """Numbers of the GPUs on which any of these values is."""
    return sorted({v.get_device() for v in values if isinstance(v, torch.Tensor) and v.device.type == "cuda"})


def run_graph(
    gm: GraphModule,
    inputs: Sequence[Any],
    *,
    keep: bool = True,
    watch: Callable[..., None] | None = None,
    file: ValueFile | None = None,
) -> GraphRun:
    """Run `gm` on `inputs`, without autograd; an exception is recorded, not raised. What it writes to are copies.

    Random ops draw the same numbers in every run; the generators of the caller are left as they are.
    """
    recorder = Recorder(gm, keep=keep, watch=watch, file=file)
    own = copied_together(inputs, _as_it_is if recorder.functional else torch.clone)
    run = GraphRun(inputs=own)
    try:
        with torch.no_grad(), torch.random.fork_rng(cuda_devices(own)):
            torch.manual_seed(SEED)
            run.outputs = recorder.run(*own)
    except Exception as error:
        assert recorder.current is not None
        run.failed = (recorder.current, error)
    run.values = recorder.values
    return run


def plain_value(value: Any) -> Any:
    """A value without its history in autograd."""
    return value.detach() if isinstance(value, torch.Tensor) else value


def copied_together(values: Sequence[Any], copy: Copy = torch.clone) -> list[Any]:
    """Copies of flat values in which tensors that share memory share it again, outside of torch.func's transforms."""
    storages: dict[int, torch.Tensor] = {}
    with without_transforms():
        return [_copied_of(value, storages, copy) for value in values]


def _as_it_is(flat: torch.Tensor) -> torch.Tensor:
    return flat


def _copied_of(value: Any, storages: dict[int, torch.Tensor], copy: Copy) -> Any:
    """`storages` has the copies that were made, by address."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.device.type == "meta":
        number = hint(value) if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else None
        return value if number is None else number
    value = physical(value)[0]
    storage = value.untyped_storage()
    key = storage.data_ptr()
    if key not in storages or key == 0:
        flat = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
        storages[key] = copy(flat)
    fresh = torch.empty(0, dtype=value.dtype, device=value.device).set_(
        storages[key].untyped_storage(), value.storage_offset(), value.shape, value.stride()
    )
    fresh = torch.conj(fresh) if value.is_conj() else fresh
    return torch.ops.aten._neg_view(fresh) if value.is_neg() else fresh


def flat_outputs(outputs: Any) -> list[Any]:
    """What a graph returned, as a flat list."""
    if isinstance(outputs, (list, tuple)):
        return [leaf for item in outputs for leaf in flat_outputs(item)]
    return [outputs]
