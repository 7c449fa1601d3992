"""Programs with several causes of graph breaks in loops, and behind breaks at which Dynamo gives up."""

import copy
import logging
import random
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

log = logging.getLogger("loops")
lock = threading.Lock()
seen: dict[str, Any] = {}


@torch.compiler.disable
def left_out(x):
    return x + 1


class Experts(nn.Module):
    """`x[mask]` routing, empty selections, and an early exit with a warning that the run does not reach."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        chosen, out = self.gate(x).argmax(-1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]  # here: capture_dynamic_output_shape_ops
            if len(rows) == 0:  # here: leave out
                continue
            out[rows] = expert(x[rows])
        if out.abs().max() > 1000:  # here
            log.warning("large")  # here: is_compiling
        return out


class Routed(nn.Module):
    """The program of a user who asked why `explain` told him of two of its places."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Experts() for _ in range(2)])

    def forward(self, x):
        n = int((x.sum(-1) > 0).sum())  # here: capture_scalar_outputs
        x = x[:n]
        for number, layer in enumerate(self.layers):
            x = x + layer(x)
            if x.abs().max() > 5000:  # here
                log.warning("exit at layer %d", number)  # here: is_compiling
                break
            seen[f"layer{number}"] = x.mean().item()  # here: use `x.mean()`
        top = x.norm(dim=-1).tolist()  # here
        return x[torch.as_tensor(np.argsort(top).copy())]


class Masked(nn.Module):
    def forward(self, x):
        total = torch.zeros(())
        for level in range(2):
            total = total + x[x > level].sum()  # here: torch.where
            seen[f"level{level}"] = total.item()  # here: use `total`
        return total


class Cache(nn.Module):
    """A cache whose length the program keeps in a tensor."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(8, 4))
        self.register_buffer("length", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        for row in x:
            self.keys[int(self.length)] = row  # here: index_copy_
            self.length += 1
        return self.keys[: int(self.length)].sum(0)  # here: capture_scalar_outputs


def logged(x):
    for step in range(2):
        x = x * 2
        log.info("%s: %s", step, x.mean().item())  # here: use `x.mean()`
    return x


def printed(x):
    for step in range(2):
        print("step", step)  # here: is_compiling
        x = x.sin()
        if x.sum() > 0:  # here: torch.where
            x = x.cos()
    return x


def exit_early(x):
    for _ in range(3):
        x = x * 1.5
        if x.norm() > 5:  # here
            print("left")  # here: is_compiling
            break
    return x.tolist()  # here


def until(x):
    while x.sum() < 20:  # here: torch.while_loop
        x = x * 2
    warnings.warn("done", stacklevel=1)  # here: is_compiling
    return x.sin()


def timed(x):
    for _ in range(2):
        begun = time.time()  # here
        x = x.sin()
        seen["s"] = time.time() - begun  # here
    return x


def drawn(x):
    for _ in range(2):
        x = x * random.random()  # here: torch.rand
        if np.random.rand() < 2:  # here
            x = x + 1
    return x


def sizes(x):
    found = []
    for n in (1, 2):
        k = int((x > n).sum().item())  # here: capture_scalar_outputs
        found.append(torch.zeros(k + 1))
        torch._dynamo.graph_break()  # here: remove
    return torch.cat(found)


def unique_loop(x):
    out = []
    for scale in (1, 2):
        values = torch.unique(x * scale)  # here: capture_dynamic_output_shape_ops
        out.append(values.sum())
        print("kept")  # here: is_compiling
    return torch.stack(out)


def copies(x):
    for _ in range(2):
        x = copy.deepcopy(x) + 1  # here: clone
        x = left_out(x)  # here: remove
    return x


def asserted(x):
    for _ in range(2):
        assert x.sum() > -100, f"it is {x}"  # here: plain string
        x = x.sin()
    if x.min() > 5:  # here: torch.where
        return x * 2
    return x


def with_lock(x):
    with lock:  # here: around
        y = x * 2
    n = x.sum().item()  # here: use `x.sum()`
    return y * n


def in_try(x):
    try:
        y = x * x.max().item()  # here: use `x.max()`
        torch._dynamo.graph_break()  # here: remove
    except ValueError:
        y = x
    return y.cos()


def helper(x, step):
    y = x.sum().item()  # here: use `x.sum()`
    return x * y if step else x


def called(x):
    for step in range(2):
        x = helper(x, step)
        print(step)  # here: is_compiling
    return x


def chosen(x):
    out = []
    for row in x:
        out.append(row * 2 if row.sum() > 1 else row - 1)  # here: torch.where
        seen["row"] = row.tolist()  # here: use `row`
    return torch.stack(out)


def indexed(x):
    total = x.new_zeros(())
    for row in x:
        best = int(row.argmax())  # here: capture_scalar_outputs
        total = total + row[best]
    return total


def sorted_rows(x):
    kept = []
    for row in x:
        if torch.equal(row, row.abs()):  # here: torch.where
            row = row * 2
        kept.append(row)
        log.warning("row")  # here: is_compiling
    return torch.stack(kept)


def nested(x):
    def inner(y):
        for _ in range(2):
            y = y + y.mean().item()  # here: use `y.mean()`
        return y

    for _ in range(2):
        x = inner(x)
        log.info("next")  # here: is_compiling
    return x


def formatted(x):
    for _ in range(2):
        x = x.sin()
        text = f"{x.mean():.3f}"
        if len(text) > 50:  # here
            x = x + 1
        seen["value"] = str(x.sum())  # here
    return x


def matrix() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4) / 4


LOOPS: list[Callable[..., Any]] = [
    *(Experts, Routed, Masked, Cache, logged, printed, exit_early, until, timed, drawn, sizes, unique_loop),
    *(copies, asserted, with_lock, in_try, called, chosen, indexed, sorted_rows, nested, formatted),
]
"""`# here: …` marks each place, with a part of the remedy that is seen to work; without one, none is shown."""
