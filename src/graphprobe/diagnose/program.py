"""The program under suspicion: one function, the calls it gets, and what there is to see after each of them."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import msgspec
import torch
from torch.optim import Optimizer

from graphprobe.engine.forked_child import doing
from graphprobe.engine.reference import InFloat64, RoughSums, dtype_of, is_noisy, is_plain, nudge
from graphprobe.engine.replay import computed
from graphprobe.engine.rounding import RoundedAnew, untouched
from graphprobe.engine.undefined import AtTheEdge, DoneOtherwise, Way
from graphprobe.engine.value_file import ValueFile
from graphprobe.engine.values import capture, from_bytes, to_bytes, why_not, window
from graphprobe.internals.optimizers import as_traced
from graphprobe.internals.quiet import quiet
from graphprobe.internals.tensors import tree_leaves, tree_map
from graphprobe.judge.effects import snapshot
from graphprobe.judge.observation import (
    ObservationRecord,
    contents_of,
    failed,
    observe,
    reachable,
    reachable_modules,
    reads_gradients,
)
from graphprobe.numerics.verdict import NARROW

Call = tuple[Sequence[Any], Mapping[str, Any]]

LOOKED_AT = 1 << 17
"""Elements that are compared at once."""


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """The tensors among the leaves."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class RoundedRun(msgspec.Struct):
    """Calls in which each narrow result was rounded anew; the other attributes are those of `RoundedAnew`."""

    calls: list[ObservationRecord] = []
    narrowest: float = 0.0
    rounds: bool = True


class UndefinedRun(msgspec.Struct):
    """Calls in which what torch leaves undefined was done in a given way; `met`: what was undefined, in words."""

    calls: list[ObservationRecord] = []
    met: list[str] = []


class EdgeRun(msgspec.Struct):
    """Calls under `AtTheEdge`; `gaps`: its own."""

    calls: list[ObservationRecord] = []
    gaps: tuple[bytes, bytes] = (b"", b"")


def _default_device() -> torch.device | None:
    device = torch.get_default_device()
    return None if device.type == "cpu" else device


