"""A GPT-2 of one layer, built from a configuration, and one backward pass."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=64,
    n_positions=8,
    n_embd=16,
    n_layer=1,
    n_head=2,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    bos_token_id=0,
    eos_token_id=1,
    use_cache=False,
)
model = GPT2LMHeadModel(config).train()
model.loss_type = "ForCausalLM"  # its default too, but it says so with a warning, and that breaks the graph
tokens = torch.randint(64, (2, 8))
loss = torch.compile(model)(input_ids=tokens, labels=tokens).loss
loss.backward()
print(f"loss {loss.item():.4f}")
