"""Networks that are written out here: a U-Net, a diffusion transformer, an LSTM, and a tagger over a Mamba model.

Each takes its batch as keywords and returns the loss first, as the models of transformers do when they have labels.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class ConvBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(n, channels, 3, padding=1) for n in (channels_in, channels))
        self.norms = nn.ModuleList(nn.GroupNorm(4, channels) for _ in range(2))
        self.skip = nn.Conv2d(channels_in, channels, 1) if channels_in != channels else nn.Identity()
        self.dropout = nn.Dropout2d(0.1)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.silu(self.norms[0](self.first(x)))
        return self.skip(x) + functional.silu(self.norms[1](self.second(self.dropout(h))))


class UNet(nn.Module):
    """Segments images of shape (batch, 3, side, side) into classes; one level down, one up, and what skips them."""

    def __init__(self, classes: int = 4, width: int = 8) -> None:
        super().__init__()
        self.down, self.middle, self.join = ConvBlock(3, width), ConvBlock(width, width), ConvBlock(2 * width, width)
        self.up, self.head = nn.ConvTranspose2d(width, width, 2, stride=2), nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        passed = self.down(images)
        raised = self.up(self.middle(functional.max_pool2d(passed, 2)))
        logits = self.head(self.join(torch.cat([raised, passed], 1)))
        return functional.cross_entropy(logits, labels), logits


class DiffusionBlock(nn.Module):
    """Attention and a perceptron, with shifts, scales and gates made of the condition."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(d, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.attention = nn.MultiheadAttention(d, heads, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU("tanh"), nn.Dropout(0.1), nn.Linear(2 * d, d))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(d, 6 * d))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition)[:, None].chunk(6, -1)
        h = self.norm1(x) * (1 + scale1) + shift1
        x = x + gate1 * self.attention(h, h, h, need_weights=False)[0]
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class Diffusion(nn.Module):
    """Predicts the noise that was added to latents of shape (batch, 4, side, side) at a time in 0 … 999."""

    def __init__(self, d: int = 32, heads: int = 4, depth: int = 1, patch: int = 2, side: int = 8) -> None:
        super().__init__()
        self.patch, self.d = patch, d
        self.embed = nn.Conv2d(4, d, patch, stride=patch)
        self.position = nn.Parameter(torch.randn(1, (side // patch) ** 2, d) * 0.1)
        self.time = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d))
        self.classes = nn.Embedding(10, d)
        self.blocks = nn.ModuleList(DiffusionBlock(d, heads) for _ in range(depth))
        self.head = nn.Linear(d, 4 * patch * patch)
        self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0))

    def forward(self, latents: Tensor, noise: Tensor, times: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        kept = self.kept[times][:, None, None, None]
        x = self.embed(kept.sqrt() * latents + (1 - kept).sqrt() * noise).flatten(2).transpose(1, 2) + self.position
        rates = torch.exp(-math.log(10000) * torch.arange(self.d // 2, device=times.device) / (self.d // 2))
        angles = times[:, None] * rates
        condition = self.time(torch.cat([angles.cos(), angles.sin()], -1).to(latents.dtype)) + self.classes(labels)
        for block in self.blocks:
            x = block(x, condition)
        noise_found = functional.pixel_shuffle(self.head(x).transpose(1, 2).unflatten(2, (-1, 4)), self.patch)
        return functional.mse_loss(noise_found, noise), noise_found


class Lstm(nn.Module):
    """Reads ids with a bidirectional LSTM of two layers, and writes labels with a cell, step by step.

    Dynamo takes no `nn.LSTM`, and leaves the function in which it meets one uncompiled: reading breaks the graph.
    """

    def __init__(self, vocabulary: int = 50, d: int = 16, hidden: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, d, padding_idx=0)
        self.read = nn.LSTM(d, hidden, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.start, self.write = nn.Linear(2 * hidden, hidden), nn.LSTMCell(d, hidden)
        self.head, self.dropout = nn.Linear(hidden, vocabulary), nn.Dropout(0.1)

    @torch.compiler.disable
    def states(self, embedded: Tensor) -> Tensor:
        return self.read(embedded)[0]

    def forward(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.start(self.states(self.dropout(self.embed(ids))).mean(1)))
        cell, last, logits = torch.zeros_like(h), torch.zeros_like(labels[:, 0]), []
        for step in range(labels.shape[1]):
            h, cell = self.write(self.dropout(self.embed(last)), (h, cell))
            logits.append(self.head(self.dropout(h)))
            last = labels[:, step]
        stacked = torch.stack(logits, 1)
        return functional.cross_entropy(stacked.flatten(0, 1), labels.flatten()), stacked


class Tagger(nn.Module):
    """A label for each token, out of what another model makes of the ids."""

    def __init__(self, model: nn.Module, d: int, labels: int) -> None:
        super().__init__()
        self.model, self.dropout, self.head = model, nn.Dropout(0.1), nn.Linear(d, labels)

    def forward(self, input_ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        h = self.model(input_ids=input_ids, use_cache=False)[0].to(self.head.weight.dtype)
        logits = self.head(self.dropout(h))
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()), logits
