"""Unusual circumstances of a compiled call, one after the other, each with its evidence."""

import logging
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import evidence
import numpy as np
import torch
import torch._functorch.config
import torch._inductor.config
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

# Watching switches torch's graph caches off, and that alone shows: code generation, which a cache hit skips, raises the
# interpreter's recursion limit.
torch._inductor.config.fx_graph_cache = torch._functorch.config.enable_autograd_cache = False


def report(name: str, value: Any) -> None:
    evidence.say(name, evidence.bits(value))
    evidence.generators()


def gradients(loss: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, inputs))


def recompiles_with_dynamic_shapes() -> None:
    compiled = torch.compile(lambda x: (x.sin() * x.shape[0]).sum())
    for size in (3, 5, 7, 1):
        x = torch.randn(size, 4, requires_grad=True)
        report(f"dynamic {size}", gradients(compiled(x), x))
    marked = torch.randn(6, 2)
    torch._dynamo.mark_dynamic(marked, 0)
    report("mark_dynamic", torch.compile(lambda x: x.cumsum(0) / x.shape[0], dynamic=True)(marked))


class Counting(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen.append(getattr(func, "__qualname__", str(func)))
        return func(*args, **(kwargs or {}))


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen.append(str(func))
        return func(*args, **(kwargs or {}))


seen: list[str] = []
"""Calls that a mode saw."""


def user_modes() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.t()).relu() * 3

    x = torch.randn(4, 4)
    for backend in ("inductor", "eager"):
        for mode in (Counting(), Watching()):
            torch._dynamo.reset()
            compiled = torch.compile(scaled, backend=backend)
            seen.clear()
            with mode:
                result = compiled(x)
            report(f"{type(mode).__name__} {backend}", result)
            evidence.say("seen", seen)


def grad_modes() -> None:
    compiled = torch.compile(lambda x, w: (x @ w).softmax(-1))
    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    with torch.inference_mode():
        out = compiled(x, w)
    evidence.say("inference", (out.is_inference(), out.requires_grad))
    report("inference", out)
    with torch.no_grad():
        report("no grad", compiled(x, w))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = compiled(x, w)
    report("autocast", [out, *gradients(out.float().square().sum(), w)])


def checkpointed() -> None:
    layer = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 4))
    compiled = torch.compile(lambda x: checkpoint(layer, x, use_reentrant=False).square().sum())
    x = torch.randn(5, 4, requires_grad=True)
    report("checkpoint", gradients(compiled(x), x, *layer.parameters()))


@torch.library.custom_op("harmless::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_fake(torch.empty_like)
twice.register_autograd(lambda _, grad: grad * 2)


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-0.5, 0.5)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 0.7)


def operators_of_the_user() -> None:
    compiled = torch.compile(lambda x: Clipped.apply(twice(x).sin()).sum())
    x = torch.randn(6, requires_grad=True)
    report("custom op, autograd.Function", gradients(compiled(x), x))


def backward_twice() -> None:
    with torch._functorch.config.patch(donated_buffer=False):
        compiled = torch.compile(lambda x: (x.exp() * x).sum())
        x = torch.randn(6, requires_grad=True)
        loss = compiled(x)
        loss.backward(retain_graph=True)
        loss.backward()
        report("retain graph", x.grad)


class Tagged(torch.Tensor):
    """A tensor subclass of the plain sort."""


def subclass_and_parameters() -> None:
    x = torch.randn(4).as_subclass(Tagged)
    out = torch.compile(lambda y: y * 2 + 1)(x)
    evidence.say("subclass", type(out).__name__)
    report("subclass", out.as_subclass(torch.Tensor))
    weight = nn.Parameter(torch.randn(3))
    weight.register_hook(lambda grad: grad * 10)
    torch.compile(lambda y: (weight * y).sum())(torch.ones(3)).backward()
    report("hook", weight.grad)


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.name}")


def logging_of_the_user() -> None:
    """Handlers of the program's own on torch's loggers; one of them at INFO, which is more than torch would say."""
    kept = {name: Kept() for name in ("torch._dynamo", "torch._inductor", "torch._functorch.config", "torch")}
    for name, handler in kept.items():
        logging.getLogger(name).addHandler(handler)
    root = Kept()
    logging.root.addHandler(root)
    torch._dynamo.reset()
    torch.compile(lambda x: x.cos() * 7)(torch.ones(3))
    evidence.say("handlers", {name: handler.lines for name, handler in kept.items()})
    evidence.say("root handler", root.lines)
    logging.root.removeHandler(root)
    for name, handler in kept.items():
        logging.getLogger(name).removeHandler(handler)


def warnings_are_errors() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report("warnings as errors", torch.compile(lambda x: x.tan() * 5)(torch.randn(3)))


def graph_breaks() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y * float(y.sum() > -100)

    x = torch.randn(4, requires_grad=True)
    report("graph break", gradients(torch.compile(broken)(x).sum(), x))


SITUATIONS: tuple[Callable[[], None], ...] = (
    recompiles_with_dynamic_shapes, user_modes, grad_modes, checkpointed, operators_of_the_user, backward_twice,
    subclass_and_parameters, logging_of_the_user, warnings_are_errors, graph_breaks,
)  # fmt: skip


def main(names: list[str]) -> None:
    torch.manual_seed(5)
    np.random.seed(6)
    random.seed(7)
    for situation in SITUATIONS:
        if not names or situation.__name__ in names:
            situation()
            evidence.surroundings()
            evidence.settings()


main(sys.argv[1:])
