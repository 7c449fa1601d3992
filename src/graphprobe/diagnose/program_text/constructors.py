"""Modules of torch as the calls that make them: `torch.nn.Linear(3, 4)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch

KEPT_AT = {
    "encoder_layer": "layers.0",
    "decoder_layer": "layers.0",
    "d_model": "self_attn.embed_dim",
    "nhead": "self_attn.num_heads",
    "dim_feedforward": "linear1.out_features",
    "layer_norm_eps": "norm1.eps",
    "batch_first": "self_attn.batch_first",
    "dropout": "dropout.p",
}
"""Where a module keeps an argument that is no attribute of the same name."""

PARTS = ("_parameters", "_buffers", "_modules")


def constructor_text(module: torch.nn.Module, name_of: Callable[[type], str]) -> str | None:
    """The call that makes such a module, with new parameters; None where none is found.

    Args:
        name_of: returns the text of a class.
    """
    try:
        with torch.device("meta"):
            text, made = _constructed(module, name_of)
            same = _facts(made.train(module.training)) == _facts(module)
    except Exception:  # whatever a class says to arguments that are a guess
        return None
    return f"{text}{'' if module.training else '.eval()'}" if same else None


def _constructed(module: torch.nn.Module, name_of: Callable[[type], str]) -> tuple[str, torch.nn.Module]:
    kind: Any = type(module)
    if not kind.__module__.startswith("torch.nn."):
        raise TypeError(kind)
    values: list[tuple[str, Any]] = []
    if kind in (torch.nn.Sequential, torch.nn.ModuleList):
        values = [("", part) for part in module.children()]
    else:
        for name, parameter in inspect.signature(kind).parameters.items():
            value = _argument(module, name, parameter.default)
            if name not in ("device", "dtype") and (value is not parameter.default and value != parameter.default):
                values.append((name, value))
    pairs = [_constructed(v, name_of) if isinstance(v, torch.nn.Module) else (repr(v), v) for _, v in values]
    texts = [text for text, _ in pairs]
    if kind is torch.nn.ModuleList:
        return f"{name_of(kind)}([{', '.join(texts)}])", kind([part for _, part in pairs])
    if kind is torch.nn.Sequential:
        return f"{name_of(kind)}({', '.join(texts)})", kind(*(part for _, part in pairs))
    given = {name: made for (name, _), (_, made) in zip(values, pairs, strict=True)}
    required = [n for n, p in inspect.signature(kind).parameters.items() if p.default is p.empty]
    named = [text if n in required else f"{n}={text}" for (n, _), text in zip(values, texts, strict=True)]
    return f"{name_of(kind)}({', '.join(named)})", kind(**given)


def _argument(module: torch.nn.Module, name: str, default: Any) -> Any:
    """What a module was given, as far as it is still to be seen."""
    if name == "bias":
        return any(key.rpartition(".")[2].endswith("bias") for key in dict(module.named_parameters()))
    for place in (name, KEPT_AT.get(name, name)):
        try:
            value = attrgetter(place)(module)
        except AttributeError:
            continue
        if isinstance(value, torch.nn.Module | bool | int | float | str | tuple | None) and (
            not isinstance(value, torch.nn.Module) or name.endswith(("layer", "norm"))
        ):
            return value
    return default


def _facts(module: torch.nn.Module) -> list[Any]:
    """What two modules have in common that differ in the values of their parameters only."""
    found: list[Any] = [
        (n, t.shape, t.dtype, t.requires_grad) for n, t in module.named_parameters(remove_duplicate=False)
    ]
    found += [(name, tensor.shape, tensor.dtype) for name, tensor in module.named_buffers(remove_duplicate=False)]
    for name, part in module.named_modules(remove_duplicate=False):
        found.append((name, type(part), {key: value for key, value in vars(part).items() if key not in PARTS}))
    return found
