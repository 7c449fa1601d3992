"""Paths of modules and names of parameters, found out when a root module is first met."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch

_WRAPPERS = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)


class Paths:
    """Names modules as the program's root does. Keeps none alive.

    The first root is not named in paths, unless several were given under names; another begins with its class's name.
    """

    def __init__(self, model: torch.nn.Module | Mapping[str, torch.nn.Module] | None) -> None:
        self._modules: dict[int, tuple[weakref.ref[torch.nn.Module], str]] = {}
        self._parameters: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._roots: dict[str, int] = {}
        if isinstance(model, torch.nn.Module):
            self._add_root(model, "")
        elif model is not None:
            for name, one in model.items():
                self._add_root(one, name)

    def module(self, module: torch.nn.Module, parent: str | None) -> str:
        """The path of a module that is called inside `parent`, None for outside of all."""
        found = self._modules.get(id(module))
        if found is not None and found[0]() is module:
            return found[1]
        if parent is None:
            self._add_root(module, None)
        else:
            name = type(module).__name__
            self._add_root(module, f"{parent}.{name}" if parent else name)
        return self._modules[id(module)][1]

    def parameter(self, tensor: torch.Tensor) -> str:
        """The name of a parameter; empty where no root that was met has it."""
        found = self._parameters.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else ""

    def _add_root(self, root: torch.nn.Module, name: str | None) -> None:
        if name is None:
            name = type(root).__name__ if self._roots else ""
            count = self._roots.get(name, 0)
            self._roots[name] = count + 1
            if count:
                name = f"{name}#{count}"
        else:
            self._roots.setdefault(name, 1)
        prefix = f"{name}." if name else ""
        if isinstance(root, _WRAPPERS):  # it stands for what it wraps, so that a run without it has the same paths
            self._modules[id(root)] = (weakref.ref(root), name)
            root = root.module
        for path, module in root.named_modules():
            entry = self._modules.get(id(module))
            if entry is None or entry[0]() is not module:
                self._modules[id(module)] = (weakref.ref(module), prefix + path if path else name)
        for path, parameter in root.named_parameters():
            known: Any = self._parameters.get(id(parameter))
            if known is None or known[0]() is not parameter:
                self._parameters[id(parameter)] = (weakref.ref(parameter), prefix + path)
