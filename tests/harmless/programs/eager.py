"""Eager programs of many kinds, and evidence of all that they compute; `dump DIR LEVEL DATA` watches them."""

import sys
import traceback
import warnings
from contextlib import nullcontext
from typing import Any

import evidence
import families
import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import graphprobe


def say(name: str, *values: Any) -> None:
    # Copies: how often a gradient was written to may differ, since a dump holds it when more is added.
    plain = [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in values]
    evidence.say(name, evidence.bits(plain))


def trained(name: str) -> None:
    model, batches = families.FAMILIES[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for batch in batches:
        loss, out = model(*batch)
        loss.backward()
        say(f"{name} out", out, type(out.grad_fn).__name__, *(value.grad for value in model.parameters()))
        optimizer.step()
        optimizer.zero_grad()
    say(f"{name} state", *model.state_dict().values())


def models() -> None:
    trained("gpt2")
    trained("convnet")
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Flatten(), nn.Linear(12, 4))
    say("dropout", model(torch.randn(4, 3, 2, 2)))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * 2 + x * 0


def functions() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    y = Double.apply(x)
    y.sum().backward()
    say("function", y, x.grad)
    say("vmap", torch.vmap(lambda v: v.sin().sum())(x.detach()))
    say("per sample", torch.vmap(torch.func.grad(lambda v: v.pow(3).sum()))(x.detach()))
    say("jvp", *torch.func.jvp(torch.sin, (x.detach(),), (torch.ones(3, 4),)))
    say("hessian", torch.func.hessian(lambda v: v.pow(3).sum())(torch.ones(2)))
    z = x.pow(3).sum()
    (first,) = torch.autograd.grad(z, x, create_graph=True)
    first.sum().backward()
    say("double backward", first, x.grad)


def checkpoints() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    for reentrant in (False, True):
        x = torch.randn(2, 4, requires_grad=True)
        out = checkpoint(model, x, use_reentrant=reentrant)
        out.sum().backward()
        say(f"checkpoint {reentrant}", out, x.grad, model[0].weight.grad)


def in_place() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    y = nn.functional.linear(x, torch.ones(3, 6, requires_grad=True))
    y.add_(1).mul_(2)
    y[0] = 1.0
    y[1:, :2].add_(x[1:, :2])
    y.sum().backward()
    say("in place", y, x.grad, y._version, x._version)
    a = np.zeros(3, np.float32)
    t = torch.from_numpy(a)
    a[:] = 5
    say("numpy", t.add(1))
    out = torch.empty(2, 2)
    torch.mm(torch.ones(2, 2), torch.ones(2, 2), out=out)
    say("out", out)


def hooks_and_errors() -> None:
    model = nn.Linear(3, 3)
    seen: list[str] = []
    model.register_forward_hook(lambda *_: seen.append("forward"))
    model.register_full_backward_hook(lambda *_: seen.append("backward"))
    x = torch.randn(2, 3, requires_grad=True)
    x.register_hook(lambda g: seen.append("tensor"))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (seen.append("pack"), t)[1], lambda t: t):
        model(x).sum().backward()
    say("hooks", seen, x.grad)
    for wrong in (
        lambda: torch.mm(torch.ones(2, 3), torch.ones(2, 3)),
        lambda: model(torch.ones(5)),
        lambda: torch.ones(2).backward(),
        lambda: torch.ones(2).nothing,
        lambda: torch.nn.functional.cross_entropy(torch.ones(2, 3), torch.tensor([7, 0])),
        lambda: torch.tensor([1.0]) + "text",
    ):
        try:
            wrong()
        except Exception as error:
            say("raised", type(error).__name__, str(error), len(error.args))
            say("from", traceback.extract_tb(error.__traceback__)[0].name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _ = torch.ones(2, 2, 2).T
        say("warned", [w.category.__name__ for w in caught])


def state() -> None:
    say("rng", torch.get_rng_state(), torch.rand(3))
    say("modes", torch.is_grad_enabled(), torch.is_inference_mode_enabled())


def main() -> None:
    watch: Any = nullcontext()
    if sys.argv[1:2] == ["dump"]:
        watch = graphprobe.dump(sys.argv[2], level=sys.argv[3], data=sys.argv[4])
    torch.manual_seed(0)
    with watch:
        for program in (models, functions, checkpoints, in_place, hooks_and_errors, state):
            program()
    say("depth", torch._C._len_torch_function_stack())


if __name__ == "__main__":
    main()
