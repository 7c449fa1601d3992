"""What keeps a tensor between calls: parameters, buffers and leaves are state; the rest is data, or a result."""

from __future__ import annotations

import weakref

import torch

from graphprobe.internals.operators.api_calls import own_buffers, own_parameters
from graphprobe.store.calls import Holder

_CROWDED = 65536
"""Tensors from which those that are gone are forgotten."""


class HeldTensors:
    """The tensors of the modules that were met. Keeps none alive; may be used from any thread."""

    def __init__(self) -> None:
        self._by_identity: dict[int, tuple[weakref.ref[torch.Tensor], Holder]] = {}
        self._by_address: dict[int, tuple[weakref.ref[torch.Tensor], Holder]] = {}
        self._roots: dict[int, weakref.ref[torch.nn.Module]] = {}

    def learn(self, module: torch.nn.Module, *, below: bool = False) -> None:
        """Those of a module, which may have got others since it was met last; `below`: and once, of all inside it."""
        if below:
            known = self._roots.get(id(module))
            if known is None or known() is not module:
                self._roots[id(module)] = weakref.ref(module)
                for one in module.modules():
                    self.learn(one)
                return
        for tensor in own_buffers(module).values():
            if tensor is not None:
                self._learn(tensor, "buffer")
        for parameter in own_parameters(module).values():
            if parameter is not None:
                self._learn(parameter, "parameter")

    def holder_of(self, tensor: torch.Tensor, address: int) -> Holder:
        """What keeps `tensor`, whose memory begins at `address`; what shares a parameter's memory is the parameter."""
        kind = type(tensor)
        # Parameter's own instance check runs in Python.
        if kind is torch.nn.Parameter or (kind is not torch.Tensor and isinstance(tensor, torch.nn.Parameter)):
            return "parameter"
        found = self._by_identity.get(id(tensor))
        if found is not None and found[0]() is tensor:
            return found[1]
        found = self._by_address.get(address)
        if found is not None and address:
            held = found[0]()
            if held is not None and held.data_ptr() == address:
                return found[1]
        try:
            return "leaf" if tensor.requires_grad and tensor.is_leaf else ""
        except RuntimeError:  # a view made without gradients and written to with them does not tell
            return ""

    def _learn(self, tensor: torch.Tensor, holder: Holder) -> None:
        known = self._by_identity.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return
        if len(self._by_identity) > _CROWDED:
            self._by_identity = {key: one for key, one in self._by_identity.items() if one[0]() is not None}
            self._by_address = {key: one for key, one in self._by_address.items() if one[0]() is not None}
        entry = (weakref.ref(tensor), holder)
        self._by_identity[id(tensor)] = entry
        try:
            self._by_address[tensor.data_ptr()] = entry
        except RuntimeError:  # no memory of its own
            return
