"""Recorded values as lines of Python that make them: written out, drawn alike, or read from one file."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

import torch

from graphprobe.engine.values import CapturedValues
from graphprobe.probe.formats.literals import Literals, Unreproducible
from graphprobe.program_text.plain_values import FEW, contiguous_of, dense_text, drawn_text

Form = Literal["inline", "drawn", "recorded"]
"""`inline`: every value is written out. `drawn`: larger tensors are drawn anew, in the recorded shape, strides, dtype
and range. `recorded`: larger tensors come from a file."""

FILE = "inputs.safetensors"


class PlainInputs:
    """Lines that make values, and what they stand on.

    Args:
        form: how tensors of more than a few values are made.

    Attributes:
        lines: assignments, in order.
        tensors: what the file has to hold, by name; empty unless the form is `recorded`.
        wants: names of the tensors that require gradients.
        drawn: whether a random number is drawn.
    """

    def __init__(self, form: Form) -> None:
        self.form = form
        self.lines: list[str] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self.wants: list[str] = []
        self.drawn = False

    def call(self, captured: CapturedValues, names: Sequence[str]) -> list[str]:
        """Assign the values of a call to `names`; gives the names of all tensors among them, in order.

        Raises:
            Unreproducible: a value has no text.
        """
        if captured.opaque:
            raise Unreproducible(captured.opaque[0])
        shared = _shared(captured.doc["values"])
        memory: dict[str, str] = {}
        tensors: list[str] = []
        for name, record, value in zip(names, captured.doc["values"], captured.restore(), strict=True):
            text = self._value(name, record, value, shared, memory, tensors)
            if text != name:
                self.lines.append(f"{name} = {text}")
        return tensors

    def tensor(self, name: str, value: torch.Tensor) -> None:
        """Assign a tensor of its own memory."""
        self._assign(name, self._tensor(name, value.detach()), value.requires_grad)

    def _assign(self, name: str, text: str, requires_grad: bool, computed: bool = False) -> None:
        if requires_grad:
            self.wants.append(name)
            text = f"({text})" if re.search(r" [*>] ", text) and not text.startswith("(") else text
            text += f".requires_grad_(){'.clone()' if computed else ''}"
        self.lines.append(f"{name} = {text}")

    def _value(
        self, name: str, record: Any, value: Any, shared: set[str], memory: dict[str, str], tensors: list[str]
    ) -> str:
        if record["kind"] in ("list", "tuple"):
            pairs = enumerate(zip(record["items"], value, strict=True))
            items = [self._value(f"{name}_{i}", inner, v, shared, memory, tensors) for i, (inner, v) in pairs]
            inner = ", ".join(items)
            return f"[{inner}]" if record["kind"] == "list" else f"({inner}{',' if len(items) == 1 else ''})"
        if not isinstance(value, torch.Tensor):
            return Literals().text(value, {})
        if record["conj"] or record["neg"]:
            raise Unreproducible("a conjugated view")
        plain = value.detach()
        alone = record["storage"] not in shared
        text = self._tensor(name, plain) if alone else self._view(record["storage"], plain, memory)
        self._assign(name, text, record["requires_grad"], bool(record.get("computed")))
        tensors.append(name)
        return name

    def _view(self, storage: str, value: torch.Tensor, memory: dict[str, str]) -> str:
        """A view of memory that several values share."""
        size = value.untyped_storage().nbytes() // value.element_size()
        key = f"{storage} {value.dtype}"
        if key not in memory:
            if any(known.startswith(f"{storage} ") for known in memory):
                raise Unreproducible("memory that values of several dtypes share")
            memory[key] = f"memory{len(memory) or ''}"
            self.tensor(memory[key], value.as_strided((size,), (1,), 0))
        return f"{memory[key]}.as_strided({tuple(value.shape)}, {value.stride()}, {value.storage_offset()})"

    def _tensor(self, name: str, value: torch.Tensor) -> str:
        base, shaped = contiguous_of(value)
        text = dense_text(base, most=base.numel() if self.form == "inline" else FEW, wide=True)
        if text is None and self.form == "recorded":
            self.tensors[name] = base.cpu().contiguous()
            text = f'saved["{name}"].clone()'
        elif text is None:
            self.drawn = True
            text = drawn_text(base.cpu())
        return text + ("" if value.device.type == "cpu" else f".to({str(value.device)!r})") + shaped


def values_of(captured: Sequence[CapturedValues]) -> int:
    """Elements of all tensors."""
    found = 0
    for call in captured:
        for record in _leaves(call.doc["values"]):
            found += math.prod(record["shape"])
    return found


def _leaves(records: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for record in records:
        if record["kind"] == "tensor":
            found.append(record)
        elif record["kind"] in ("list", "tuple"):
            found += _leaves(record["items"])
    return found


def _shared(records: Sequence[Any]) -> set[str]:
    """Storages that several tensors stand on."""
    names = [record["storage"] for record in _leaves(records) if 0 not in record["shape"]]
    return {name for name in names if names.count(name) > 1}
