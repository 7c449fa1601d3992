# ruff: noqa: E702, C416, F811
"""Programs with one cause of graph breaks each, and the same programs mended as the remedy says."""

import array
import copy
import dataclasses
import inspect
import logging
import math
import os
import random
import sys
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
    def lines(self) -> list[int]:
        lines, first = inspect.getsourcelines(self.broken)
        return [first + index for index, text in enumerate(lines) if text.rstrip().endswith("# here")]


PLANTS: dict[str, Plant] = {}
"""Since Python 3.12 a comprehension runs in the frame around it, and jumps of loops differ, so Dynamo gives up more."""


def plant(kind: str, remedy: str, mended: Any = None, **more: Any) -> Callable[[Any], Any]:
    """The function is the broken program, and the mended one, too, if none is given here or by `mended`."""

    def take(broken: Any) -> Any:
        PLANTS[broken.__name__] = Plant(kind, remedy, broken, mended or broken, **more)
        return broken

    return take


def mended(function: Any) -> None:
    PLANTS[function.__name__] = dataclasses.replace(PLANTS[function.__name__], mended=function)


@plant(
    "data-dependent-branch",
    "torch.where(x.sum() > 0, a, b)",
    mended=lambda x: torch.where(x.sum() > 0, (x * 2).sin(), (x * 2).cos()),
)
def branch(x):
    y = x * 2
    if x.sum() > 0:  # here
        return y.sin()
    return y.cos()


@plant("data-dependent-branch", "torch.where(x.sum() > 0, a, b)", outcome="function")
def branch_in_a_loop(x):
    for _ in range(2):
        x = x.sin() if x.sum() > 0 else x.cos()  # here
    return x


@mended
def branch_in_a_loop(x):
    for _ in range(2):
        x = torch.where(x.sum() > 0, x.sin(), x.cos())
    return x


@plant(
    "data-dependent-loop",
    "torch.while_loop(cond_fn, body_fn, (…,))` with `x.sum() < 20`",
    mended=lambda x: torch.while_loop(lambda x: x.sum() < 20, lambda x: (x * 2,), (x,))[0],
    outcome="function" if sys.version_info >= (3, 12) else "continued",
)
def loop(x):
    while x.sum() < 20:  # here
        x = x * 2
    return x


@plant("data-dependent-assert", 'assert x.sum() > 0, "…"')
def assertion(x):
    assert x.sum() > 0, f"it is {x}"  # here
    return x.sin()


@mended
def assertion(x):
    assert x.sum() > 0, "it is negative"
    return x.sin()


@plant("tensor-item", "use `x.sum()` in the place of `x.sum().item()`", mended=lambda x: x * x.sum())
def item(x):
    return x * x.sum().item()  # here


@plant("tensor-item", "capture_scalar_outputs = True", config={"capture_scalar_outputs": True})
def item_captured(x):
    return x * float(x.sum())  # here


@plant("tensor-item", "an argument that is an int", mended_args=(1,), outcome="continued")
def length_of_a_loop(x):
    for _ in range(int(x[0])):  # here
        x = x + 1
    return x


@mended
def length_of_a_loop(x, times):
    for _ in range(times):
        x = x + 1
    return x


@plant("tensor-tolist", "index the tensor, `x[i]`", mended=lambda x: x * x[0])
def tolist(x):
    return x * x.tolist()[0]  # here


@plant("print", "`if not torch.compiler.is_compiling():`")
def printing(x):
    y = x * 2
    print("y is", y)  # here
    return y.sin()


@mended
def printing(x):
    y = x * 2
    if not torch.compiler.is_compiling():
        print("y is", y)
    return y.sin()


@plant("print", "reorderable_logging_functions.add(print)", config={"reorderable_logging_functions": {print}})
def printing_later(x):
    y = x * 2
    print("y is", y)  # here
    return y.sin()


@plant("logging", "ignore_logging_functions.add(log.warning)", config={"ignore_logging_functions": {log.warning}})
def log_call(x):
    y = x * 2
    log.warning("y is %s", y)  # here
    return y.sin()


@plant("warning", "is_compiling()")
def warning(x):
    y = x * 2
    warnings.warn("planted", stacklevel=2)  # here
    return y.sin()


@mended
def warning(x):
    y = x * 2
    if not torch.compiler.is_compiling():
        warnings.warn("planted", stacklevel=2)
    return y.sin()


@plant(
    "dynamic-shape-operator",
    "torch.where(x > 0, x, 0)` in the place of `x[x > 0]`",
    mended=lambda x: torch.where(x > 0, x, 0).sum(),
)
def mask(x):
    return x[x > 0].sum()  # here


