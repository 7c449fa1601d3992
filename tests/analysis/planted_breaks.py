# ruff: noqa: N805, E702, C416
"""Programs with one cause of graph breaks each, and the same programs mended as the remedy says."""

from __future__ import annotations

import array
import copy
import dataclasses
import inspect
import logging
import math
import os
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
    def lines(self) -> list[int]:
        """Where it breaks: the lines that end in `# here`."""
        lines, first = inspect.getsourcelines(self.broken)
        return [first + index for index, text in enumerate(lines) if text.rstrip().endswith("# here")]


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


@plant("tensor-item", "use `x.sum()` in the place of `x.sum().item()`")
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


@plant("c-function", "call `time.time()` outside the compiled function", mended_args=(3.0,), same=False)
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


@plant("unsupported-builtin", "call `exec('planted = 1')` outside")
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


# -- several statements on a line, calls over several lines, numbers in conditions
# fmt: off


@plant("tensor-item", "use `x.sum().long()` in the place of `int(x.sum().item())`")
class several_on_a_line:
    def broken(x):
        y = x.sin(); n = int(x.sum().item()); z = y * n; return z.cos()  # here

    def mended(x):
        y = x.sin()
        return (y * x.sum().long()).cos()


@plant("tensor-item", "use `x.min()` in the place of `x.min().item()`")
class second_of_two_calls:
    def broken(x):
        a, b = torch.max(x), x.min().item()  # here
        return x * a * b

    def mended(x):
        a, b = torch.max(x), x.min()
        return x * a * b


@plant("dynamic-shape-operator", "torch.nonzero_static(x > 0, size=N)")
class call_over_several_lines:
    def broken(x):
        return torch.mul(
            x[0],
            torch.nonzero(  # here
                x > 0,
            ).sum(),
        )

    def mended(x):
        return torch.mul(x[0], torch.nonzero_static(x > 0, size=4).sum())


@plant("tensor-item", "use `v` in the place of `float(v.item())`")
class item_in_a_comprehension:
    def broken(x):
        return x * sum([float(v.item()) for v in x])  # here

    def mended(x):
        return x * sum([v for v in x])


@plant("tensor-item", "use `x[0]` in the place of `x[0].item()`")
class item_as_an_argument:
    def broken(x):
        return x * min(x[0].item(), 3)  # here

    def mended(x):
        return x * min(x[0], 3)


@plant("tensor-item", "use `torch.sqrt(x.sum())` in the place of `math.sqrt(x.sum().item())`")
class item_for_math:
    def broken(x):
        return x * math.sqrt(x.sum().item())  # here

    def mended(x):
        return x * torch.sqrt(x.sum())


@plant("tensor-item", "`torch.where(x.any(), a, b)`")
class item_in_a_condition:
    def broken(x):
        if bool(x.any()):  # here
            return x.sin()
        return x.cos()

    def mended(x):
        return torch.where(x.any(), x.sin(), x.cos())


@plant("tensor-item", "`torch.where(x.sum() - 1 > 3, a, b)`")
class item_compared:
    def broken(x):
        return x.sin() if float(x.sum()) - 1 > 3 else x.cos()  # here

    def mended(x):
        return torch.where(x.sum() - 1 > 3, x.sin(), x.cos())


@plant("tensor-item", "torch.while_loop(cond_fn, body_fn, (…,))` with `x.sum() < 20`", outcome="function")
class item_in_a_loop:
    def broken(x):
        while x.sum().item() < 20:  # here
            x = x * 2
        return x

    def mended(x):
        return torch.while_loop(lambda x: x.sum() < 20, lambda x: (x * 2,), (x,))[0]


@plant("tensor-item", "`torch.where(torch.isclose(x, y).all(), a, b)`")
class close_or_not:
    def broken(x):
        y = x * 2
        return x.sin() if torch.allclose(x, y) else x.cos()  # here

    def mended(x):
        y = x * 2
        return torch.where(torch.isclose(x, y).all(), x.sin(), x.cos())


@plant(
    "tensor-item",
    "use `torch.index_select(x, 0, x[0].long().reshape(1)).squeeze(0)` in the place of `x[int(x[0].item())]`",
)
class item_as_an_index:
    def broken(x):
        return x + x[int(x[0].item())]  # here

    def mended(x):
        return x + torch.index_select(x, 0, x[0].long().reshape(1)).squeeze(0)


@plant("tensor-item", "pass that number in as an argument", mended_args=(4,))
class item_as_a_size:
    def broken(x):
        return torch.zeros(int(x.sum().item())) + x  # here

    def mended(x, size):
        return torch.zeros(size) + x


@plant("tensor-item", "pass that number in as an argument", mended_args=(1,))
class item_in_a_slice:
    def broken(x):
        return x[: int(x[0])] * 2  # here

    def mended(x, size):
        return x[:size] * 2


class Positive:
    def __init__(self, tensor):
        self.tensor = tensor

    def __bool__(self):
        return bool((self.tensor.sum() > 0).item())


