"""Leaf modules of Dynamo graphs as source: the class, its plain attributes, its tensors and children."""

from __future__ import annotations

from collections.abc import Callable

import torch

from graphprobe.probe.formats.literals import Literals, Unreproducible

BUILD_MODULE = """
def module(cls, plain, tensors, children):
    made = cls.__new__(cls)
    torch.nn.Module.__init__(made)
    made.__dict__.update(plain)
    for name, (kind, value) in tensors.items():
        made.register_parameter(name, value) if kind == "parameter" else made.register_buffer(name, value)
    for name, child in children.items():
        made.add_module(name, child)
    return made
"""

_OWN = frozenset(torch.nn.Module().__dict__) - {"training"}
_HOOKS = tuple(name for name in _OWN if name.endswith("_hooks"))


def module_text(
    module: torch.nn.Module, path: str, literals: Literals, tensor: Callable[[str, torch.Tensor], str]
) -> str:
    """An expression that makes the module again without calling its constructor.

    Args:
        tensor: keeps a tensor under its path and returns the expression that fetches it.

    Raises:
        Unreproducible: the class cannot be found elsewhere, an attribute has no source text, or it has hooks.
    """
    cls = literals.callable(type(module))
    if any(getattr(module, name) for name in _HOOKS if name in module.__dict__):
        raise Unreproducible(f"{type(module).__qualname__} has hooks")
    plain = {name: value for name, value in module.__dict__.items() if name not in _OWN}
    tensors = [
        f"{name!r}: ({kind!r}, {'None' if value is None else tensor(f'{path}.{name}', value)})"
        for kind, held in (("parameter", module._parameters), ("buffer", module._buffers))
        for name, value in held.items()
    ]
    children = [
        f"{name!r}: {'None' if child is None else module_text(child, f'{path}.{name}', literals, tensor)}"
        for name, child in module._modules.items()
    ]
    attributes = literals.text(plain, {})
    return f"module({cls}, {attributes}, {{{', '.join(tensors)}}}, {{{', '.join(children)}}})"
