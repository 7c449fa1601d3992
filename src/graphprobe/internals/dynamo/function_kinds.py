"""Functions and modules that torch has wrapped: what is inside."""

from __future__ import annotations

import inspect
import sys
from types import FunctionType
from typing import Any

ORIGINAL, DISABLED = "_torchdynamo_orig_callable", "_torchdynamo_disable"


def uncompiled(value: Any) -> Any:
    """What was given to `torch.compile`, where the value came out of it; else the value."""
    for _ in range(8):
        if type(value) is FunctionType:
            attributes = vars(value)
            if ORIGINAL not in attributes or attributes.get(DISABLED):
                return value
            value = attributes[ORIGINAL]
        elif _is_compiled_module(value):
            value = value._orig_mod
        else:
            return value
    return value


def _is_compiled_module(value: Any) -> bool:
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    kind = getattr(eval_frame, "OptimizedModule", None)
    return inspect.isclass(kind) and type(value) is kind


def disabled_function(function: FunctionType) -> tuple[Any, dict[str, Any]] | None:
    """The function inside of `torch.compiler.disable`, and the arguments of that; None for another function."""
    attributes = vars(function)
    if not attributes.get(DISABLED) or ORIGINAL not in attributes:
        return None
    settings: dict[str, Any] = {"recursive": bool(attributes.get("_torchdynamo_disable_recursive", True))}
    if attributes.get("_torchdynamo_disable_msg") is not None:
        settings["reason"] = attributes["_torchdynamo_disable_msg"]
    return attributes[ORIGINAL], settings
