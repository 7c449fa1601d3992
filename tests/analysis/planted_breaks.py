# ruff: noqa: N805
"""Programs with one cause of graph breaks each, and the same programs mended as the remedy says."""

from __future__ import annotations

import array
import copy
import dataclasses
import inspect
import logging
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

log = logging.getLogger("planted")
numbers = array.array("d")
lock = threading.Lock()
lstm = torch.nn.LSTM(4, 4)
linear = torch.nn.Linear(4, 4)


@dataclasses.dataclass(frozen=True)
class Plant:
    """`remedy` is what the remedy must say; `config` is of torch._dynamo, for the mended program alone."""

    kind: str
    remedy: str
    broken: Callable[..., Any]
    mended: Callable[..., Any]
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    mended_args: tuple[Any, ...] = ()
    outcome: str = "continued"
    same: bool = True
    """The mended program computes what the broken one does."""

    @property
    def line(self) -> int:
        """Where it breaks: the line that ends in `# here`."""
        lines, first = inspect.getsourcelines(self.broken)
        return next(first + index for index, text in enumerate(lines) if text.rstrip().endswith("# here"))


PLANTS: dict[str, Plant] = {}


def plant(kind: str, remedy: str, **more: Any) -> Callable[[type], type]:
    def take(pair: type) -> type:
        PLANTS[pair.__name__] = Plant(kind, remedy, vars(pair)["broken"], vars(pair)["mended"], **more)
        return pair

    return take


@plant("data-dependent-branch", "torch.where(x.sum() > 0, a, b)")
class branch:
    def broken(x):
        y = x * 2
        if x.sum() > 0:  # here
            return y.sin()
        return y.cos()

    def mended(x):
        y = x * 2
        return torch.where(x.sum() > 0, y.sin(), y.cos())


@plant("data-dependent-branch", "torch.where(x.sum() > 0, a, b)", outcome="function")
class branch_in_a_loop:
    def broken(x):
        for _ in range(2):
            x = x.sin() if x.sum() > 0 else x.cos()  # here
        return x

    def mended(x):
        for _ in range(2):
            x = torch.where(x.sum() > 0, x.sin(), x.cos())
        return x


@plant("data-dependent-loop", "torch.while_loop(cond_fn, body_fn, (…,))` with `x.sum() < 20`")
class loop:
    def broken(x):
        while x.sum() < 20:  # here
            x = x * 2
        return x

    def mended(x):
        return torch.while_loop(lambda x: x.sum() < 20, lambda x: (x * 2,), (x,))[0]


@plant("data-dependent-assert", 'assert x.sum() > 0, "…"')
class assertion:
    def broken(x):
        assert x.sum() > 0, f"it is {x}"  # here
        return x.sin()

    def mended(x):
        assert x.sum() > 0, "it is negative"
        return x.sin()


@plant("tensor-item", "use `x.sum()` itself in the place of `x.sum().item()`")
class item:
    def broken(x):
        return x * x.sum().item()  # here

    def mended(x):
        return x * x.sum()


@plant("tensor-item", "capture_scalar_outputs = True", config={"capture_scalar_outputs": True})
class item_captured:
    def broken(x):
        return x * float(x.sum())  # here

    mended = broken


@plant("tensor-item", "an argument that is an int", mended_args=(1,), outcome="continued")
class length_of_a_loop:
    def broken(x):
        for _ in range(int(x[0])):  # here
            x = x + 1
        return x

    def mended(x, times):
        for _ in range(times):
            x = x + 1
        return x


@plant("tensor-tolist", "index the tensor, `x[i]`")
class tolist:
    def broken(x):
        return x * x.tolist()[0]  # here

    def mended(x):
        return x * x[0]


@plant("print", "`if not torch.compiler.is_compiling():`")
class printing:
    def broken(x):
        y = x * 2
        print("y is", y)  # here
        return y.sin()

    def mended(x):
        y = x * 2
        if not torch.compiler.is_compiling():
            print("y is", y)
        return y.sin()


@plant("print", "reorderable_logging_functions.add(print)", config={"reorderable_logging_functions": {print}})
class printing_later:
    def broken(x):
        y = x * 2
        print("y is", y)  # here
        return y.sin()

    mended = broken


@plant("logging", "ignore_logging_functions.add(log.warning)", config={"ignore_logging_functions": {log.warning}})
class log_call:
    def broken(x):
        y = x * 2
        log.warning("y is %s", y)  # here
        return y.sin()

    mended = broken


@plant("warning", "is_compiling()")
class warning:
    def broken(x):
        y = x * 2
        warnings.warn("planted", stacklevel=2)  # here
        return y.sin()

    def mended(x):
        y = x * 2
        if not torch.compiler.is_compiling():
            warnings.warn("planted", stacklevel=2)
        return y.sin()


@plant("dynamic-shape-operator", "torch.where(x > 0, x, 0)` in the place of `x[x > 0]`")
class mask:
    def broken(x):
        return x[x > 0].sum()  # here

    def mended(x):
        return torch.where(x > 0, x, 0).sum()


@plant("dynamic-shape-operator", "torch.nonzero_static(x, size=N)")
class nonzero:
    def broken(x):
        return torch.nonzero(x) + 1  # here

    def mended(x):
        return torch.nonzero_static(x, size=4) + 1


