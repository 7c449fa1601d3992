"""Attention, a graph break, a second shape, and both backwards after both forwards, the last one first."""

import torch


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = torch.nn.Embedding(128, 64), torch.nn.LayerNorm(64)
        self.qkv, self.out, self.head = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out((q @ k.mT / 8).softmax(-1) @ v)
        torch._dynamo.graph_break()
        return torch.log_softmax(self.head(x.mean(1)), -1)


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
