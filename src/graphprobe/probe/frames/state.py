"""The settings of torch that change how a frame is traced."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch


def torch_state(dynamo: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What `replaying.configured` sets again, and a line for each setting that JSON cannot hold."""
    kept = {name: value for name, value in dynamo.items() if is_plain(value)}
    notes = [
        f"torch._dynamo.config.{name} is {value!r:.80}, which is not recorded"
        for name, value in dynamo.items()
        if name not in kept
    ]
    state = {
        "grad_enabled": torch.is_grad_enabled(),
        "inference_mode": torch.is_inference_mode_enabled(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "default_device": str(torch.get_default_device()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "autocast": {
            device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            for device in ("cpu", "cuda")
            if torch.is_autocast_enabled(device)
        },
        "dynamo": kept,
    }
    return state, notes


def is_plain(value: Any) -> bool:
    """Whether JSON gives it back as it was."""
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