@plant("data-dependent-branch", "`torch.where((x.sum() > 3) & (x.max() < 9), a, b)`")
class condition_over_several_lines:
    def broken(x):
        y = x * 2
        if (
            x.sum() > 3  # here
            and x.max() < 9  # here
        ):
            return y.sin()
        return y.cos()

    def mended(x):
        y = x * 2
        return torch.where((x.sum() > 3) & (x.max() < 9), y.sin(), y.cos())


@plant("data-dependent-branch", "`torch.where(~x.any() | (x.sum() == 0), a, b)`")
class condition_with_not:
    def broken(x):
        return x.sin() if not x.any() or not x.sum() else x.cos()  # here

    def mended(x):
        return torch.where(~x.any() | (x.sum() == 0), x.sin(), x.cos())


@plant("data-dependent-branch", "`torch.where((0 < x.sum()) & (x.sum() < 9), a, b)`")
class chain_of_comparisons:
    def broken(x):
        return x.sin() if 0 < x.sum() < 9 else x.cos()  # here

    def mended(x):
        return torch.where((x.sum() > 0) & (x.sum() < 9), x.sin(), x.cos())


@plant("data-dependent-branch", "`torch.where(v > 0, a, b)`")
class condition_in_a_comprehension:
    def broken(x):
        return sum([v.sin() for v in x if v > 0])  # here

    def mended(x):
        return sum([torch.where(v > 0, v.sin(), 0) for v in x])


@plant("tensor-tolist", "loop over the tensor itself, `x * 2`")
class loop_over_a_list:
    def broken(x):
        for v in (x * 2).tolist():  # here
            x = x + v
        return x

    def mended(x):
        for v in x * 2:
            x = x + v
        return x


@plant("tensor-tolist", "index the tensor, `(x * 2)[i]`")
class list_of_a_product:
    def broken(x):
        return x * (x * 2).tolist()[0]  # here

    def mended(x):
        return x * (x * 2)[0]


@plant("logging", "ignore_logging_functions.add(log.info)", config={"ignore_logging_functions": {log.info}})
class log_call_among_others:
    def broken(x):
        y = abs(x); log.info(  # here
            "y is %s",
            y,
        )
        return y.sin()

    mended = broken


# -- calls that Dynamo cannot follow

copied = copy.deepcopy(linear)


@plant("deepcopy", "make the copy outside the compiled function")
class deepcopy_of_a_module:
    def broken(x):
        y = x * 2; other = copy.deepcopy(linear); return other(y)  # here

    def mended(x):
        return copied(x * 2)


@plant("file", "read the file before the compiled function", mended_args=(4,), same=False)
class file_opened:
    def broken(x):
        y = x * 2
        files = [open(os.devnull)]  # noqa: SIM115  # here
        return y * len(files)

    def mended(x, length):
        return x * 2 * length


@plant("unsupported-builtin", "call `str(x.sum())` outside", mended_args=("4",), same=False)
class text_of_a_tensor:
    def broken(x):
        y = x.sin(); s = str(x.sum()); return y * len(s)  # here

    def mended(x, s):
        return x.sin() * len(s)


@plant("formatting", "make the text outside", mended_args=("4",), outcome="function", same=False)
class formatted_value:
    def broken(x):
        text = f"{x.mean():.3f}"
        return x * len(text)  # here

    def mended(x, text):
        return x * len(text)


@plant(
    "unsupported-method", "move `z.resize_(2)` out of the compiled function", mended_args=(torch.ones(2),), same=False
)
class resized:
    def broken(x):
        z = x.clone(); z.resize_(2); return z * 2  # here

    def mended(x, z):
        return z * 2 + x.sum()


@plant("c-function", "call `os.environ['PLANTED'] = '1'` outside the compiled function")
class environment:
    def broken(x):
        y = x.sin(); os.environ["PLANTED"] = "1"; return y * 2  # here

    def mended(x):
        return x.sin() * 2


@plant("c-function", "call `threading.Lock()` outside the compiled function")
class made_in_c:
    def broken(x):
        y = x.sin(); made = threading.Lock(); return y * 2 if made else y  # here

    def mended(x):
        return x.sin() * 2 if lock else x.sin()


@plant("object-identity", "compare values instead", outcome="function", same=False)
class address:
    def broken(x):
        y = x * 2
        return y if y.data_ptr() % 2 == 0 else x  # here

    def mended(x):
        return x * 2


@plant(
    "dynamic-shape-operator",
    "capture_dynamic_output_shape_ops = True",
    config={"capture_dynamic_output_shape_ops": True},
)
class repeated:
    def broken(x):
        return torch.repeat_interleave(x, x.long()) + 1  # here

    mended = broken


@plant("explicit-break", "remove the call of `torch._dynamo.graph_break()`", outcome="function")
class break_in_a_try:
    def broken(x):
        try:
            y = x + 1; torch._dynamo.graph_break(); return y * 2  # here
        except ValueError:
            return x

    def mended(x):
        try:
            return (x + 1) * 2
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
