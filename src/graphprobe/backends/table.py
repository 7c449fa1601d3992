"""Debug backends by name: what each proves, where it stands on the ladder, and the function itself.

The ladder runs the same program on backends that add one stage at a time; the first that fails points at its stage.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from graphprobe.backends.graphs import BackendFunction
from graphprobe.errors import UsageError, nearest
from graphprobe.internals.aot_backends import lookup

_FAULTY_OPTIONS = {
    "op": "the call to hit: relu, torch.relu, aten.mm, aten.add.Tensor, or a pattern such as aten.*",
    "kind": "compile, runtime, accuracy, dtype, stride, alias, nan, hang or segfault",
    "where": "forward or backward",
    "nth": "which call of each graph, from 0; None for every one",
    "inner": "what compiles the graph: a name or a callable",
    "amount": "what the kind accuracy adds",
}

UNCOMPILED = "uncompiled"
"""The ground under the ladder: the program without torch.compile."""

_SIDE = "aot_eager_default_partitioner"

PREFIX = "graphprobe:"
"""Before a name, in `torch.compile(backend=…)`, when graphprobe is installed."""


class Backend(msgspec.Struct, frozen=True):
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
    def function(self) -> BackendFunction:
        """The backend itself: `(gm, example_inputs, **options) -> callable`. The same object every time."""
        found: BackendFunction = pkgutil.resolve_name(self.target)
        return found


def _row(file: str, name: str, proves: str, /, **options: str) -> Backend:
    """A backend whose function has its name, in a file of this package."""
    return Backend(name, proves, f"{__package__}.{file}:{name}", options)


_ALL = (
    _row("eager", "eager", "Dynamo's capture is right."),
    _row(
        "eager",
        "eager_with_torch_function_modes",
        "The modes have, or have not, the effect in question on Dynamo's graph.",
        modes="TorchFunctionModes that each call runs under, the last one innermost",
    ),
    _row("eager", "eager_noexcept", "No captured graph raises by itself."),
    _row(
        "eager", "eager_debug", "Every operator that ran keeps to its schema: it mutates and aliases what it declares."
    ),
    _row(
        "eager",
        "pre_dispatch_eager",
        "The graph can be traced before dispatch, and computes the same when it is.",
        show="gets the text of the traced graph; standard output when not given",
    ),
    _row("torchscript", "ts", "TorchScript can compile the graph, or AOTAutograd's form of it, and is right."),
    _row("torchscript", "aot_ts", "TorchScript can compile AOTAutograd's graphs, and is right."),
    _row("aot", "invoke_subgraph", "Forward and backward can be nested whole in an outer trace."),
    _row("aot", "aot_eager", "Functionalisation, joint graph and min-cut partitioner are right."),
    _row(
        "aot",
        _SIDE,
        "Functionalisation and joint graph are right; with aot_eager wrong, the min-cut partitioner is at fault.",
    ),
    _row("aot", "aot_eager_decomp_partition", "Inductor's decompositions are right."),
    _row(
        "aot",
        "aot_eager_decomp_partition_with_mode",
        "What the mode checks holds for every op of the decomposed forward and backward.",
        mode="a TorchDispatchMode, or another context manager that can be entered again",
    ),
    _row(
        "aot",
        "aot_eager_decomp_partition_crossref",
        "The fake kernels say what the real ones do: shapes, strides, dtypes, aliasing.",
        check="custom_ops, or all for torch's own operators too",
    ),
    _row(
        "aot",
        "inductor",
        "The program is right as compiled.",
        mode="as in torch.compile, e.g. max-autotune",
        options="Inductor's settings, as in torch.compile",
    ),
    _row("faulty", "relu_compile_error_TESTING_ONLY", "Nothing: it raises while compiling a graph that calls relu."),
    _row("faulty", "relu_runtime_error_TESTING_ONLY", "Nothing: it raises where relu runs."),
    _row("faulty", "relu_accuracy_error_TESTING_ONLY", "Nothing: it adds one to each relu."),
    _row("faulty", "non_leaf_compile_error_TESTING_ONLY", "Nothing: it raises where an input is no leaf of autograd."),
    Backend(
        "faulty",
        "Nothing: it plants one fault, so that a tool can be tried on it.",
        f"{__package__}.faulty:faulty_backend",
        _FAULTY_OPTIONS,
        factory=f"{__package__}.faulty:faulty",
    ),
)

BACKENDS = {backend.name: backend for backend in _ALL}


class BackendRung(msgspec.Struct, frozen=True):
    """One backend of the ladder.

    Attributes:
        backend: its name.
        adds: the stage that it has and the rung below has not.
        passes: what is proven when the program is right on this rung.
        fails: what is proven when it is right on the rung below and wrong on this one.
        side: whether it adds no stage, and only tells two causes apart when the rung below fails.
    """

    backend: str
    adds: str
    passes: str
    fails: str
    side: bool = False


LADDER: tuple[BackendRung, ...] = (
    BackendRung(
        "eager",
        "Dynamo's capture",
        "Dynamo's graphs and guards compute what the Python code does.",
        "Dynamo captured something else than the Python code does, or its guards let it run where it must not.",
    ),
    BackendRung(
        "aot_eager",
        "AOTAutograd: functionalisation, the joint graph, the min-cut partitioner",
        "The functionalised forward and backward graphs are right, and so is what is put back: mutations and aliases.",
        "AOTAutograd made a wrong graph of a right one, in functionalising, differentiating or partitioning; or an"
        " operator has a wrong schema, fake kernel or gradient. aot_eager_default_partitioner tells the partitioner"
        " apart, eager_debug checks schemas.",
    ),
    BackendRung(
        "aot_eager_default_partitioner",
        "no stage: AOTAutograd with the partitioner that recomputes nothing",
        "AOTAutograd is right where it need not recompute in the backward.",
        "The partitioner that recomputes nothing splits the joint graph wrongly, and min-cut hides it.",
        side=True,
    ),
    BackendRung(
        "aot_eager_decomp_partition",
        "Inductor's decompositions",
        "The graphs that Inductor is given are right when each op runs by itself.",
        "A decomposition does not do what its op does, beyond rounding; aot_eager_decomp_partition_crossref checks the"
        " fake kernels that it was traced with.",
    ),
    BackendRung(
        "inductor",
        "Inductor: its graph passes, lowering, fusion, scheduling and generated kernels",
        "The program is right as compiled by Inductor.",
        "A pass, a lowering or a kernel of Inductor is wrong: the graphs that it was given are right op by op.",
    ),
)
"""From the least compiled to the most. Right on one rung and wrong on the next: the fault is in what that one adds."""


_EXTRA = {
    (_SIDE, "aot_eager"): "The min-cut partitioner is at fault: it cuts or recomputes wrongly, for instance a random op"
    " or a mutated value; AOTAutograd is right without recomputation.",
    ("eager", _SIDE): "AOTAutograd is at fault, whatever the partitioner: functionalisation, the joint graph, or an"
    " operator's schema, fake kernel or gradient.",
    ("aot_eager", "aot_eager_decomp_partition"): LADDER[3].fails,
}


def between(passes: str, fails: str) -> str:
    """What is proven when the program is right on the rung `passes` and wrong on the rung `fails` above it.

    Args:
        passes: a rung, or `uncompiled`.
        fails: a rung further up; for rungs that are not neighbours, the stages in between are suspects together.

    Raises:
        UsageError: a name is no rung, or the second is not above the first.
    """
    if (passes, fails) in _EXTRA:
        return _EXTRA[passes, fails]
    rungs = [UNCOMPILED, *(rung.backend for rung in LADDER)]
    for name in (passes, fails):
        if name not in rungs:
            raise UsageError(f"{name!r} is no rung of the ladder", hint=f"the rungs are {', '.join(rungs)}")
    lower, upper = rungs.index(passes), rungs.index(fails)
    if upper <= lower:
        raise UsageError(f"{fails!r} is not above {passes!r} on the ladder", hint=f"the order is {', '.join(rungs)}")
    suspects = [rung for rung in LADDER[lower:upper] if not rung.side or rung.backend == fails]
    if len(suspects) == 1:
        return suspects[0].fails
    return "One of these is at fault: " + "; ".join(rung.adds for rung in suspects) + "."


class Configured:
    """A backend with options given in advance; those given at the call win."""

    def __init__(self, name: str, function: BackendFunction, options: dict[str, Any]) -> None:
        self.__name__ = name
        self._function = function
        self._options = options

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **given: Any) -> Any:
        return self._function(gm, example_inputs, **{**self._options, **given})

    def __repr__(self) -> str:
        listed = "".join(f", {name}={value!r}" for name, value in self._options.items())
        return f"graphprobe.backends.get({self.__name__!r}{listed})"


def names() -> list[str]:
    """The names of all debug backends, in the order of the documentation."""
    return list(BACKENDS)


def describe(name: str) -> Backend:
    """What is known of one backend; `graphprobe:` before the name is allowed.

    Raises:
        UsageError: there is no backend of that name; the nearest names are in the hint.
    """
    bare = str(name).removeprefix(PREFIX)
    if bare not in BACKENDS:
        hint = nearest(bare, BACKENDS, f"there are {', '.join(BACKENDS)}")
        raise UsageError(f"graphprobe has no backend named {name!r}", hint=hint)
    return BACKENDS[bare]


def get(name: str, **options: Any) -> Callable[..., Any]:
    """A debug backend for `torch.compile(backend=…)`.

    Args:
        name: one of `names()`.
        **options: as `describe(name).options` lists them.

    Returns:
        Without options always the same object, so that a second `torch.compile` with it finds the first one's code.

    Raises:
        UsageError: there is no such backend or no such option, or an option has a value that it cannot take.
    """
    backend = describe(name)
    for option in options:
        if option not in backend.options:
            hint = nearest(option, backend.options, f"it takes {', '.join(backend.options) or 'none'}")
            raise UsageError(f"backend {backend.name} has no option {option!r}", hint=hint)
    if not options:
        return backend.function
    if backend.factory is not None:
        made: Callable[..., Any] = pkgutil.resolve_name(backend.factory)(**options)
        return made
    return Configured(backend.name, backend.function, options)


def resolve(inner: str | Callable[..., Any]) -> Callable[..., Any]:
    """A backend to put inside another: ours by name, torch's by name, or the callable itself.

    Raises:
        UsageError: nobody has a backend of that name, or `inner` is neither name nor callable.
    """
    if callable(inner):
        return inner
    ours = str(inner).removeprefix(PREFIX) in BACKENDS
    if not ours and inner in torch.compiler.list_backends(exclude_tags=()):
        return lookup(inner)
    return get(inner)
