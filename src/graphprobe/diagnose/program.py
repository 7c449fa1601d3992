"""The program under suspicion: one function, the calls it gets, and what there is to see after each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import torch

from graphprobe.diagnose.contents import contents_of, kept_in, plain_parts
from graphprobe.diagnose.reachable import reachable_modules
from graphprobe.engine.accumulation import rough_sums
from graphprobe.engine.isolate import Raised, raised_from
from graphprobe.engine.reference import InFloat64, is_noisy
from graphprobe.engine.replay import computed
from graphprobe.engine.values import CapturedValues, capture, from_bytes, to_bytes
from graphprobe.internals.trees import tree_leaves, tree_map

Call = tuple[Sequence[Any], Mapping[str, Any]]


class CallRecord(msgspec.Struct):
    """One call as bytes: `values` holds `[outputs, inputs after the call, gradients]`; or the exception it ended in."""

    raised: Raised | None = None
    values: tuple[bytes, bytes] | None = None


@dataclass(frozen=True)
class CallResult:
    """One call, readable.

    Attributes:
        raised: the exception that ended it.
        outputs: the leaves of what it returned; then what is inside those that are objects (`contents_of`), in memory
            of its own.
        inputs: tensor arguments, parameters and buffers as the call left them; then what other objects among the
            arguments, and modules, hold (`kept_in`), in memory of its own.
        gradients: of the same, None where there is none; empty when no backward ran.
        shared: pairs (i, j): output i shares memory with value j of (outputs, then inputs), j other than i.
    """

    raised: Raised | None
    outputs: list[Any]
    inputs: list[Any]
    gradients: list[Any]
    shared: frozenset[tuple[int, int]]


def read(record: CallRecord) -> CallResult:
    """The values of a record, restored."""
    if record.values is None:
        return CallResult(record.raised, [], [], [], frozenset())
    captured = from_bytes(*record.values)
    outputs, inputs, gradients = captured.restore()
    return CallResult(record.raised, outputs, inputs, gradients, _shared(captured))


def _shared(captured: CapturedValues) -> frozenset[tuple[int, int]]:
    outputs, inputs, _ = (record["items"] for record in captured.doc["values"])
    names = [record.get("storage") for record in [*outputs, *inputs]]
    pairs = {
        (i, j) for i in range(len(outputs)) for j, name in enumerate(names) if i != j and name == names[i] and name
    }
    return frozenset(pairs)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """The tensors among the leaves."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@dataclass(frozen=True)