@plant(
    "dynamic-shape-operator", "torch.nonzero_static(x, size=N)", mended=lambda x: torch.nonzero_static(x, size=4) + 1
)
def nonzero(x):
    return torch.nonzero(x) + 1  # here


@plant(
    "dynamic-shape-operator",
    "capture_dynamic_output_shape_ops = True",
    config={"capture_dynamic_output_shape_ops": True},
)
def unique(x):
    return torch.unique(x) + 1  # here


@torch.compiler.disable
def left_out(x):
    return x + 1


@plant("disabled", "remove `torch.compiler.disable` from `left_out`", mended=lambda x: (x * 2 + 1).sin())
def disabled(x):
    return left_out(x * 2).sin()  # here


@plant("explicit-break", "remove the call of `torch._dynamo.graph_break()`", mended=lambda x: (x * 2).sin())
def explicit(x):
    y = x * 2
    torch._dynamo.graph_break()  # here
    return y.sin()


@plant(
    "c-function",
    "call `time.time()` outside the compiled function",
    mended_args=(3.0,),
    same=False,
    mended=lambda x, now: x * now,
)
def clock(x):
    return x * time.time()  # here


@plant("skipped-function", "call `torch.manual_seed(0)` before or after", same=False, mended=lambda x: x + 1)
def seed(x):
    torch.manual_seed(0)  # here
    return x + 1


@plant("unsupported-builtin", "call `exec('planted = 1')` outside", mended=lambda x: x * 2)
def builtin(x):
    exec("planted = 1")  # here
    return x * 2


@plant("unsupported-method", "move `numbers.append(1.0)", mended=lambda x: (x * 2).sin())
def method(x):
    y = x * 2
    numbers.append(1.0)  # here
    return y.sin()


@plant("context-manager", "put `with lock:` around the call", outcome="function", mended=lambda x: x * 2)
def manager(x):
    with lock:  # here
        return x * 2


@plant("print", "is_compiling()", outcome="function", mended=lambda x: x * 2)
def break_in_a_with(x):
    with torch.autograd.profiler.record_function("a"), Manager():
        print("inside")  # here
        return x * 2


class Manager:
    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return False


@plant("random", "draw it with torch: `torch.rand(())`", same=False, mended=lambda x: x * torch.rand(()))
def python_random(x):
    return x * random.random()  # here


@plant("random", "draw it with torch: `torch.rand(())`", same=False, mended=lambda x: x * torch.rand(()))
def numpy_random(x):
    return x * np.random.rand()  # here


@plant("class-definition", "define `class Twice` at the top", mended=lambda x: x * AtTheTop.times)
def definition(x):
    class Twice:  # here
        times = 2

    return x * Twice.times


class AtTheTop:
    times = 2


@plant("hook", "register it outside, before the first call", mended=lambda x: linear(x))
def hook(x):
    linear.register_forward_hook(lambda module, given, out: None)  # here
    return linear(x)


@plant("tensor-attribute", "`y.copy_(y.data + 1)` in the place of", mended=lambda x: (x * 2).copy_(x * 2 + 1))
def attribute(x):
    y = x * 2
    y.data = y.data + 1  # here
    return y


@plant(
    "requires-grad",
    "make that tensor outside",
    mended_args=(torch.ones(4, requires_grad=True),),
    same=False,
    mended=lambda x, y: (x * y).sin(),
)
def requires_grad(x):
    y = x * 2
    y.requires_grad_(True)  # here
    return y.sin()


weight = torch.ones(4, requires_grad=True)


@plant("backward", "trace_autograd_ops = True", config={"trace_autograd_ops": True}, same=False)
def backward(x):
    (weight * x).sum().backward()  # here
    return x + 1


@plant("rnn", "torch._dynamo.config.allow_rnn = True", config={"allow_rnn": True}, outcome="function")
def rnn(x):
    return lstm(x.view(1, 4))[0] * 2  # here


@plant("sparse", "keep sparse tensors outside", outcome="function", mended=lambda x: (x * torch.eye(4)).sum())
def sparse(x):
    return (x * torch.eye(4)).to_sparse().sum()  # here


@plant("deepcopy", "write `x.clone()` in the place of `copy.deepcopy(x)`", mended=lambda x: x.clone() * 2)
def deepcopy(x):
    return copy.deepcopy(x) * 2  # here


@plant("object-identity", "compare values instead", outcome="function", same=False, mended=lambda x: x * 2)
def identity(x):
    y = x * 2
    return y * (id(y) % 2)  # here


