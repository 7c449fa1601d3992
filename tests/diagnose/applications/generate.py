"""Generation with a static KV cache, the forward compiled: a prompt, then one token at a time into the same memory."""

import sys

import fault
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    ends = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **ends, vocab_size=32, max_position_embeddings=32, hidden_act="relu"))
    model.eval().forward = torch.compile(model.forward, fullgraph=True)
    prompt = torch.randint(1, 32, (1, 5))
    made = model.generate(prompt, max_new_tokens=4, do_sample=False, cache_implementation="static")
    print("step", tuple(made.shape))


if __name__ == "__main__":
    main(*fault.arguments(sys.argv[1:]))
