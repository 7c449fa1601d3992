"""The models that tests share, all tiny: their weights hang on the seed alone, and each call makes a new one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Loss = Callable[[Callable[..., torch.Tensor]], torch.Tensor]
Step = tuple[nn.Module, Loss]
"""A model, and what calls it, or what it was compiled to, and gives the loss."""


def convnet(*, dropout: float = 0.0) -> nn.Sequential:
    """For images of shape (N, 3, 8, 8); gives (N, 3)."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),  # with a bias, its gradient would be all cancellation
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(4 * 16, 3),
    )


def gpt2(**config: Any) -> Any:
    """A GPT2LMHeadModel of one layer of width 16, with 32 words and 16 positions, unless `config` says otherwise."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 32, "n_positions": 16}
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**{**sizes, **config}))


NO_CACHE = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
"""Of `gpt2`: keys and values are no results."""


def convnet_step(dtype: torch.dtype, *, dropout: float = 0.0) -> Step:
    model = convnet(dropout=dropout).to(dtype)
    x = torch.randn(2, 3, 8, 8).to(dtype)
    return model, lambda call: call(x).float().square().mean()


def gpt2_step(dtype: torch.dtype) -> Step:
    model = gpt2(**NO_CACHE).to(dtype)
    x = torch.randint(0, 32, (2, 8))
    return model, lambda call: call(input_ids=x, labels=x).loss


def bert_step(dtype: torch.dtype) -> Step:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(**sizes, vocab_size=32, max_position_embeddings=16)).to(dtype)
    x, y = torch.randint(0, 32, (2, 8)), torch.tensor([0, 1])
    return model, lambda call: call(input_ids=x, labels=y).loss
