"""The table of debug backends; `registry` is the way in."""

from __future__ import annotations

import importlib
from typing import Any

import msgspec

from graphprobe.backends.calling import BackendFunction
from graphprobe.backends.ladder import LADDER

_EAGER = "graphprobe.backends.eager"
_AOT = "graphprobe.backends.aot"
_SCRIPT = "graphprobe.backends.torchscript"
_SOURCE_FAULTS = "graphprobe.backends.source_faults"

_FAULTY_OPTIONS = {
    "op": "the call to hit: relu, torch.relu, aten.mm, aten.add.Tensor, or a pattern such as aten.*",
    "kind": "compile, runtime, accuracy, dtype, stride, alias, nan, hang or segfault",
    "where": "forward or backward",
    "nth": "which call of each graph, from 0; None for every one",
    "inner": "what compiles the graph: a name or a callable",
    "amount": "what the kind accuracy adds",
}


class DebugBackend(msgspec.Struct, frozen=True):
    """A debug backend.

    Attributes:
        name: the name torch's own counterpart has, where there is one.
        proves: what is shown by a program that is right, or raises nothing, under it.
        target: `module:name` of the function.
        options: keyword options and what they mean.
        factory: `module:name` of what makes a configured backend, where options are not simply passed on.
    """

    name: str
    proves: str
    target: str
    options: dict[str, str] = {}
    factory: str | None = None

    @property
    def rung(self) -> int | None:
        """Its place on the ladder, from 0; None when it is beside it."""
        return next((index for index, rung in enumerate(LADDER) if rung.backend == self.name), None)

    @property
    def next_rung(self) -> str | None:
        """The rung to try when this one passes; None at the top and beside the ladder."""
        above = LADDER[self.rung + 1 :] if self.rung is not None else ()
        return next((rung.backend for rung in above if not rung.side), None)

    @property
    def function(self) -> BackendFunction:
        """The backend itself: `(gm, example_inputs, **options) -> callable`. The same object every time."""
        found: BackendFunction = load(self.target)
        return found


def load(target: str) -> Any:
    """What `module:name` stands for."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


_ALL = (
    DebugBackend("eager", "Dynamo's capture is right.", f"{_EAGER}:eager"),
    DebugBackend(
        "eager_with_torch_function_modes",
        "The modes have, or have not, the effect in question on Dynamo's graph.",
        f"{_EAGER}:eager_with_torch_function_modes",
        {"modes": "TorchFunctionModes that each call runs under, the last one innermost"},
    ),
    DebugBackend("eager_noexcept", "No captured graph raises by itself.", f"{_EAGER}:eager_noexcept"),
    DebugBackend(
        "eager_debug",
        "Every operator that ran keeps to its schema: it mutates and aliases what it declares.",
        f"{_EAGER}:eager_debug",
    ),
    DebugBackend(
        "pre_dispatch_eager",
        "The graph can be traced before dispatch, and computes the same when it is.",
        f"{_EAGER}:pre_dispatch_eager",
        {"show": "gets the text of the traced graph; standard output when not given"},
    ),
    DebugBackend(
        "ts", "TorchScript can compile the graph, or AOTAutograd's form of it, and is right.", f"{_SCRIPT}:ts"
    ),
    DebugBackend("aot_ts", "TorchScript can compile AOTAutograd's graphs, and is right.", f"{_SCRIPT}:aot_ts"),
    DebugBackend(
        "invoke_subgraph",
        "Forward and backward can be nested whole in an outer trace.",
        "graphprobe.backends.invoke_subgraph:invoke_subgraph",
    ),
    DebugBackend("aot_eager", "Functionalisation, joint graph and min-cut partitioner are right.", f"{_AOT}:aot_eager"),
    DebugBackend(
        "aot_eager_default_partitioner",
        "Functionalisation and joint graph are right; with aot_eager wrong, the min-cut partitioner is at fault.",
        f"{_AOT}:aot_eager_default_partitioner",
    ),
    DebugBackend(
        "aot_eager_decomp_partition",
        "Inductor's decompositions are right.",
        f"{_AOT}:aot_eager_decomp_partition",
    ),
    DebugBackend(
        "aot_eager_decomp_partition_with_mode",
        "What the mode checks holds for every op of the decomposed forward and backward.",
        f"{_AOT}:aot_eager_decomp_partition_with_mode",
        {"mode": "a TorchDispatchMode, or another context manager that can be entered again"},
    ),
    DebugBackend(
        "aot_eager_decomp_partition_crossref",
        "The fake kernels say what the real ones do: shapes, strides, dtypes, aliasing.",
        f"{_AOT}:aot_eager_decomp_partition_crossref",
        {"check": "custom_ops, or all for torch's own operators too"},
    ),
    DebugBackend(
        "inductor",
        "The program is right as compiled.",
        f"{_AOT}:inductor",
        {"mode": "as in torch.compile, e.g. max-autotune", "options": "Inductor's settings, as in torch.compile"},
    ),
    DebugBackend(
        "relu_compile_error_TESTING_ONLY",
        "Nothing: it raises while compiling a graph that calls relu.",
        f"{_SOURCE_FAULTS}:relu_compile_error_TESTING_ONLY",
    ),
    DebugBackend(
        "relu_runtime_error_TESTING_ONLY",
        "Nothing: it raises where relu runs.",
        f"{_SOURCE_FAULTS}:relu_runtime_error_TESTING_ONLY",
    ),
    DebugBackend(
        "relu_accuracy_error_TESTING_ONLY",
        "Nothing: it adds one to each relu.",
        f"{_SOURCE_FAULTS}:relu_accuracy_error_TESTING_ONLY",
    ),
    DebugBackend(
        "non_leaf_compile_error_TESTING_ONLY",
        "Nothing: it raises where an input is no leaf of autograd.",
        f"{_SOURCE_FAULTS}:non_leaf_compile_error_TESTING_ONLY",
    ),
    DebugBackend(
        "faulty",
        "Nothing: it plants one fault, so that a tool can be tried on it.",
        "graphprobe.backends.faulty:faulty_backend",
        _FAULTY_OPTIONS,
        factory="graphprobe.backends.faulty:faulty",
    ),
)

BACKENDS = {backend.name: backend for backend in _ALL}