@dataclass(frozen=True)
class Program:
    """A function with its calls.

    Attributes:
        fn: the function or module, uncompiled.
        calls: `(args, kwargs)` of each call; one compiled function gets them all, in order.
        between: called as `between(fn, i)` before call i, i ≥ 1.
        grad: True: run the backward of a weighted sum of the outputs. False: everything runs under `no_grad`.
            "apart": run the backward of each output by itself, one behind the other.
            None: none; the calls run in the gradient mode that is set. "own": so they do, and the gradients that
            they leave are observed: the function runs a backward itself, or none can be run.
        seed: random generators start from it in every call; None: from where they are.
        effects: side effects are observed, too.
        file: takes the large values that are observed.
        left: what is observed of an input, parameter or buffer after a call: it, or what has the same values.
        device: the default device around the calls, which other threads do not have; None: the CPU.
    """

    fn: Callable[..., Any]
    calls: Sequence[Call]
    between: Callable[[Any, int], Any] | None = None
    grad: bool | Literal["apart", "own"] | None = None
    seed: int | None = None
    effects: bool = True
    file: ValueFile | None = None
    left: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor
    device: torch.device | None = field(default_factory=_default_device)

    def modules(self) -> list[torch.nn.Module]:
        """The modules whose state belongs to the program: what the function leads to, and those among the arguments."""
        return reachable_modules(self.fn, self._leaves(torch.nn.Module))

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that the function leads to, and those among the arguments."""
        return [one for one in reachable(self.fn, self._leaves(Optimizer)) if isinstance(one, Optimizer)]

    def _leaves(self, kind: type) -> list[Any]:
        return [leaf for call in self.calls for leaf in tree_leaves(call) if isinstance(leaf, kind)]

    def reads_gradients(self) -> bool:
        """Whether gradients that are there before a call are a part of what it begins with."""
        return reads_gradients(reachable(self.fn, self._leaves(Optimizer)))

    def state(self) -> list[torch.Tensor]:
        """Parameters and buffers, what optimizers hold, and gradients that are read: each once."""
        found = [tensor for module in self.modules() for tensor in (*module.parameters(), *module.buffers())]
        for optimizer in self.optimizers():
            found += tensors_of([optimizer.param_groups, list(optimizer.state.values())])
        if self.reads_gradients():
            found += [tensor.grad for tensor in found if tensor.is_leaf and tensor.grad is not None]
        return list({id(tensor): tensor for tensor in found}.values())

    def tensors(self) -> list[torch.Tensor]:
        """Arguments, parameters and buffers."""
        return [*tensors_of(list(self.calls)), *self.state()]

    def drop_gradients(self) -> None:
        """Let go of the gradients that the calls have left."""
        for tensor in self.tensors():
            if tensor.is_leaf:
                tensor.grad = None

    def wants_gradients(self) -> bool:
        """Whether any argument, parameter or buffer requires a gradient."""
        return any(t.requires_grad for t in self.tensors())

    def starts(self, result: Any) -> list[list[torch.Tensor]]:
        """Where each backward begins that is run behind a call with this result."""
        if self.grad not in (True, "apart"):
            return []
        found = tensors_of(result)
        if not any(map(_has_gradient, found)):  # a program would begin at those inside of objects
            found = tensors_of(contents_of(result))
        found = [*filter(_has_gradient, found)]
        return [found] if self.grad is True else [[tensor] for tensor in found]

    def run(self, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[ObservationRecord]:
        """Run every call on `make(fn)`. Everything it changes stays changed: call it in a child process."""
        return [record for record, _ in self.steps(make)]

    def steps(
        self, make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> Iterator[tuple[ObservationRecord, BaseException | None]]:
        """The calls one by one, each with the exception that ended it.

        The function itself is called as `as_traced` has it.
        """
        function = make(self.fn)
        function = self.as_traced(function) if function is self.fn else function
        for i, (args, kwargs) in enumerate(self.calls):
            if len(self.calls) > 1:
                doing(f"call {i + 1} of {len(self.calls)}")
            if i and self.between is not None:
                self.between(self.fn, i)
            yield self._call(function, args, kwargs)

    def as_traced(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The uncompiled function, whose optimizers, if any, compute what Dynamo traces of them."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with as_traced():
                return fn(*args, **kwargs)

        return call if self.optimizers() else fn

    def _call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[ObservationRecord, BaseException | None]:
        inputs = [*tensors_of((args, kwargs)), *self.state()]
        for tensor in () if self.reads_gradients() else inputs:
            if tensor.is_leaf:
                tensor.grad = None
        if self.seed is not None:
            torch.manual_seed(self.seed)
        before = snapshot(self.fn, (args, kwargs)) if self.effects else None
        mode = torch.no_grad() if self.grad is False else contextlib.nullcontext()
        try:
            with mode, self.device or contextlib.nullcontext():
                result = function(*args, **kwargs)
            gradients: list[Any] = []
            for start in self.starts(result):
                weighted_sum(start)
            if self.grad:
                gradients = [t.grad if t.is_leaf or t.retains_grad else None for t in inputs]
            if any(tensor.is_cuda for tensor in inputs):
                torch.cuda.synchronize()  # what fails on the device is told late: it is this call's exception
        except Exception as error:
            return failed(error), error
        effects = None if before is None else (before, snapshot(self.fn, (args, kwargs)))
        after = [*map(self.left, inputs)]
        holders: list[torch.nn.Module | Optimizer] = [*self.modules(), *self.optimizers()]
        return observe(result, (args, kwargs), after, holders, gradients, effects, self.file), None

    def run_rounded(self, seed: int, *, least: float = NARROW) -> RoundedRun:
        """The calls in their own precision, results rounded anew whose u is above `least`; no calls where none is.

        If wide results are, too, so are the inputs, parameters and buffers, in place: call it in a child process.
        """
        given = self.tensors()
        mode = RoundedAnew(torch.Generator().manual_seed(seed), least, given)
        if least < NARROW:
            mode.move(given)
        with mode:
            records = replace(self, effects=False).run(lambda fn: fn)
        return RoundedRun(records if mode.rounded else [], mode.narrowest, mode.rounds)

    def run_moved(self, seed: int) -> list[ObservationRecord]:
        """The calls in their own precision, inputs, parameters and buffers two roundings off, up or down.

        These are changed in place: call it in a child process. What a call leaves as it is, is observed as empty.
        """
        generator = torch.Generator().manual_seed(seed)
        given = {id(t): t for t in self.tensors() if is_noisy(t)}
        for tensor in given.values():
            nudge(tensor.detach(), generator, 2 * dtype_of(tensor).unit_roundoff)
        versions = {key: tensor._version for key, tensor in given.items()}

        def left(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.new_empty(0) if versions.get(id(tensor)) == tensor._version else tensor

        return replace(self, effects=False, left=left).run(lambda fn: fn)

    def run_undefined(self, way: Way) -> UndefinedRun:
        """The calls, with what torch leaves undefined done in this way; no calls where nothing is."""
        mode = DoneOtherwise(way)
        with mode:
            records = replace(self, effects=False).run(lambda fn: fn)
        return UndefinedRun(records if mode.met else [], mode.met)

    def run_at_edges(self, seed: int | None, noise: tuple[bytes, bytes] | None = None, way: float = 0.0) -> EdgeRun:
        """The calls in their own precision, results rounded anew with a seed, what is near an edge moved by `noise`.

        Inputs, parameters and buffers are changed in place: call it in a child process.
        """
        anew = RoundedAnew(torch.Generator().manual_seed(seed or 0), 0.0 if seed is not None else math.inf)
        anew.move(self.tensors())
        with anew, AtTheEdge([] if noise is None else from_bytes(*noise).restore(), way) as edges:
            records = replace(self, effects=False).run(lambda fn: fn)
        return EdgeRun(records, to_bytes(capture(edges.gaps if not noise else [], rng=False)))

    def run_wide(self, seed: int | None, roundoff: float, *, rough: bool = True) -> list[ObservationRecord]:
        """The calls in float64; with a seed on inputs times 1 ± roundoff, and sums if `rough` as rough as float32's.

        Seeds 0 and 1, 2 and 3 and so on have opposite signs everywhere: never are all runs off to the same side.
        Parameters and buffers are widened in place: call it in a child process. Inputs, parameters and buffers that a
        call leaves as they are, are observed as the program has them: in its own precision, and not moved.
        """
        generator = None if seed is None else torch.Generator().manual_seed(seed // 2)
        sign = 1 if seed is None or seed % 2 == 0 else -1
        widened = _Widened(self.tensors(), generator, sign * roundoff)
        for module in self.modules():
            for part in module.modules():
                for values in cast("list[dict[str, Any]]", [part._parameters, part._buffers]):
                    for name, value in values.items():
                        if value is not None:
                            values[name] = widened(value)
        for optimizer in self.optimizers():
            widened.optimizer(optimizer)
        calls = [tree_map(lambda v: widened(v) if isinstance(v, torch.Tensor) else v, call) for call in self.calls]
        wide = replace(self, calls=calls, effects=False, left=widened.left)
        sums = RoughSums(generator, roundoff, sign) if generator is not None and rough else contextlib.nullcontext()
        with sums, InFloat64(widened.usual()):
            return wide.run(lambda fn: fn)


class _Widened:
    """Tensors in float64, each made once: one that stands in two places stays one, and shared memory stays shared.

    Strides stay, too, where there are gaps between the elements. Memory is shared by tensors of one dtype that overlap;
    where another dtype looks at it, it is not.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], generator: torch.Generator | None, roundoff: float) -> None:
        self._generator, self._roundoff = generator, roundoff
        self._dtypes = Counter[torch.dtype]()
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # old ones stay alive, and their ids theirs
        self._origins: dict[int, torch.Tensor] = {}  # by new ones
        self._memory = _shared_memory(tensors)
        self._wide: dict[tuple[str, int], torch.Tensor] = {}

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        if id(value) not in self._made:
            wide = self._widen(value)
            parameter = isinstance(value, torch.nn.Parameter)
            wide = torch.nn.Parameter(wide, value.requires_grad) if parameter else wide
            self._made[id(value)] = value, wide
            self._origins[id(wide)] = value
            if value.is_leaf and value.grad is not None and wide is not value:
                wide.grad = self(value.grad)
        return self._made[id(value)][1]

    def optimizer(self, optimizer: Optimizer) -> None:
        """Widen parameters and state, in place."""
        for group in optimizer.param_groups:
            group.update(tree_map(lambda v: self(v) if isinstance(v, torch.Tensor) else v, dict(group)))
        kept = [(self(key), value) for key, value in optimizer.state.items()]
        optimizer.state.clear()
        for key, value in kept:
            optimizer.state[key] = tree_map(lambda v: self(v) if isinstance(v, torch.Tensor) else v, value)

    def left(self, wide: torch.Tensor) -> torch.Tensor:
        """What this tensor was made of, if nobody has changed it since; else itself."""
        origin = self._origins.get(id(wide))
        if origin is None or origin is wide or wide.shape != origin.shape or not (is_plain(wide) and is_plain(origin)):
            return wide
        with quiet():
            pairs = zip(*(torch.split(t.detach().reshape(-1), LOOKED_AT) for t in (wide, origin)), strict=True)
            near = ((a - b).abs() <= b.abs().mul_(2 * abs(self._roundoff)) for a, b in pairs)
            return origin if all(bool(part.all()) for part in near) else wide

    def usual(self) -> torch.dtype:
        """The dtype that most of the tensors had."""
        return max(self._dtypes, key=lambda dtype: self._dtypes[dtype], default=torch.float32)

    def _widen(self, value: torch.Tensor) -> torch.Tensor:
        if not is_noisy(value):
            return value
        self._dtypes[torch.float32 if value.is_complex() else value.dtype] += 1
        place = _memory_of(value)
        window = self._memory.get(place) if place is not None else None
        if place is None or window is None:
            wide = self._moved(value.detach())
        else:
            begin, end = window
            if place not in self._wide:
                self._wide[place] = self._moved(value.detach().as_strided((end - begin,), (1,), begin))
            wide = self._wide[place].as_strided(value.shape, value.stride(), value.storage_offset() - begin)
        leaf = wide.requires_grad_(value.requires_grad)
        return leaf if value.is_leaf else computed(leaf)

    def _moved(self, value: torch.Tensor) -> torch.Tensor:
        wide = value.to(torch.complex128 if value.is_complex() else torch.float64, copy=True)
        if self._generator is not None:
            nudge(wide, self._generator, self._roundoff)
        return wide


