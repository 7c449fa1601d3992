"""The programs of `reduce_faults.py`: run as `program.py CASE`, each as a user's script of its own.

CASE is MODEL-DIRECTION-KIND, or one of `EDGES`. A faulty op is in the middle of the model, once:

- forward (under no_grad): a relu. For compile_error, runtime_error and accuracy the script sets Inductor's own
  `cpp.inject_relu_bug_TESTING_ONLY`, which both tools save with the graph.
- backward (training mode): an abs, whose derivative is the only sign of the program. Inductor has no injection for
  sign, so `plant` makes its kernel code wrong, with the text that the injection has for relu.
- what segfaults or hangs has no injection, either, and is planted.

`plant` is called in every process of every tool, as a bug of torch would be in all of them, see `reduce_faults.py`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

KINDS = ("compile_error", "runtime_error", "accuracy", "segfault", "hang")
MODELS = ("mlp", "transformer", "convnet")
DIRECTIONS = ("forward", "backward")
CASES = [f"{model}-{direction}-{kind}" for model in MODELS for direction in DIRECTIONS for kind in KINDS]
EDGES = ("user_backend", "cond", "custom_op", "autograd_function")

CODE = {
    "compile_error": "compile error!",
    "runtime_error": "{x}; throw 1",
    "accuracy": "{x} + decltype({x})(1)",
    "segfault": "[&]() {{ *(volatile int*)8 = 1; return {x}; }}()",
    "hang": "[&]() {{ volatile bool stay = true; while (stay) {{}} return {x}; }}()",
}
"""C++ in the place of an op's own; the first three as in Inductor's injection. Not address 0, because a compiler may
make something else of it."""


def planted(case: str) -> str:
    """OP:KIND for `plant`; empty where the script itself injects the fault."""
    if case in EDGES:
        return ""
    _, direction, kind = case.split("-")
    if direction == "backward":
        return f"sign:{kind}"
    return f"relu:{kind}" if kind in ("segfault", "hang") else ""


def plant(cpp: Any, fault: str) -> None:
    """Make an op of the module `torch._inductor.codegen.cpp` faulty, in scalar and in vector code."""
    op, kind = fault.split(":")
    for owner in (cpp.CppOverrides, cpp.CppVecOverrides):
        setattr(owner, op, staticmethod(lambda x: CODE[kind].format(x=x)))


def main(case: str) -> None:
    import torch

    torch.manual_seed(0)
    if case in EDGES:
        edge(case)
        return
    model, direction, kind = case.split("-")
    if direction == "forward" and not planted(case):
        inject(kind)
    op = torch.relu if direction == "forward" else torch.abs
    net, x = {"mlp": mlp, "transformer": transformer, "convnet": convnet}[model](op)
    compiled = torch.compile(net.train(direction == "backward"))
    if direction == "forward":
        with torch.no_grad():
            compiled(x)
    else:
        compiled(x).square().mean().backward()


def inject(kind: str) -> None:
    import torch._inductor.config

    torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = kind


# --- Models. The op is at half their depth; the weights of the MLP are such that what is wrong there does not fade.


def mlp(op: Callable[[Any], Any], depth: int = 30, d: int = 64) -> Any:
    import torch

    class Mlp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(d, d) for _ in range(depth))
            for layer in self.layers:
                torch.nn.init.normal_(layer.weight, std=1.3 / math.sqrt(d))

        def forward(self, x: Any) -> Any:
            for i, layer in enumerate(self.layers):
                x = op(layer(x)) if i == depth // 2 else torch.tanh(layer(x))
            return x

    return Mlp(), torch.randn(64, d)


def transformer(op: Callable[[Any], Any], depth: int = 6, d: int = 64, heads: int = 4) -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, act: Callable[[Any], Any]) -> None:
            super().__init__()
            self.norm1, self.norm2, self.act = nn.LayerNorm(d), nn.LayerNorm(d), act
            self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))
            self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x: Any) -> Any:
            b, t, _ = x.shape
            y = self.norm1(x)
            q, k, v = (f(y).view(b, t, heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
            scores = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(d // heads), -1)
            x = x + self.out((scores @ v).transpose(1, 2).reshape(b, t, d))
            return x + self.down(self.act(self.up(self.norm2(x))))

    blocks = [Block(op if i == depth // 2 else nn.functional.gelu) for i in range(depth)]
    return nn.Sequential(*blocks, nn.Linear(d, 32)), torch.randn(2, 16, d)


def convnet(op: Callable[[Any], Any], depth: int = 4, channels: int = 16) -> Any:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(channels if i else 3, channels, 3, padding=1) for i in range(depth))
            self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(depth))
            self.head = nn.Linear(channels, 10)

        def forward(self, x: Any) -> Any:
            for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
                x = norm(conv(x))
                x = op(x) if i == depth // 2 else nn.functional.silu(x)
            return self.head(x.mean((2, 3)))

    return Net(), torch.randn(4, 3, 16, 16)


# --- Programs that are hard to start from.


def edge(case: str) -> None:
    """Fails to compile, by the injection or by the user's backend; the fault needs nothing that is special but that."""
    import torch

    if case != "user_backend":
        inject("compile_error")
    with torch.set_grad_enabled(case == "autograd_function"):
        {"user_backend": user_backend, "cond": cond, "custom_op": custom_op, "autograd_function": autograd_function}[
            case
        ](torch)


def user_backend(torch: Any) -> None:
    def backend(gm: Any, _: Any) -> Any:
        if any(node.target is torch.relu for node in gm.graph.nodes):
            raise RuntimeError("this backend has no relu")
        return gm.forward

    torch.compile(lambda x: torch.relu(x.sin() + 1).cos(), backend=backend)(torch.randn(8, 8))


def cond(torch: Any) -> None:
    def f(x: Any) -> Any:
        y = x.sin()
        return torch.cond(y.sum() > 0, lambda t: torch.relu(t) + 1, lambda t: t.cos(), (y,)).tanh() * 2

    torch.compile(f)(torch.randn(8, 8))


def custom_op(torch: Any) -> None:
    @torch.library.custom_op("bench::twice", mutates_args=(), schema="(Tensor x) -> Tensor")
    def twice(x: Any) -> Any:
        return x * 2

    @twice.register_fake
    def _(x: Any) -> Any:
        return torch.empty_like(x)

    torch.compile(lambda x: torch.relu(torch.ops.bench.twice(x.sin()) + 1) * 3)(torch.randn(8, 8))


def autograd_function(torch: Any) -> None:
    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grad * torch.relu(x.cos())

    x = torch.randn(8, 8, requires_grad=True)
    torch.compile(lambda t: Sine.apply(t.tanh()).sum())(x).backward()


if __name__ == "__main__":
    main(sys.argv[1])
