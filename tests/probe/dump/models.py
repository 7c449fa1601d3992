"""Small models whose compiled steps are compared."""

from __future__ import annotations

from collections.abc import Callable

import torch

Loss = Callable[[Callable[..., torch.Tensor]], torch.Tensor]


def convnet(dtype: torch.dtype, *, dropout: float = 0.0) -> tuple[torch.nn.Module, Loss]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1, bias=False),  # with a bias, its gradient would be all cancellation
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Dropout(dropout),
        torch.nn.Linear(4 * 16, 3),
    ).to(dtype)
    x = torch.randn(2, 3, 8, 8).to(dtype)
    return model, lambda call: call(x).float().square().mean()


def gpt2(dtype: torch.dtype) -> tuple[torch.nn.Module, Loss]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 32, "n_positions": 16}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, use_cache=False)).to(dtype)
    x = torch.randint(0, 32, (2, 8))
    return model, lambda call: call(input_ids=x, labels=x).loss


def bert(dtype: torch.dtype) -> tuple[torch.nn.Module, Loss]:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(**sizes, vocab_size=32, max_position_embeddings=16)).to(dtype)
    x, y = torch.randint(0, 32, (2, 8)), torch.tensor([0, 1])
    return model, lambda call: call(input_ids=x, labels=y).loss
