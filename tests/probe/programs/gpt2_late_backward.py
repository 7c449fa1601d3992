"""GPT-2: a graph break in the middle, a second shape, and both backwards after both forwards, the last one first."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import GPT2Config, GPT2Model


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = GPT2Config(
            n_layer=4, n_embd=64, n_head=4, vocab_size=128, n_positions=32, bos_token_id=0, eos_token_id=1,
            use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
        self.body = GPT2Model(config)
        self.head = torch.nn.Linear(64, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.body(tokens).last_hidden_state
        torch._dynamo.graph_break()
        return torch.log_softmax(self.head(hidden.mean(1)), -1)


def main() -> None:
    torch.manual_seed(0)
    model = Classifier()
    compiled = torch.compile(model, dynamic=False)
    losses = []
    for length in (16, 24):
        tokens = torch.randint(128, (2, length))
        losses.append(-compiled(tokens)[:, 0].mean())
    for loss in reversed(losses):
        loss.backward()
    norm = sum(float(p.grad.double().norm()) for p in model.parameters() if p.grad is not None)
    print("RESULT", [loss.item() for loss in losses], norm)


main()