def _memory_of(tensor: torch.Tensor) -> tuple[str, int] | None:
    """Device and address of the storage; None of a tensor that is not a plain view of one."""
    if why_not(tensor) is not None or tensor.is_conj() or tensor.is_neg() or not tensor.numel():
        return None
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def _shared_memory(tensors: Sequence[torch.Tensor]) -> dict[tuple[str, int], tuple[int, int]]:
    """Of storages whose tensors, of one dtype, overlap or have gaps: the first element that is seen, and the end."""
    views: dict[tuple[str, int], dict[int, torch.Tensor]] = {}
    for tensor in tensors:
        place = _memory_of(tensor)
        if place is not None:
            views.setdefault(place, {})[id(tensor)] = tensor
    shared: dict[tuple[str, int], tuple[int, int]] = {}
    for place, seen in views.items():
        if len({t.dtype for t in seen.values()}) == 1 and all(map(is_noisy, seen.values())):
            spans = sorted(window(int(t.storage_offset()), t.shape, t.stride(), 1) for t in seen.values())
            overlap = any(after[0] < before[1] for before, after in itertools.pairwise(spans))
            if overlap or any(window(0, t.shape, t.stride(), 1)[1] != t.numel() for t in seen.values()):
                shared[place] = spans[0][0], max(end for _, end in spans)
    return shared


def _has_gradient(tensor: torch.Tensor) -> bool:
    """Whether a backward can start from it: not from a view that is made under no_grad, which says that it can."""
    base = tensor._base if tensor.grad_fn is None else None
    return tensor.requires_grad and (base is None or not base.requires_grad)


def weighted_sum(tensors: Sequence[torch.Tensor]) -> None:
    """Run the backward of Σ (t · w).sum() over the outputs that require a gradient, w a ramp from 0.5 to 1.5."""
    wanted = [*filter(_has_gradient, tensors)]
    with untouched():  # compiled and uncompiled get the same weights
        ramps = [_ramp(tensor) for tensor in wanted]
        if any(tensor.is_complex() for tensor in wanted):
            total: Any = sum((tensor * ramp).sum() for tensor, ramp in zip(wanted, ramps, strict=True))
            wanted, ramps = [total.abs() if total.is_complex() else total], [None]
    if wanted:
        torch.autograd.backward(wanted, ramps)


def _ramp(tensor: torch.Tensor) -> Any:
    ramp = torch.linspace(0.5, 1.5, tensor.numel(), dtype=torch.float64, device=tensor.device)
    return ramp.reshape(tensor.shape).to(tensor.dtype)
