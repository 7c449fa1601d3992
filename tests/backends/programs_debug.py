"""Programs that every debug backend must run as torch itself does, and how to run one with all it changes."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves


class Program(NamedTuple):
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    other_args: tuple[Any, ...] | None = None
    dynamic: bool = False


def mlp() -> Program:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return Program(model, (torch.randn(3, 4),))


def mutating() -> Program:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y.mul_(x)
        return x * 2

    return Program(fn, (torch.ones(3), torch.arange(3.0)))


def branching() -> Program:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos(), (x,))

    return Program(fn, (torch.ones(3, requires_grad=True),), (-torch.ones(3, requires_grad=True),))


def dynamic() -> Program:
    def fn(x: torch.Tensor, n: int) -> Any:
        return x.relu().sum(0), x.shape[0] * n, None, {"scaled": x * n}

    first, second = torch.linspace(-1, 1, 12).view(3, 4), torch.linspace(-1, 1, 20).view(5, 4)
    return Program(fn, (first.requires_grad_(), 3), (second.requires_grad_(), 7), dynamic=True)


PROGRAMS = {"mlp": mlp, "mutating": mutating, "branching": branching, "dynamic": dynamic}


class Transformer(nn.Module):
    """A transformer as a function of token numbers to logits."""

    def __init__(self, name: str) -> None:
        super().__init__()
        import transformers

        torch.manual_seed(0)
        if name == "bert":
            config: Any = transformers.BertConfig(
                vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
            )
            self.model: Any = transformers.BertForMaskedLM(config)
        else:
            config = transformers.GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=1, n_head=2)
            self.model = transformers.GPT2LMHeadModel(config)
        self.eval()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(tokens).logits
        return logits


def run(fn: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    """Everything a call gives and changes: outputs, arguments afterwards, gradients of arguments and parameters."""
    own = [x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in args]
    if isinstance(fn, nn.Module):
        fn.zero_grad()
    outputs = tree_leaves(fn(*own))
    differentiable = [x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
    if differentiable:
        torch.stack([(x * x).sum() for x in differentiable]).sum().backward()
    tensors = [x for x in own if isinstance(x, torch.Tensor)]
    parameters = list(fn.parameters()) if isinstance(fn, nn.Module) else []
    gradients = [copy.deepcopy(x.grad) for x in (*tensors, *parameters)]
    return [x.detach() if isinstance(x, torch.Tensor) else x for x in (*outputs, *own, *gradients)]


def same(left: list[Any], right: list[Any], *, exact: bool = True) -> bool:
    def pair(a: Any, b: Any) -> bool:
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            return type(a) is type(b) and bool(a == b)
        close = torch.equal(a, b) if exact else torch.allclose(a, b, rtol=1e-4, atol=1e-5)
        return close and a.dtype == b.dtype and a.stride() == b.stride()

    return len(left) == len(right) and all(pair(a, b) for a, b in zip(left, right, strict=True))
