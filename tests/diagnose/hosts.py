"""Realistic models that a pattern is put inside of: a transformer, a gated MLP and a convolutional net, all tiny."""

import math

import torch
from torch import nn
from torch.nn import functional


def identity(h):
    return h


class Attention(nn.Module):
    """Causal, written out by hand, so that no attention pattern of the compiler matches it."""

    def __init__(self, d, heads):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(d, 3 * d), nn.Linear(d, d), heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(d // self.heads)
        past = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        scores = torch.where(past, scores, -1e4)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, d, heads, act, eps):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d, eps=eps), nn.LayerNorm(d, eps=eps)
        self.attn = Attention(d, heads)
        self.up, self.down, self.act = nn.Linear(d, 2 * d), nn.Linear(2 * d, d), act

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Pre-norm; `inner(h)` is applied after block `at`, `act` is the activation of every block."""

    def __init__(self, act=functional.gelu, inner=identity, at=3, depth=6, d=32, heads=4, vocab=48, ctx=16, eps=1e-5):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Parameter(torch.randn(ctx, d) * 0.1)
        self.blocks = nn.ModuleList(Block(d, heads, act, eps) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)
        self.inner, self.at = inner, at

    def forward(self, ids):
        h = self.tok(ids) + self.pos[: ids.shape[1]]
        for i, block in enumerate(self.blocks):
            h = block(h)
            if i == self.at:
                h = self.inner(h)
        return self.head(self.norm(h))


class MLP(nn.Module):
    """Gated, residual, with RMS norms; `inner(h, *extra)` is applied after layer `at`."""

    def __init__(self, inner=identity, at=2, depth=4, d_in=24, d=32, d_out=10):
        super().__init__()
        self.emb, self.head = nn.Linear(d_in, d), nn.Linear(d, d_out)
        self.norm = nn.ParameterList(torch.ones(d) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(d, 4 * d) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(2 * d, d) for _ in range(depth))
        self.inner, self.at = inner, at

    def forward(self, x, *extra):
        h = self.emb(x)
        for i, (scale, up, down) in enumerate(zip(self.norm, self.up, self.down, strict=True)):
            normed = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * scale
            gate, value = up(normed).chunk(2, -1)
            h = h + down(functional.silu(gate) * value)
            if i == self.at:
                h = self.inner(h, *extra)
        return self.head(torch.tanh(h))


class ConvNet(nn.Module):
    """Residual, with batch norms; `inner(h)` is applied after stage `at`."""

    def __init__(self, inner=identity, at=1, depth=3, c=8, classes=10):
        super().__init__()
        self.stem, self.fc = nn.Conv2d(3, c, 3, padding=1), nn.Linear(c, classes)
        self.conv = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for _ in range(depth))
        self.norm = nn.ModuleList(nn.BatchNorm2d(c) for _ in range(depth))
        self.inner, self.at = inner, at

    def forward(self, x):
        h = functional.relu(self.stem(x))
        for i, (conv, norm) in enumerate(zip(self.conv, self.norm, strict=True)):
            h = h + functional.relu(norm(conv(h)))
            if i == self.at:
                h = self.inner(h)
        return self.fc(functional.max_pool2d(h, 2).mean((2, 3)))


def ids(batch=2, length=12, vocab=48):
    """Token ids that do not depend on the global generator."""
    return (torch.arange(batch * length) * 7 % vocab).view(batch, length)


def transformer(dtype=torch.float32, seed=0, **kwargs):
    torch.manual_seed(seed)
    return Transformer(**kwargs).eval().to(dtype), (ids(),), {}


def mlp(dtype=torch.float32, seed=0, **kwargs):
    torch.manual_seed(seed)
    return MLP(**kwargs).eval().to(dtype), (torch.randn(6, 24).to(dtype),), {}


def convnet(dtype=torch.float32, seed=0, train=False, **kwargs):
    torch.manual_seed(seed)
    return ConvNet(**kwargs).train(train).to(dtype), (torch.randn(2, 3, 8, 8).to(dtype),), {}
