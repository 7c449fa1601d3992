"""What the graphs of compiled code tell of its precision: the dtypes inside, and what keeps these from saying all."""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any, NamedTuple, TypeVar

import torch

from graphprobe.internals.bus import Advice, PatchSet, advised
from graphprobe.internals.quiet import quiet

OUTPUT_GRAPH = "torch._dynamo.output_graph"
_EVAL_FRAME = "torch._dynamo.eval_frame"

COMPILED_BEFORE = "it was compiled before the dump began"
NO_GRAPH = "torch has traced no graph of it"
BROKEN = "parts of it run uncompiled, after a graph break"

_NATIVE = ("aten", "prims", "prim", "_c10d_functional", "quantized", "inductor")
"""Namespaces of operators that are torch's own: what they give has the dtype in which they compute."""
_SHAPE_ONLY = ("new_", "_like")

T = TypeVar("T")


class Inside(NamedTuple):
    """What is known of the inside of a compiled function.

    Attributes:
        dtypes: of the floating-point values that its graphs hold or convert to, sorted.
        unknown: why these may not be all; empty if they are.
        unsteady: operations inside that make whole numbers or truth values of floating-point values, sorted: rounding
            may turn what they give into something else altogether.
        operations: of the largest of its graphs.
    """

    dtypes: tuple[str, ...]
    unknown: str
    unsteady: tuple[str, ...]
    operations: int


class _Known:
    """What has been seen of one function so far."""

    def __init__(self, unknown: str) -> None:
        self.dtypes: set[str] = set()
        self.unsteady: set[str] = set()
        self.unknown = unknown
        self.operations = 0


class RegionGraphs:
    """Reads each graph that Dynamo traces while compiled code runs, and keeps what it says by function."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[CodeType, _Known]] = {}
        self._here = threading.local()
        self._patches = PatchSet()

    def install(self, module: ModuleType) -> None:
        """Patch Dynamo's `OUTPUT_GRAPH`; where that cannot be, every inside is unknown."""
        patch = advised("api_regions", OUTPUT_GRAPH, "OutputGraph.call_user_compiler", self._graph)
        self._patches.apply(module, patch)

    def remove(self) -> None:
        """Take the patch out."""
        self._patches.undo()

    def begin(self, function: Any) -> None:
        """Compiled code begins to run in this thread."""
        code = code_of(function)
        if code is None:
            self._here.now = None
            return
        found = self._known.get(id(code))
        if found is None:
            entries = getattr(sys.modules.get(_EVAL_FRAME), "_debug_get_cache_entry_list", None)
            before = COMPILED_BEFORE if entries is None or entries(code) else ""
            found = self._known.setdefault(id(code), (code, _Known(before)))
        self._here.now, self._here.breaks = found[1], _graph_breaks()

    def end(self) -> Inside:
        """It has run."""
        known: _Known | None = getattr(self._here, "now", None)
        self._here.now = None
        if known is None:
            return Inside((), NO_GRAPH, (), 0)
        if not known.unknown and _graph_breaks() != self._here.breaks:
            known.unknown = BROKEN
        unknown = known.unknown or ("" if known.operations else NO_GRAPH)
        return Inside(tuple(sorted(known.dtypes)), unknown, tuple(sorted(known.unsteady)), known.operations)

    def _graph(self, output: Any, gm: Any, example_inputs: Any) -> Advice:
        known: _Known | None = getattr(self._here, "now", None)
        if known is not None:
            try:
                with quiet():
                    _read(gm, known)
            except Exception as error:  # the compile goes on
                known.unknown = f"its graph could not be read: {type(error).__name__}: {error}"
        yield


def code_of(function: Any) -> CodeType | None:
    """The code that Dynamo compiles where `function` is called: of a module that of its `forward`."""
    owner = getattr(function, "__self__", function)
    if isinstance(owner, torch.nn.Module):
        function = owner.forward
    for _ in range(8):
        function = getattr(function, "__func__", function)
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            return code
        function = getattr(function, "__wrapped__", None) or vars(type(function)).get("__call__")
    return None


def reduced_precisions() -> tuple[str, ...]:
    """In what torch may compute products and convolutions of float32 now, besides float32: `tfloat32`, `bfloat16`."""
    found: set[str] = set()
    places = ["mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"]
    if torch.cuda.is_initialized():
        places += ["cuda.matmul", "cudnn.conv", "cudnn.rnn"]
    names = {"tf32": "tfloat32", "bf16": "bfloat16"}
    for place in places:
        try:
            setting = operator.attrgetter(f"{place}.fp32_precision")(torch.backends)
        except (AttributeError, RuntimeError):  # an older torch; settings of the old and the new kind were mixed
            continue
        found.update({names[setting]} if setting in names else ())
    try:
        setting = torch.get_float32_matmul_precision()
    except RuntimeError:
        setting = "medium"
    found.update({"high": ["tfloat32"], "medium": ["tfloat32", "bfloat16"]}.get(setting, []))
    return tuple(sorted(found))


def autocasts() -> tuple[str, ...]:
    """Autocast as it is in force in this thread: `cpu bfloat16`."""
    found = []
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            found.append(f"{device} {_name(torch.get_autocast_dtype(device))}")
    return tuple(found)


def _graph_breaks() -> int:
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return sum(counters["graph_break"].values()) if "graph_break" in counters else 0


def _read(gm: Any, known: _Known) -> None:
    """Add what a graph, with the graphs in it, tells."""
    operations = 0
    for module in gm.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            operations += node.op.startswith("call_")
            _read_node(node, known)
    known.operations = max(known.operations, operations)


def _read_node(node: Any, known: _Known) -> None:
    given = list(_leaves([n.meta.get("example_value", n.meta.get("val")) for n in node.all_input_nodes], torch.Tensor))
    gives = list(_leaves(node.meta.get("example_value", node.meta.get("val")), torch.Tensor))
    dtypes = [tensor.dtype for tensor in gives] + list(_leaves([*node.args, *node.kwargs.values()], torch.dtype))
    known.dtypes.update(_name(dtype) for dtype in dtypes if dtype.is_floating_point or dtype.is_complex)
    if node.op in ("call_function", "call_method", "call_module"):
        name = str(getattr(node.target, "__name__", node.target))
        if node.op == "call_module" or not _is_native(node.target):
            known.unknown = known.unknown or f"{name}, which it calls, is not torch's"
        floats = any(tensor.dtype.is_floating_point for tensor in given)
        if node.target is operator.getitem:
            return
        shape_only = name.startswith(_SHAPE_ONLY[0]) or name.endswith(_SHAPE_ONLY[1])
        if floats and not shape_only and any(not t.dtype.is_floating_point and not t.dtype.is_complex for t in gives):
            known.unsteady.add(name)


def _is_native(target: Any) -> bool:
    """Whether an operation is torch's own, and no function of the program or kernel of its own."""
    if isinstance(target, str):
        return True
    namespace = getattr(target, "namespace", None)
    if isinstance(namespace, str) and namespace not in ("higher_order", *_NATIVE):
        return False
    module = getattr(target, "__module__", None) or "builtins"
    name = str(getattr(target, "__name__", ""))
    return module.partition(".")[0] in ("torch", "_operator", "operator", "math", "builtins") and "triton" not in name


def _leaves(value: Any, kind: type[T]) -> Iterator[T]:
    if isinstance(value, kind):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _leaves(one, kind)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