@plant("frame-inspection", "look at it outside", mended=lambda x: x * 2 + 1)
def frame(x):
    y = x * 2
    f = inspect.currentframe()  # here
    return y if f is None else y + 1


# -- several statements on a line, calls over several lines, numbers in conditions
# fmt: off


@plant(
    "tensor-item",
    "use `x.sum().long()` in the place of `int(x.sum().item())`",
    mended=lambda x: (x.sin() * x.sum().long()).cos(),
)
def several_on_a_line(x):
    y = x.sin(); n = int(x.sum().item()); z = y * n; return z.cos()  # here


@plant("tensor-item", "use `x.min()` in the place of `x.min().item()`", mended=lambda x: x * torch.max(x) * x.min())
def second_of_two_calls(x):
    a, b = torch.max(x), x.min().item()  # here
    return x * a * b


@plant(
    "dynamic-shape-operator",
    "torch.nonzero_static(x > 0, size=N)",
    mended=lambda x: torch.mul(x[0], torch.nonzero_static(x > 0, size=4).sum()),
)
def call_over_several_lines(x):
    return torch.mul(
        x[0],
        torch.nonzero(  # here
            x > 0,
        ).sum(),
    )


@plant(
    "tensor-item",
    "use `v` in the place of `float(v.item())`",
    mended=lambda x: x * sum([v for v in x]),
    outcome="rest" if sys.version_info >= (3, 12) else "continued",
)
def item_in_a_comprehension(x):
    return x * sum([float(v.item()) for v in x])  # here


@plant("tensor-item", "use `x[0]` in the place of `x[0].item()`", mended=lambda x: x * min(x[0], 3))
def item_as_an_argument(x):
    return x * min(x[0].item(), 3)  # here


@plant(
    "tensor-item",
    "use `torch.sqrt(x.sum())` in the place of `math.sqrt(x.sum().item())`",
    mended=lambda x: x * torch.sqrt(x.sum()),
)
def item_for_math(x):
    return x * math.sqrt(x.sum().item())  # here


@plant("tensor-item", "`torch.where(x.any(), a, b)`", mended=lambda x: torch.where(x.any(), x.sin(), x.cos()))
def item_in_a_condition(x):
    if bool(x.any()):  # here
        return x.sin()
    return x.cos()


@plant(
    "tensor-item",
    "`torch.where(x.sum() - 1 > 3, a, b)`",
    mended=lambda x: torch.where(x.sum() - 1 > 3, x.sin(), x.cos()),
)
def item_compared(x):
    return x.sin() if float(x.sum()) - 1 > 3 else x.cos()  # here


@plant(
    "tensor-item",
    "torch.while_loop(cond_fn, body_fn, (…,))` with `x.sum() < 20`",
    outcome="function",
    mended=lambda x: torch.while_loop(lambda x: x.sum() < 20, lambda x: (x * 2,), (x,))[0],
)
def item_in_a_loop(x):
    while x.sum().item() < 20:  # here
        x = x * 2
    return x


@plant(
    "tensor-item",
    "`torch.where(torch.isclose(x, y).all(), a, b)`",
    mended=lambda x: torch.where(torch.isclose(x, x * 2).all(), x.sin(), x.cos()),
)
def close_or_not(x):
    y = x * 2
    return x.sin() if torch.allclose(x, y) else x.cos()  # here


@plant(
    "tensor-item",
    "use `torch.index_select(x, 0, x[0].long().reshape(1)).squeeze(0)` in the place of `x[int(x[0].item())]`",
    mended=lambda x: x + torch.index_select(x, 0, x[0].long().reshape(1)).squeeze(0),
)
def item_as_an_index(x):
    return x + x[int(x[0].item())]  # here


@plant(
    "tensor-item", "pass that number in as an argument", mended_args=(4,), mended=lambda x, size: torch.zeros(size) + x
)
def item_as_a_size(x):
    return torch.zeros(int(x.sum().item())) + x  # here


@plant("tensor-item", "pass that number in as an argument", mended_args=(1,), mended=lambda x, size: x[:size] * 2)
def item_in_a_slice(x):
    return x[: int(x[0])] * 2  # here


class Positive:
    def __init__(self, tensor):
        self.tensor = tensor

    def __bool__(self):
        return bool((self.tensor.sum() > 0).item())


@plant(
    "data-dependent-branch",
    "`torch.where((x.sum() > 3) & (x.max() < 9), a, b)`",
    mended=lambda x: torch.where((x.sum() > 3) & (x.max() < 9), (x * 2).sin(), (x * 2).cos()),
)
def condition_over_several_lines(x):
    y = x * 2
    if (
        x.sum() > 3  # here
        and x.max() < 9  # here
    ):
        return y.sin()
    return y.cos()


