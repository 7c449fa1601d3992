"""Trainings for `drift`, healthy and with faults of compiled code, as functions that make a step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

VOCABULARY = 64


class Attention(nn.Module):
    def __init__(self, d: int, dropout: float) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc1, self.fc2, self.drop = nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.ln1(x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + self.drop(self.out(seen))
        return x + self.drop(self.fc2(F.gelu(self.fc1(self.ln2(x)))))


class GPT(nn.Module):
    def __init__(self, d: int = 32, dropout: float = 0.1) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCABULARY, d), nn.Embedding(16, d)
        self.blocks = nn.ModuleList(Attention(d, dropout) for _ in range(2))
        self.ln, self.head = nn.LayerNorm(d), nn.Linear(d, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1])
        angles = places.float()[:, None] * torch.arange(1, self.tok.embedding_dim + 1) * 1.7
        x = self.tok(tokens) + self.pos(places) + angles.sin()
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.ln(x)).flatten(0, 1).float(), tokens.roll(-1, 1).flatten())


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.cross_entropy(self.head(x.mean((2, 3))).float(), torch.arange(len(x)) % 10)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.cell = nn.Linear(8, 16), nn.LSTMCell(16, 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 1)

    def parts(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.tanh(part) for part in x.unbind(1)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = x.new_zeros(len(x), 16), x.new_zeros(len(x), 16)
        for part in self.parts(self.fc(x)):
            seen = self.cell(part.to(x.dtype), seen)
        return (self.head(self.norm(seen[0])).float() - x[:, :, 0].sum(1, keepdim=True).sin()).square().mean()


class RecurrentOverViews(Recurrent):
    """Of torch 2.13 and Inductor: the memory of `tanh` is used again while views of its result are still to be read."""

    def parts(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [*torch.tanh(x).unbind(1)]


def tokens(step: int, rows: int) -> torch.Tensor:
    drawn = torch.randint(0, VOCABULARY, (rows, 1), generator=torch.Generator().manual_seed(step % 16))
    return (drawn + torch.arange(16) * (1 + drawn % 5)) % VOCABULARY


def images(step: int, rows: int) -> torch.Tensor:
    return torch.randn(rows, 3, 12, 12, generator=torch.Generator().manual_seed(step % 16))


def sequences(step: int, rows: int) -> torch.Tensor:
    return torch.randn(rows, 6, 8, generator=torch.Generator().manual_seed(step % 16))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], torch.Tensor], Callable[..., Any]]] = {
    "gpt": (GPT, tokens, lambda p: torch.optim.AdamW(p, lr=1e-3)),
    "conv": (Convolutions, images, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    "lstm": (Recurrent, sequences, lambda p: torch.optim.AdamW(p, lr=3e-3)),
    "views": (RecurrentOverViews, sequences, lambda p: torch.optim.AdamW(p, lr=3e-3)),
}


class Skewed(torch.autograd.Function):
    """Leaves a value as it is, and changes its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, change: Any) -> Any:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.change(gradient), None


@dataclass
class Plan:
    """A training, `make_step` of `drift`.

    Attributes:
        model: of `MODELS`.
        autocast: in bfloat16.
        backend: what the model is compiled with.
        rows: of a step's batch.
        seed: of the parameters.
    """

    model: str
    autocast: bool = False
    backend: Any = "inductor"
    rows: Callable[[int], int] = lambda step: 8
    seed: int = 0

    def __call__(self) -> Callable[[], None]:
        torch.manual_seed(self.seed)
        make, batch, optimizer_of = MODELS[self.model]
        model = make()
        compiled, optimizer, step = torch.compile(model, backend=self.backend), optimizer_of(model.parameters()), 0

        def one() -> None:
            nonlocal step
            step += 1
            with torch.autocast("cpu", torch.bfloat16) if self.autocast else contextlib.nullcontext():
                loss = compiled(batch(step, self.rows(step)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return one


def changed_gradient(change: Callable[[torch.Tensor], torch.Tensor], *, shape: tuple[int, ...], after: int) -> Any:
    """A backend of Inductor's, in whose calls behind the first so many one parameter's gradient is changed."""
    from torch._inductor.compile_fx import compile_fx

    def backend_with_a_late_fault(graph: Any, inputs: list[Any]) -> Callable[..., Any]:
        compiled, calls = compile_fx(graph, inputs), 0
        places = [i for i, one in enumerate(inputs) if isinstance(one, nn.Parameter) and one.shape == shape]

        def call(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > after:
                args = tuple(Skewed.apply(one, change) if i in places[-1:] else one for i, one in enumerate(args))
            return compiled(*args)

        return call

    return backend_with_a_late_fault


def edited(edit: Callable[[torch.fx.Node], None]) -> Any:
    """A backend of Inductor's that edits each node of the graph before it compiles it."""
    from torch._inductor.compile_fx import compile_fx

    def backend_that_edits(graph: Any, inputs: list[Any]) -> Callable[..., Any]:
        for node in list(graph.graph.nodes):
            edit(node)
        graph.recompile()
        return compile_fx(graph, inputs)

    return backend_that_edits


def wrong_epsilon(node: torch.fx.Node) -> None:
    if node.target is F.layer_norm:
        node.args = (*node.args[:4], 1e-3)


def wrong_momentum(node: torch.fx.Node) -> None:
    if node.target is F.batch_norm:
        node.args = (*node.args[:6], 0.2, *node.args[7:])


def digits_of_bfloat16(x: torch.Tensor) -> torch.Tensor:
    """Cut to what bfloat16 holds; a pair of casts would be left out by Inductor."""
    exact = x.detach()
    return x + ((exact.view(torch.int32) & -(1 << 16)).view(torch.float32) - exact)


def dropped_cast(node: torch.fx.Node) -> None:
    """A mean, or the sine of an angle, is of what bfloat16 holds."""
    if node.op == "call_method" and node.target in ("mean", "sin"):
        with node.graph.inserting_before(node):
            node.args = (node.graph.call_function(digits_of_bfloat16, (node.args[0],)), *node.args[1:])


def wrong_for_short_batches(rows: int) -> Any:
    """A backend of Inductor's whose code takes the first row of a batch of so many rows for its last one."""
    from torch._inductor.compile_fx import compile_fx

    def backend_that_takes_a_row_twice(graph: Any, inputs: list[Any]) -> Callable[..., Any]:
        compiled = compile_fx(graph, inputs)

        def call(*args: Any) -> Any:
            batches = [isinstance(x, torch.Tensor) and x.dtype == torch.int64 and len(x) == rows for x in args]
            pairs = zip(args, batches, strict=True)
            return compiled(*(torch.cat([x[:-1], x[:1]]) if batch else x for x, batch in pairs))

        return call

    return backend_that_takes_a_row_twice
