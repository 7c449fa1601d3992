"""Training steps of one model family, two on Inductor, one on each other backend: `families.py FAMILY [BACKEND…]`."""

import copy
import functools
import os
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import evidence
import numpy as np
import torch
from torch import nn

Batches = list[tuple[torch.Tensor, ...]]
Make = Callable[[], tuple[nn.Module, Batches]]


class Loss(nn.Module):
    """The loss and what else it is computed from, of a model of transformers."""

    def __init__(self, body: nn.Module, given: str) -> None:
        super().__init__()
        self.body, self.given = body, given

    def forward(self, values: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.body(**{self.given: values}, labels=labels)
        return out.loss, out.logits


ENCODER = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 1},
    ),
    "bert": ("BertForSequenceClassification", {**ENCODER, "max_position_embeddings": 16, "num_labels": 3}),
    "t5": (
        "T5ForConditionalGeneration",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "relative_attention_num_buckets": 8},
    ),
    "vit": (
        "ViTForImageClassification",
        {**ENCODER, "image_size": 16, "patch_size": 8, "num_labels": 3, "hidden_dropout_prob": 0.1},
    ),
    "llama": ("LlamaForCausalLM", {**ENCODER, "num_attention_heads": 4, "num_key_value_heads": 2}),
}
"""By family: the class of the model, and what is not its default."""
CHANGED = {"vocab_size": 64, "use_cache": False, "decoder_start_token_id": 0, "pad_token_id": 0}


def of_transformers(family: str) -> tuple[nn.Module, Batches]:
    import transformers

    kind, options = TRANSFORMERS[family]
    model = getattr(transformers, kind)
    body = model(model.config_class(**(options if family == "vit" else {**CHANGED, **options})))
    values = torch.randn(2, 3, 16, 16) if family == "vit" else torch.randint(1, 64, (2, 12))
    labels = torch.tensor([0, 2]) if "num_labels" in options else values
    flipped = values.flip(3 if family == "vit" else 0)
    loss = Loss(body, "pixel_values" if family == "vit" else "input_ids")
    return loss, [(values, labels), (flipped, labels if labels is not values else flipped)]


class Convnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, stride=2, groups=2)
        self.head = nn.Linear(8, 5)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.norm(self.first(images)))
        logits = self.head(nn.functional.max_pool2d(self.second(hidden), 2).mean((2, 3)))
        return logits.logsumexp(-1).mean(), logits


def convnet() -> tuple[nn.Module, Batches]:
    images = torch.randn(4, 3, 12, 12)
    return Convnet(), [(images,), (images.to(memory_format=torch.channels_last),)]


class Mutating(nn.Module):
    """Buffers and an input changed in place, a view written through, dropout, random numbers in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.drop = nn.Dropout(0.4)
        self.register_buffer("seen", torch.zeros(6))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, scratch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.add_(1)
        scratch[:, 1:3].mul_(2)
        hidden = self.drop(torch.nn.functional.gelu(self.linear(x + scratch)))
        hidden = hidden + torch.rand_like(hidden) * 0.01
        self.seen.copy_(hidden.detach().mean(0))
        hidden = hidden.clone()
        hidden[:, 0].add_(1)
        return hidden.square().mean(), hidden


def mutating() -> tuple[nn.Module, Batches]:
    scratch = torch.randn(5, 6)
    return Mutating(), [(torch.randn(5, 6), scratch), (torch.randn(5, 6), scratch)]


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.cond(x.sum() > 0, lambda y: self.left(y).relu(), lambda y: self.right(y).sin(), (x,))
        return hidden.square().mean(), hidden


def branching() -> tuple[nn.Module, Batches]:
    x = torch.rand(5, 6)
    return Branching(), [(x,), (-x,)]


FAMILIES: dict[str, Make] = {f.__name__: f for f in (convnet, mutating, branching)}
FAMILIES |= {family: functools.partial(of_transformers, family) for family in TRANSFORMERS}


def seed() -> None:
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)


def main(family: str, backends: list[str]) -> None:
    seed()
    made, batches = FAMILIES[family]()
    for backend in backends:
        module = copy.deepcopy(made).train()
        compiled: Any = torch.compile(module, backend=backend)
        for number, batch in enumerate(batches if backend == "inductor" else batches[:1]):
            given = [value.clone() for value in batch]
            loss, outputs = compiled(*given)
            evidence.step(f"{backend} {number}", module, loss, outputs)
            evidence.say(f"{backend} {number} inputs", evidence.bits(given))
            module.zero_grad()
        random.random()
        np.random.rand()
    warnings.warn("the program's own warning", stacklevel=1)
    evidence.everything()


if __name__ == "__main__":
    with evidence.watched():
        main(sys.argv[1], sys.argv[2:] or ["inductor", "aot_eager", "eager"])
