"""A GPT, and faults as people make them: planted in the program's own Python, one training step."""

import types
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from compare.pairs import Doubled, Run

Plant = Callable[["Gpt"], None]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, **{"is_causal": True} | options)
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln2, self.mlp = nn.LayerNorm(width), Mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    def __init__(self, layers: int = 4, width: int = 64, heads: int = 4, vocabulary: int = 128) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.place(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@cache
def gpt(dtype: torch.dtype = torch.float32, plant: Plant | None = None) -> Run:
    """One step of training, built before the dump begins; trained weights are larger than those of the start."""

    def build() -> Gpt:
        torch.manual_seed(0)
        model = Gpt()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(1.5)
        model = model.to(dtype)
        if plant is not None:
            plant(model)
        return model

    def step(model: Gpt) -> None:
        torch.manual_seed(1)
        ids = torch.randint(0, 128, (2, 16))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        F.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten()).backward()
        optimizer.step()

    return Run(step, build)


def around(pick: Callable[[Gpt], nn.Module], change: Callable[..., torch.Tensor]) -> Plant:
    """`change(inner, *inputs)` in the place of the forward of a module."""

    def plant(model: Gpt) -> None:
        module = pick(model)
        inner = module.forward
        module.forward = lambda *inputs: change(inner, *inputs)  # type: ignore[assignment]

    return plant


def instead(pick: Callable[[Gpt], Any], forward: Callable[..., torch.Tensor]) -> Plant:
    def plant(model: Gpt) -> None:
        module = pick(model)
        module.forward = types.MethodType(forward, module)

    return plant


def flipped(inner: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    y = inner(x)
    with torch.no_grad():
        y.view(-1)[77] *= -1
    return y


def flipped_unseen(inner: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    y = inner(x)
    bits = y.detach().view(torch.int16 if y.dtype is torch.bfloat16 else torch.int32).numpy().reshape(-1)
    bits[77] ^= -(2 ** (8 * bits.itemsize - 1))  # the bit of the sign
    return y


def with_nan(inner: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    y = inner(x).clone()
    y.view(-1)[5] = float("nan")
    return y


def noisy(model: Gpt) -> None:
    weight = model.blocks[2].mlp.fc1.weight
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        weight.copy_(weight.float() * (1 + (1e-3 if weight.dtype is torch.float32 else 1e-2) * noise))


def narrow(self: Any, x: torch.Tensor) -> torch.Tensor:
    lower = torch.bfloat16 if x.dtype is torch.float32 else torch.float8_e4m3fn
    return F.linear(x.to(lower).to(x.dtype), self.weight, self.bias)


def relu_mlp(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.fc2(torch.relu(self.fc1(x)))


def transposed(model: Gpt) -> None:
    weight = model.blocks[1].attn.proj.weight
    with torch.no_grad():
        weight.copy_(weight.t().clone())


def drawn_anew(model: Gpt) -> None:
    weight = model.blocks[2].attn.qkv.weight
    with torch.no_grad():
        weight.copy_(torch.empty_like(weight).normal_(std=0.02, generator=torch.Generator().manual_seed(3)))


def attention_by_hand(self: Any, x: torch.Tensor) -> torch.Tensor:
    batch, length, width = x.shape
    q, k, v = (
        part.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)
        for part in self.qkv(x).chunk(3, dim=-1)
    )
    scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    mixed = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v
    return self.proj(mixed.transpose(1, 2).reshape(batch, length, width))


def in_another_order(self: Any, ids: torch.Tensor) -> torch.Tensor:
    x = self.token(ids) + self.place(torch.arange(ids.shape[1]))
    for number in (0, 2, 1, 3):
        x = self.blocks[number](x)
    return self.head(self.norm(x))


def swapped(model: Gpt) -> None:
    model.blocks[1], model.blocks[2] = model.blocks[2], model.blocks[1]


class Planted(NamedTuple):
    """What changes the model, the module that the first finding must lie in, and its kind."""

    plant: Plant
    module: str
    kind: str = "extra_call"


FAULTS: dict[str, Planted] = {
    "flipped element": Planted(around(lambda m: m.blocks[2].attn.proj, flipped), "blocks.2"),
    "flipped, unseen": Planted(around(lambda m: m.blocks[2].attn.proj, flipped_unseen), "blocks.2", "changed_unseen"),
    "NaN": Planted(around(lambda m: m.blocks[1].mlp.fc1, with_nan), "blocks.1.mlp"),
    "weight noise": Planted(noisy, "blocks.2.mlp.fc1", "state"),
    "narrow layer": Planted(instead(lambda m: m.blocks[1].attn.proj, narrow), "blocks.1.attn"),
    "gelu by tanh": Planted(
        instead(lambda m: m.blocks[1].mlp, lambda mlp, x: mlp.fc2(F.gelu(mlp.fc1(x), approximate="tanh"))),
        "blocks.1.mlp",
        "scalar",
    ),
    "scale": Planted(around(lambda m: m.blocks[1].attn, lambda f, x: f(x, scale=0.125)), "blocks.1.attn", "scalar"),
    "no causal mask": Planted(
        around(lambda m: m.blocks[1].attn, lambda f, x: f(x, is_causal=False)), "blocks.1.attn", "scalar"
    ),
    "eps": Planted(lambda m: setattr(m.blocks[2].ln2, "eps", 1e-2), "blocks.2.ln2", "scalar"),
    "residual lost": Planted(
        instead(lambda m: m.blocks[2], lambda b, x: b.mlp(b.ln2(x + b.attn(b.ln1(x))))), "blocks.2", "missing_call"
    ),
    "relu for gelu": Planted(instead(lambda m: m.blocks[1].mlp, relu_mlp), "blocks.1.mlp", "replaced_call"),
    "lost gradient": Planted(
        instead(lambda m: m.blocks[2].mlp, lambda mlp, x: mlp.fc2(F.gelu(mlp.fc1(x.detach())))), "blocks.2"
    ),
    "transposed weight": Planted(transposed, "blocks.1.attn.proj", "state"),
    "weight drawn anew": Planted(drawn_anew, "blocks.2.attn.qkv", "state"),
    "data order": Planted(around(lambda m: m.token, lambda f, ids: f(ids.flip(0))), "token"),
    "swapped blocks": Planted(swapped, "blocks.1", "state"),
    "doubled gradient": Planted(around(lambda m: m.blocks[2].mlp.fc1, lambda f, x: f(Doubled.apply(x))), "blocks.2"),
    "times 1.02": Planted(around(lambda m: m.blocks[1].ln2, lambda f, x: f(x) * 1.02), "blocks.1.ln2"),
    "one more op": Planted(around(lambda m: m.blocks[2].ln2, lambda f, x: f(x * 1.5)), "blocks.2.ln2"),
    "head plus 0.01": Planted(around(lambda m: m.head, lambda f, x: f(x) + 0.01), "head"),
    "weight gradient times 1.05": Planted(lambda m: m.blocks[2].attn.proj.weight.register_hook(lambda g: g * 1.05), ""),
    "frozen weight": Planted(
        lambda m: m.blocks[1].mlp.fc2.weight.requires_grad_(False), "blocks.1.mlp.fc2", "lost_gradient"
    ),
}
