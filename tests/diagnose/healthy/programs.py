"""Healthy programs, one for `graphprobe diagnose programs.py:FAMILY_PRECISION_MODE` each.

FAMILY is one of `families.FAMILIES`. PRECISION is `fp32`, `bf16` (weights and inputs), or `autocast` to bfloat16. MODE
is `inference` (no gradients are required, no dropout) or `training` (the loss, with dropout).
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from families import FAMILIES, PRECISIONS, Batch, made
from torch import Tensor, nn

MODES = ("inference", "training")


class Autocast(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(**batch)


def make(family: str, precision: str, mode: str) -> tuple[Callable[..., Any], tuple[()], Batch]:
    """A program as `diagnose` takes it: what to call, and with which arguments and keywords."""
    model, draw = made(family, precision)
    model = Autocast(model) if precision == "autocast" else model
    if mode == "inference":
        return model.eval().requires_grad_(False), (), draw()
    model.train()

    def step(**batch: Any) -> Tensor:
        return model(**batch)[0]

    return step, (), draw()


for _family in FAMILIES:
    for _precision in PRECISIONS:
        for _mode in MODES:
            globals()[f"{_family}_{_precision}_{_mode}"] = functools.partial(make, _family, _precision, _mode)