@plant(
    "dynamic-shape-operator",
    "capture_dynamic_output_shape_ops = True",
    config={"capture_dynamic_output_shape_ops": True},
)
class unique:
    def broken(x):
        return torch.unique(x) + 1  # here

    mended = broken


@torch.compiler.disable
def left_out(x):
    return x + 1


@plant("disabled", "remove `torch.compiler.disable` from `left_out`")
class disabled:
    def broken(x):
        return left_out(x * 2).sin()  # here

    def mended(x):
        return (x * 2 + 1).sin()


@plant("explicit-break", "remove the call of `torch._dynamo.graph_break()`")
class explicit:
    def broken(x):
        y = x * 2
        torch._dynamo.graph_break()  # here
        return y.sin()

    def mended(x):
        return (x * 2).sin()


@plant("c-function", "call `time.time()` before the compiled function", mended_args=(3.0,), same=False)
class clock:
    def broken(x):
        return x * time.time()  # here

    def mended(x, now):
        return x * now


@plant("skipped-function", "call `torch.manual_seed(0)` before or after", same=False)
class seed:
    def broken(x):
        torch.manual_seed(0)  # here
        return x + 1

    def mended(x):
        return x + 1


@plant("unsupported-builtin", "call `exec('planted = 1')` before")
class builtin:
    def broken(x):
        exec("planted = 1")  # here
        return x * 2

    def mended(x):
        return x * 2


@plant("unsupported-method", "move `numbers.append(1.0)")
class method:
    def broken(x):
        y = x * 2
        numbers.append(1.0)  # here
        return y.sin()

    def mended(x):
        return (x * 2).sin()


@plant("context-manager", "put `with lock:` around the call", outcome="function")
class manager:
    def broken(x):
        with lock:  # here
            return x * 2

    def mended(x):
        return x * 2


@plant("print", "is_compiling()", outcome="function")
class break_in_a_with:
    def broken(x):
        with torch.autograd.profiler.record_function("a"), Manager():
            print("inside")  # here
            return x * 2

    def mended(x):
        with torch.autograd.profiler.record_function("a"), Manager():
            return x * 2


class Manager:
    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return False


@plant("random", "draw it with torch, `torch.rand(())`", same=False)
class python_random:
    def broken(x):
        return x * random.random()  # here

    def mended(x):
        return x * torch.rand(())


@plant("random", "draw it with torch", same=False)
class numpy_random:
    def broken(x):
        return x * np.random.rand()  # here

    def mended(x):
        return x * torch.rand(())


@plant("class-definition", "define `class Twice` at the top")
class definition:
    def broken(x):
        class Twice:  # here
            times = 2

        return x * Twice.times

    def mended(x):
        return x * AtTheTop.times


class AtTheTop:
    times = 2


@plant("hook", "register it outside, before the first call")
class hook:
    def broken(x):
        linear.register_forward_hook(lambda module, given, out: None)  # here
        return linear(x)

    def mended(x):
        return linear(x)


@plant("tensor-attribute", "`y.copy_(…)`")
class attribute:
    def broken(x):
        y = x * 2
        y.data = y.data + 1  # here
        return y

    def mended(x):
        y = x * 2
        y.copy_(y + 1)
        return y


@plant("requires-grad", "make that tensor outside", mended_args=(torch.ones(4, requires_grad=True),), same=False)
class requires_grad:
    def broken(x):
        y = x * 2
        y.requires_grad_(True)  # here
        return y.sin()

    def mended(x, y):
        return (x * y).sin()


weight = torch.ones(4, requires_grad=True)


@plant("backward", "trace_autograd_ops = True", config={"trace_autograd_ops": True}, same=False)
class backward:
    def broken(x):
        (weight * x).sum().backward()  # here
        return x + 1

    mended = broken


@plant("rnn", "torch._dynamo.config.allow_rnn = True", config={"allow_rnn": True}, outcome="function")
class rnn:
    def broken(x):
        return lstm(x.view(1, 4))[0] * 2  # here

    mended = broken


@plant("sparse", "keep sparse tensors outside", outcome="function")
class sparse:
    def broken(x):
        return (x * torch.eye(4)).to_sparse().sum()  # here

    def mended(x):
        return (x * torch.eye(4)).sum()


@plant("deepcopy", "write `x.clone()` in the place of `copy.deepcopy(x)`")
class deepcopy:
    def broken(x):
        return copy.deepcopy(x) * 2  # here

    def mended(x):
        return x.clone() * 2


@plant("object-identity", "compare values instead", outcome="function", same=False)
class identity:
    def broken(x):
        y = x * 2
        return y * (id(y) % 2)  # here

    def mended(x):
        return x * 2


@plant("frame-inspection", "look at it outside")
class frame:
    def broken(x):
        y = x * 2
        f = inspect.currentframe()  # here
        return y if f is None else y + 1

    def mended(x):
        return x * 2 + 1


@torch.library.custom_op("planted::unfaked", mutates_args=())
def unfaked(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@torch.library.custom_op("planted::faked", mutates_args=())
def faked(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@faked.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def doubled(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x * 2
