"""Training steps of one model family, two on Inductor, one on each other backend: `families.py FAMILY [BACKEND…]`."""

import copy
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

Make = Callable[[], tuple[nn.Module, list[tuple[torch.Tensor, ...]]]]


def gpt2() -> tuple[nn.Module, list[tuple[torch.Tensor, ...]]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=1, n_embd=32, n_head=2, vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=1, use_cache=False
    )  # fmt: skip
    tokens = torch.randint(64, (2, 12))
    return Loss(GPT2LMHeadModel(config), "input_ids"), [(tokens, tokens), (tokens.flip(0), tokens.flip(0))]


def bert() -> tuple[nn.Module, list[tuple[torch.Tensor, ...]]]:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=64,
        max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    tokens, labels = torch.randint(64, (2, 12)), torch.tensor([0, 2])
    return Loss(BertForSequenceClassification(config), "input_ids"), [(tokens, labels), (tokens.flip(0), labels)]


class Loss(nn.Module):
    """The loss and what else it is computed from, of a model of transformers."""

    def __init__(self, body: nn.Module, given: str, result: str = "logits") -> None:
        super().__init__()
        self.body, self.given, self.result = body, given, result

    def forward(self, values: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.body(**{self.given: values}, labels=labels)
        return out.loss, getattr(out, self.result)


def t5() -> tuple[nn.Module, list[tuple[torch.Tensor, ...]]]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, dropout_rate=0.1, use_cache=False,
        decoder_start_token_id=0, pad_token_id=0, relative_attention_num_buckets=8,
    )  # fmt: skip
    tokens = torch.randint(1, 64, (2, 12))
    return Loss(T5ForConditionalGeneration(config), "input_ids"), [(tokens, tokens.flip(1)), (tokens.flip(0), tokens)]


def vit() -> tuple[nn.Module, list[tuple[torch.Tensor, ...]]]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=64, image_size=16, patch_size=8,
        num_labels=3, hidden_dropout_prob=0.1,
    )  # fmt: skip
    images, labels = torch.randn(2, 3, 16, 16), torch.tensor([0, 2])
    return Loss(ViTForImageClassification(config), "pixel_values"), [(images, labels), (images.flip(3), labels)]


def llama() -> tuple[nn.Module, list[tuple[torch.Tensor, ...]]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=1, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        vocab_size=64, max_position_embeddings=16, use_cache=False,
    )  # fmt: skip
    tokens = torch.randint(64, (2, 12))
    return Loss(LlamaForCausalLM(config), "input_ids"), [(tokens, tokens), (tokens.flip(0), tokens)]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(6, 8, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, (last, _) = self.cells(x)
        logits = self.head(hidden[:, -1] + last[-1])
        return logits.logsumexp(-1).mean(), logits


def lstm() -> tuple[nn.Module, list[tuple[torch.Tensor, ...]]]:
    x = torch.randn(3, 5, 6)
    return Recurrent(), [(x,), (x.flip(1),)]


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


def convnet() -> tuple[nn.Module, list[tuple[torch.Tensor, ...]]]:
    images = torch.randn(4, 3, 12, 12)
    return Convnet(), [(images,), (images.to(memory_format=torch.channels_last),)]


class Half(Convnet):
    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, logits = super().forward(images)
        return loss.float(), logits


def autocast() -> tuple[nn.Module, list[tuple[torch.Tensor, ...]]]:
    return Half(), convnet()[1]


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


def mutating() -> tuple[nn.Module, list[tuple[torch.Tensor, ...]]]:
    scratch = torch.randn(5, 6)
    return Mutating(), [(torch.randn(5, 6), scratch), (torch.randn(5, 6), scratch)]


class Breaking(Mutating):
    """The same in two graphs, both of which write to what came from outside."""

    def forward(self, x: torch.Tensor, scratch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scratch[0].add_(1)
        self.seen.mul_(0.5)
        torch._dynamo.graph_break()
        return super().forward(x, scratch + self.seen)


def breaking() -> tuple[nn.Module, list[tuple[torch.Tensor, ...]]]:
    return Breaking(), mutating()[1]


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.cond(x.sum() > 0, lambda y: self.left(y).relu(), lambda y: self.right(y).sin(), (x,))
        return hidden.square().mean(), hidden


def branching() -> tuple[nn.Module, list[tuple[torch.Tensor, ...]]]:
    x = torch.rand(5, 6)
    return Branching(), [(x,), (-x,)]


FAMILIES: dict[str, Make] = {
    f.__name__: f
    for f in (gpt2, bert, t5, vit, llama, lstm, convnet, autocast, mutating, breaking, branching)
}  # fmt: skip


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