class Program:
    """A function with its calls.

    Attributes:
        fn: the function or module, uncompiled.
        calls: `(args, kwargs)` of each call; one compiled function gets them all, in order.
        between: called as `between(fn, i)` before call i, i ≥ 1.
        grad: True: run the backward of a weighted sum of the outputs. False: everything runs under `no_grad`.
            None: neither; the calls run in the gradient mode that is set.
        seed: random generators start from it in every call; None: from where they are.
    """

    fn: Callable[..., Any]
    calls: Sequence[Call]
    between: Callable[[Any, int], Any] | None = None
    grad: bool | None = None
    seed: int | None = None

    def modules(self) -> list[torch.nn.Module]:
        """The modules whose state belongs to the program: what the function leads to, and those among the arguments."""
        leaves = [leaf for call in self.calls for leaf in tree_leaves(call)]
        return reachable_modules(self.fn, [leaf for leaf in leaves if isinstance(leaf, torch.nn.Module)])

    def state(self) -> list[torch.Tensor]:
        """Parameters and buffers, each once."""
        found: dict[int, torch.Tensor] = {}
        for module in self.modules():
            for tensor in (*module.parameters(), *module.buffers()):
                found.setdefault(id(tensor), tensor)
        return list(found.values())

    def wants_gradients(self) -> bool:
        """Whether any argument, parameter or buffer requires a gradient."""
        return any(t.requires_grad for t in [*tensors_of(list(self.calls)), *self.state()])

    def run(self, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[CallRecord]:
        """Run every call on `make(fn)`. Everything it changes stays changed: call it in a child process."""
        return [record for record, _ in self.steps(make)]

    def steps(
        self, make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> Iterator[tuple[CallRecord, BaseException | None]]:
        """The calls one by one, each with the exception that ended it."""
        function = make(self.fn)
        for i, (args, kwargs) in enumerate(self.calls):
            if i and self.between is not None:
                self.between(self.fn, i)
            yield self._call(function, args, kwargs)

    def _call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[CallRecord, BaseException | None]:
        inputs = [*tensors_of((args, kwargs)), *self.state()]
        for tensor in inputs:
            if tensor.is_leaf:
                tensor.grad = None
        if self.seed is not None:
            torch.manual_seed(self.seed)
        mode = torch.no_grad() if self.grad is False else contextlib.nullcontext()
        try:
            with mode:
                result = function(*args, **kwargs)
            gradients: list[Any] = []
            if self.grad:
                weighted_sum(_differentiable(result))
                gradients = [t.grad if t.is_leaf or t.retains_grad else None for t in inputs]
                gradients = [part for g in gradients for part in ([None] if g is None else plain_parts(g))]
        except Exception as error:
            return CallRecord(raised=raised_from(error)), error
        leaves, own = contents_of(result), len(tree_leaves(result))
        leaves = [_detached(leaf) for leaf in leaves[:own]] + [_alone(leaf) for leaf in leaves[own:]]
        after = [part.detach() for t in inputs for part in plain_parts(t)]
        after += [_alone(value) for value in kept_in((args, kwargs), self.modules())]
        values = [leaves, after, gradients]
        return CallRecord(values=to_bytes(capture(values, rng=False))), None

    def run_wide(self, seed: int | None, roundoff: float) -> list[CallRecord]:
        """The calls in float64; if a seed is given, on inputs times 1 ± roundoff, and with sums as rough as float32's.

        Parameters and buffers are widened in place: call it in a child process.
        """
        generator = None if seed is None else torch.Generator().manual_seed(seed)

        def widen(value: torch.Tensor) -> torch.Tensor:
            if not is_noisy(value):
                return value
            wide = value.detach().to(torch.complex128 if value.is_complex() else torch.float64)
            if generator is not None:
                signs = torch.randint(0, 2, wide.shape, generator=generator, dtype=torch.int8) * 2 - 1
                wide = wide * (1 + roundoff * signs.to(wide.device, torch.float64))
            leaf = wide.clone().requires_grad_(value.requires_grad)
            return leaf if value.is_leaf else computed(leaf)

        made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # what is shared stays shared; old ones stay alive

        def once(value: torch.Tensor) -> torch.Tensor:
            if id(value) not in made:
                wide = widen(value)
                parameter = isinstance(value, torch.nn.Parameter)
                made[id(value)] = (value, torch.nn.Parameter(wide, value.requires_grad) if parameter else wide)
            return made[id(value)][1]

        for module in self.modules():
            for part in module.modules():
                for values in cast("list[dict[str, Any]]", [part._parameters, part._buffers]):
                    for name, value in values.items():
                        if value is not None:
                            values[name] = once(value)
        calls = [tree_map(lambda v: once(v) if isinstance(v, torch.Tensor) else v, call) for call in self.calls]
        wide = Program(self.fn, calls, self.between, self.grad, self.seed)
        rough = contextlib.nullcontext() if generator is None else rough_sums(generator, roundoff)
        with rough, InFloat64():
            return wide.run(lambda fn: fn)


def _differentiable(result: Any) -> list[torch.Tensor]:
    """The tensors that a program would run its backward from: those that it returned, else those inside of objects."""
    found = tensors_of(result)
    return found if any(t.requires_grad for t in found) else tensors_of(contents_of(result))


def weighted_sum(tensors: Sequence[torch.Tensor]) -> None:
    """Run the backward of Σ (t · w).sum() over the outputs that require a gradient, w a ramp from 0.5 to 1.5."""
    total: Any = 0.0
    for tensor in tensors:
        if tensor.requires_grad:
            ramp = torch.linspace(0.5, 1.5, tensor.numel(), dtype=torch.float64, device=tensor.device)
            total = total + (tensor * ramp.reshape(tensor.shape).to(tensor.dtype)).sum()
    if isinstance(total, torch.Tensor):
        torch.autograd.backward(total.abs() if total.is_complex() else total)


def _alone(value: Any) -> Any:
    """Of a tensor inside of an object the values count, not how they lie in memory, nor whose memory that is.

    A float there may be what `item()` gave, and is judged as a tensor.
    """
    if type(value) is float:
        return torch.tensor(value, dtype=torch.float64)
    return value.detach().clone(memory_format=torch.contiguous_format) if isinstance(value, torch.Tensor) else value


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value
