"""Small trainings that a watch observes: each the same with and without a fault, and the same watched and unwatched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

VOCABULARY = 32


class Gate(nn.Module):
    """An activation that overflows where its inputs are large."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grown = torch.exp(x * self.scale)
        return torch.tanh(grown - 1)


class Block(nn.Module):
    def __init__(self, d: int, dropout: float) -> None:
        super().__init__()
        self.ln, self.fc1, self.gate, self.fc2 = nn.LayerNorm(d), nn.Linear(d, 2 * d), Gate(), nn.Linear(2 * d, d)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.fc2(self.gate(self.fc1(self.ln(x)))))


class SmallGPT(nn.Module):
    def __init__(self, *, d: int = 16, dropout: float = 0.0) -> None:
        super().__init__()
        self.tok = nn.Embedding(VOCABULARY, d)
        self.blocks = nn.ModuleList(Block(d, dropout) for _ in range(2))
        self.head = nn.Linear(d, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tok(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


class Recurrent(nn.Module):
    def __init__(self, *, d: int = 8) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(d, d, batch_first=True), nn.Linear(d, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1]).square().mean()


class Perceptron(nn.Module):
    def __init__(self, *, d: int = 8) -> None:
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(d, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.norm(self.fc1(x)))).square().mean()


def tokens_of(step: int, *, rows: int = 4) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, 8), generator=torch.Generator().manual_seed(step))


def numbers_of(step: int, *, rows: int = 4) -> torch.Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(step))


def sequences_of(step: int, *, rows: int = 4) -> torch.Tensor:
    return torch.randn(rows, 5, 8, generator=torch.Generator().manual_seed(step))


@dataclass
class Training:
    """A training: `run` makes its steps, and says what came of them.

    Attributes:
        make: the model.
        batch: of a step, from 1.
        backend: of torch.compile; None: the model is not compiled.
        before: called with the model ahead of each step.
        accumulate: backwards of a step.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[int], torch.Tensor]
    backend: Any = "eager"
    before: Callable[[nn.Module, int], None] = lambda model, step: None
    accumulate: int = 1
    scaler: Any = None
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    losses: list[float] = field(default_factory=list)

    def run(self, steps: int) -> tuple[list[float], list[torch.Tensor]]:
        """The losses and the final parameters."""
        torch.manual_seed(7)
        model = self.make()
        called = model if self.backend is None else torch.compile(model, backend=self.backend)
        optimizer = self.optimizer(model.parameters(), lr=1e-3)
        self.losses = []
        for step in range(1, steps + 1):
            self.before(model, step)
            optimizer.zero_grad()
            for part in range(self.accumulate):
                loss = called(self.batch(step * self.accumulate + part if self.accumulate > 1 else step))
                (loss if self.scaler is None else self.scaler.scale(loss)).backward()
                self.losses.append(loss.item())
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer)
                self.scaler.update()
        return self.losses, [p.detach().clone() for p in model.parameters()]


def wrong_for(rows: int, spoil: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """A backend that compiles a graph as it is, but for batches of so many rows, whose results it spoils."""

    def backend_with_a_wrong_kernel(graph: Any, inputs: list[Any]) -> Callable[..., Any]:
        late = any(isinstance(one, torch.Tensor) and one.dim() and one.shape[0] == rows for one in inputs)

        def call(*args: Any) -> Any:
            return tuple(spoil(result) if late else result for result in graph(*args))

        return call

    return backend_with_a_wrong_kernel


def wrong_after(calls: int) -> Callable[..., Any]:
    """A backend whose first code goes wrong after so many calls: compiled afresh, all is right."""
    compiled = []

    def backend_with_stale_code(graph: Any, inputs: list[Any]) -> Callable[..., Any]:
        number = len(compiled)
        compiled.append(0)

        def call(*args: Any) -> Any:
            compiled[number] += 1
            wrong = number == 0 and compiled[number] > calls
            return tuple(result * float("nan") if wrong else result for result in graph(*args))

        return call

    return backend_with_stale_code


def in_steps(steps: int) -> Iterator[int]:
    yield from range(1, steps + 1)
