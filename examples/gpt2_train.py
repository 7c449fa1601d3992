"""Two training steps of a small GPT-2, compiled with torch.compile: something real to watch with graphprobe.

Run it as `graphprobe run examples/gpt2_train.py`. The model is built from a configuration, so nothing is downloaded.
"""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import GPT2Config, GPT2LMHeadModel

VOCABULARY = 512
BATCH, SEQUENCE = 2, 32


def build_model() -> GPT2LMHeadModel:
    """A GPT-2 with 4 layers of width 128; dropout is off so that the losses are the same in every run."""
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=SEQUENCE,
        n_embd=128,
        n_layer=4,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=1,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # its default too, but it says so with a warning, and that breaks the graph
    return model


def main(steps: int = 2) -> None:
    torch.manual_seed(0)
    model = build_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compiled = torch.compile(model)
    tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE))
    for step in range(steps):
        optimizer.zero_grad()
        loss = compiled(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
