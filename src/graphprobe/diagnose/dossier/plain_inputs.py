"""Recorded values as lines of Python that make them: written out, drawn alike, or read from one file."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

import torch

from graphprobe.engine.values import CapturedValues
from graphprobe.probe.formats.literals import Literals, Unreproducible
from graphprobe.program_text.plain_values import short_number

Form = Literal["inline", "drawn", "recorded"]
"""`inline`: every value is written out. `drawn`: larger tensors are drawn anew, in the recorded shape, strides, dtype
and range. `recorded`: larger tensors come from a file."""

FILE = "inputs.safetensors"
MOST_INLINE = 64
"""Values written out in one script."""
FEW = 16
"""Values of a tensor that is written out whatever the form."""


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
        base, shaped = _dense(value)
        text = self._contiguous(name, base)
        if value.device.type != "cpu":
            text += f".to({str(value.device)!r})"
        return text + shaped

    def _contiguous(self, name: str, value: torch.Tensor) -> str:
        shape = tuple(value.shape)
        size = ", ".join(map(str, shape)) if shape else "()"
        value = value.cpu()
        kind = "" if value.dtype == torch.float32 else f", dtype={value.dtype}"
        if not value.numel():
            return f"torch.empty({size}{kind})"
        wide = value.to(torch.complex128 if value.is_complex() else torch.float64)
        first = value.flatten()[0]
        if value.numel() > 1 and bool((wide == wide.flatten()[0]).all()) and not _negative_zero(first):
            if not value.is_complex() and float(first) in (0.0, 1.0):
                return f"torch.{'ones' if float(first) else 'zeros'}({size}{kind})"
            return f"torch.full({shape}, {_number(first)}{', dtype=' + str(value.dtype)})"
        if self.form == "inline" or value.numel() <= FEW:
            return _written(value)
        if self.form == "recorded":
            self.tensors[name] = value.contiguous()
            return f'saved["{name}"].clone()'
        self.drawn = True
        return _drawn(value, size)


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


def _dense(value: torch.Tensor) -> tuple[torch.Tensor, str]:
    """A contiguous tensor, and what to write behind it to have `value` with its strides."""
    if value.is_contiguous():
        return value, ""
    if value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last):
        return value.contiguous(), ".to(memory_format=torch.channels_last)"
    order = sorted(range(value.ndim), key=lambda d: -value.stride()[d])
    permuted = value.permute(order)
    if permuted.is_contiguous():
        back = tuple(order.index(d) for d in range(value.ndim))
        return permuted, ".t()" if value.ndim == 2 else f".permute{back}"
    size = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    flat = value.as_strided((size,), (1,))
    return flat, f".as_strided({tuple(value.shape)}, {value.stride()})"


def _drawn(value: torch.Tensor, size: str) -> str:
    """An expression that draws a tensor of its shape and dtype, in its range."""
    shape = f"({size})" if value.ndim > 1 else f"({size},)" if value.ndim else "()"
    if value.dtype is torch.bool:
        return f"torch.rand({size}) > 0.5"
    if not (value.is_floating_point() or value.is_complex()):
        numbers = value.numpy()  # torch has neither the least of unsigned integers nor draws them
        low, high = int(numbers.min()), int(numbers.max())
        if high - low >= 2**62 or high >= 2**63 - 1:
            raise Unreproducible("integers of a range that randint does not take")
        return f"torch.randint({low}, {high + 1}, {shape}){'' if value.dtype == torch.int64 else f'.to({value.dtype})'}"
    wide = value.abs().to(torch.float64)
    if not bool(wide.isfinite().all()):
        raise Unreproducible("values that are not finite")
    drawable = value.dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64)
    kind = "" if value.dtype == torch.float32 or not drawable else f", dtype={value.dtype}"
    positive = not value.is_complex() and float(value.to(torch.float64).min()) >= 0
    scale = float(wide.max()) if positive else float(wide.square().mean().sqrt())
    factor = "" if (0.5 if positive else 0.2) <= scale <= (1 if positive else 3) else f" * {scale:.1g}"
    text = f"torch.{'rand' if positive else 'randn'}({size}{kind}){factor}"
    text = f"({text})" if factor else text
    return text if drawable else f"{text}.to({value.dtype})"


def _written(value: torch.Tensor) -> str:
    kind = value.dtype
    implied = kind in (torch.float32, torch.int64, torch.bool) and value.numel() > 0
    if implied and kind == torch.float32 and torch.get_default_dtype() != torch.float32:
        implied = False
    text = _nested(value)
    flow = list(range(value.numel()))
    if value.numel() > FEW and not value.is_complex() and value.to(torch.float64).flatten().tolist() == flow:
        shape = tuple(value.shape)
        text = f"torch.arange({value.numel()}{'' if kind == torch.int64 else f', dtype={kind}'})"
        return text if value.ndim == 1 else f"{text}.view{shape}"
    return f"torch.tensor({text}{'' if implied else f', dtype={kind}'})"


def _nested(value: torch.Tensor) -> str:
    if not value.ndim:
        return _number(value)
    return f"[{', '.join(_nested(part) for part in value)}]"


def _number(value: torch.Tensor) -> str:
    """The shortest text that gives the same element again."""
    number = value.item()
    if isinstance(number, float) and not math.isfinite(number):
        return "torch.nan" if math.isnan(number) else "torch.inf" if number > 0 else "-torch.inf"
    return repr(number) if isinstance(number, complex) else short_number(number, value.dtype)


def _negative_zero(value: torch.Tensor) -> bool:
    return bool(not value.is_complex() and value == 0 and value.to(torch.float64).signbit())