@plant(
    "data-dependent-branch",
    "`torch.where(~x.any() | (x.sum() == 0), a, b)`",
    mended=lambda x: torch.where(~x.any() | (x.sum() == 0), x.sin(), x.cos()),
)
def condition_with_not(x):
    return x.sin() if not x.any() or not x.sum() else x.cos()  # here


@plant(
    "data-dependent-branch",
    "`torch.where((0 < x.sum()) & (x.sum() < 9), a, b)`",
    mended=lambda x: torch.where((x.sum() > 0) & (x.sum() < 9), x.sin(), x.cos()),
)
def chain_of_comparisons(x):
    return x.sin() if 0 < x.sum() < 9 else x.cos()  # here


@plant(
    "data-dependent-branch",
    "`torch.where(v > 0, a, b)`",
    mended=lambda x: sum([torch.where(v > 0, v.sin(), 0) for v in x]),
    outcome={11: "continued", 12: "rest"}.get(sys.version_info.minor, "function"),
)
def condition_in_a_comprehension(x):
    return sum([v.sin() for v in x if v > 0])  # here


@plant("tensor-tolist", "loop over the tensor itself, `x * 2`")
def loop_over_a_list(x):
    for v in (x * 2).tolist():  # here
        x = x + v
    return x


@mended
def loop_over_a_list(x):
    for v in x * 2:
        x = x + v
    return x


@plant("tensor-tolist", "index the tensor, `(x * 2)[i]`", mended=lambda x: x * (x * 2)[0])
def list_of_a_product(x):
    return x * (x * 2).tolist()[0]  # here


@plant("logging", "ignore_logging_functions.add(log.info)", config={"ignore_logging_functions": {log.info}})
def log_call_among_others(x):
    y = abs(x); log.info(  # here
        "y is %s",
        y,
    )
    return y.sin()


# -- calls that Dynamo cannot follow

copied = copy.deepcopy(linear)


@plant("deepcopy", "make the copy outside the compiled function", mended=lambda x: copied(x * 2))
def deepcopy_of_a_module(x):
    y = x * 2; other = copy.deepcopy(linear); return other(y)  # here


@plant(
    "file",
    "read the file before the compiled function",
    mended_args=(4,),
    same=False,
    mended=lambda x, length: x * 2 * length,
)
def file_opened(x):
    y = x * 2
    files = [open(os.devnull)]  # noqa: SIM115  # here
    return y * len(files)


@plant(
    "unsupported-builtin",
    "call `str(x.sum())` outside",
    mended_args=("4",),
    same=False,
    mended=lambda x, s: x.sin() * len(s),
)
def text_of_a_tensor(x):
    y = x.sin(); s = str(x.sum()); return y * len(s)  # here


@plant(
    "formatting",
    "make the text outside",
    mended_args=("4",),
    outcome="function",
    same=False,
    mended=lambda x, text: x * len(text),
)
def formatted_value(x):
    text = f"{x.mean():.3f}"
    return x * len(text)  # here


@plant(
    "unsupported-method",
    "move `z.resize_(2)` out of the compiled function",
    mended_args=(torch.ones(2),),
    same=False,
    mended=lambda x, z: z * 2 + x.sum(),
)
def resized(x):
    z = x.clone(); z.resize_(2); return z * 2  # here


@plant("c-function", "call `os.environ['PLANTED'] = '1'` outside the compiled function", mended=lambda x: x.sin() * 2)
def environment(x):
    y = x.sin(); os.environ["PLANTED"] = "1"; return y * 2  # here


@plant(
    "c-function",
    "call `threading.Lock()` outside the compiled function",
    mended=lambda x: x.sin() * 2 if lock else x.sin(),
)
def made_in_c(x):
    y = x.sin(); made = threading.Lock(); return y * 2 if made else y  # here


@plant("object-identity", "compare values instead", outcome="function", same=False, mended=lambda x: x * 2)
def address(x):
    y = x * 2
    return y if y.data_ptr() % 2 == 0 else x  # here


@plant(
    "dynamic-shape-operator",
    "capture_dynamic_output_shape_ops = True",
    config={"capture_dynamic_output_shape_ops": True},
)
def repeated(x):
    return torch.repeat_interleave(x, x.long()) + 1  # here


@plant(
    "explicit-break",
    "remove the call of `torch._dynamo.graph_break()`",
    outcome="function",
    mended=lambda x: (x + 1) * 2,
)
def break_in_a_try(x):
    try:
        y = x + 1; torch._dynamo.graph_break(); return y * 2  # here
    except ValueError:
        return x


# fmt: on


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
