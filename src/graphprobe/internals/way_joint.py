"""The joint graph of `aot_export_joint_with_descriptors` as a way: the function that it computes, and values for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.func import functional_call

from graphprobe.internals.tensors import tree_leaves, tree_map

STATE, PLAIN, TANGENT = ("ParamAOTInput", "BufferAOTInput"), "PlainAOTInput", "TangentAOTInput"
RESULT, GRADIENT = "PlainAOTOutput", "GradAOTOutput"
"""Kinds of inputs and results, of all that torch has, that a plain module has."""


def joint_call(
    mod: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], gm: Any
) -> tuple[Callable[..., Any], list[Any]] | None:
    """What the joint graph of a module computes, as a function of primals and tangents, and values for these.

    None of a graph with inputs or results that a plain module has not, or sizes that are symbols.
    """
    held = {**dict(mod.named_parameters()), **dict(mod.named_buffers())}
    inputs = [(node.meta["desc"], node.meta.get("val")) for node in gm.graph.find_nodes(op="placeholder")]
    results = list(gm.graph.output_node().meta.get("desc", ()))
    flat = tree_leaves((tuple(args), dict(kwargs)))
    values: list[Any] = []
    for desc, val in inputs:
        kind = type(desc).__name__
        if kind in STATE:
            values.append(held[desc.target])
        elif kind == PLAIN:
            values.append(flat[desc.idx])
        elif kind == TANGENT and type(desc.output).__name__ == RESULT and all(type(n) is int for n in val.shape):
            values.append(torch.linspace(0.5, 1.5, val.numel(), dtype=val.dtype, device=val.device).reshape(val.shape))
        else:
            return None
    if any(type(desc).__name__ not in (RESULT, GRADIENT, "NoneType") for desc in results):
        return None
    primals = sum(type(desc).__name__ != TANGENT for desc, _ in inputs)

    def joint(primals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """The module's results, and the gradients of its inputs."""
        given = dict(zip((desc for desc, _ in inputs), [*primals, *tangents], strict=True))
        leaves = {d: _leaf(value) for d, value in given.items() if type(d).__name__ != TANGENT}
        state = {d.target: value for d, value in leaves.items() if type(d).__name__ in STATE}
        plain = {d.idx: value for d, value in leaves.items() if type(d).__name__ == PLAIN}
        numbers = iter(range(len(flat)))
        own_args, own_kwargs = tree_map(lambda _: plain[next(numbers)], (tuple(args), dict(kwargs)))
        with torch.enable_grad():
            made = tree_leaves(functional_call(mod, state, own_args, own_kwargs))
            ends = [(made[d.output.idx], value) for d, value in given.items() if type(d).__name__ == TANGENT]
            wanted = [leaves[d.grad_of] for d in results if type(d).__name__ == GRADIENT]
            found = iter(_grad(ends, wanted))
        return [next(found) if type(d).__name__ == GRADIENT else made[d.idx] for d in results if d is not None]

    vars(joint).update(__wrapped__=type(mod).forward)  # by which it is named
    joint.__qualname__ = type(mod).__qualname__
    return joint, [values[:primals], values[primals:]]


def _leaf(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return value
    return value.detach().requires_grad_()


def _grad(ends: Sequence[tuple[Any, Any]], wanted: Sequence[Any]) -> Sequence[Any]:
    results, tangents = [result for result, _ in ends], [tangent for _, tangent in ends]
    return torch.autograd.grad(results, wanted, tangents, allow_unused=True)
