"""Writes arguments, targets and input metas of FX nodes as Python that means the same in another process."""

from __future__ import annotations

import builtins
import enum
import importlib
import keyword
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import fx

from graphprobe.internals.operators.operators import BUILT_IN_NAMESPACES, Operator, operator_of
from graphprobe.internals.quiet import hint

NEEDS_IMPORT = {"inductor": "torch._inductor.inductor_prims", "rngprims": "torch._prims.rng_prims"}
INDUCTOR_PRIMS = frozenset("fma prepare_softmax_online force_stride_order cvt_e8m0_rceil".split())
"""What Inductor registers in the namespace `prims`, besides names that begin with an underscore or say `inductor`."""

PUBLIC: tuple[tuple[str, object], ...] = (
    ("operator", operator),
    ("torch", torch),
    ("torch.nn.functional", torch.nn.functional),
    ("torch.Tensor", torch.Tensor),
    ("torch.special", torch.special),
    ("torch.fft", torch.fft),
    ("torch.linalg", torch.linalg),
    ("math", math),
    ("builtins", builtins),
)


def input_metas(values: Sequence[object]) -> list[object]:
    """A tensor's shape, stride, dtype, device as a dict, symbolic sizes by their hints; numbers as they are; else None.

    An unbacked size, which has no hint, becomes 2.
    """
    return list(map(_input_meta, values))


def _input_meta(value: object) -> object:
    if isinstance(value, torch.Tensor):
        strided = value.layout is torch.strided
        return {
            "shape": [_number(n) for n in value.shape],
            "stride": [_number(n) for n in value.stride()] if strided else [],
            "dtype": str(value.dtype).removeprefix("torch."),
            "device": str(value.device),
            "requires_grad": value.requires_grad,
        }
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _number(value)
    return value if isinstance(value, (bool, int, float, str)) else None


def _number(value: object) -> int | float | bool:
    found = hint(value)
    return 2 if found is None else found


def metas_text(metas: Sequence[object]) -> str:
    """A Python literal of the metas, one input a line."""
    return "[\n" + "".join(f"    {meta!r},\n" for meta in metas) + "]"


class Unreproducible(Exception):
    """A value has no source text that another process could evaluate to the same thing."""


class Literals:
    """Turns values into source; what it needs to be imported is gathered in `imports`."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.notes: list[str] = []

    def text(self, value: Any, nodes: Mapping[fx.Node, str]) -> str:
        """Source of an argument; `nodes` has the variable of each node. Raises Unreproducible with the reason."""
        if isinstance(value, fx.Node):
            if value not in nodes:
                raise Unreproducible(f"argument {value.name} is used before it is made")
            return nodes[value]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._symbolic(value)
        if isinstance(value, enum.Enum):
            return f"{self.callable(type(value))}.{value.name}"
        if value is None or value is Ellipsis or isinstance(value, (bool, int, str, bytes)):
            return repr(value)
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
        if isinstance(value, complex):
            return f"complex({self.text(value.real, nodes)}, {self.text(value.imag, nodes)})"
        if isinstance(value, (slice, range)):
            ends = ", ".join(self.text(v, nodes) for v in (value.start, value.stop, value.step))
            return f"{type(value).__name__}({ends})"
        if isinstance(value, (list, tuple, dict, set, frozenset)):
            return self._container(value, nodes)
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        if callable(value) and not isinstance(value, torch.nn.Module):
            return self.callable(value)
        raise Unreproducible(f"argument of type {type(value).__module__}.{type(value).__qualname__}")

    def _symbolic(self, value: torch.SymInt | torch.SymFloat | torch.SymBool) -> str:
        number = hint(value)
        if number is None:
            raise Unreproducible(f"symbolic argument {value} has no value at compile time")
        return self.sized(str(value), number)

    def sized(self, expression: str, number: float | bool) -> str:
        """Source of a symbolic number that was `number` when it was compiled."""
        return f"sym({expression!r}, {number!r})"

    def imported(self, module: str, qualname: str) -> str:
        """Source that finds a function or class of a module."""
        return f"resolve({module!r}, {qualname!r})"

    def higher_order(self, name: str) -> str:
        """Source that finds a higher-order operator."""
        return f"hop({name!r})"

    def registered(self, namespace: str, name: str, overload: str | None) -> str:
        """Source that finds an operator by the parts of its name."""
        return f"custom_op({namespace!r}, {name!r}, {overload!r})"

    def _container(self, value: Any, nodes: Mapping[fx.Node, str]) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self.text(k, nodes)}: {self.text(v, nodes)}" for k, v in value.items()) + "}"
        if isinstance(value, (set, frozenset)):
            items = ", ".join(self.text(v, nodes) for v in value)
            return f"{type(value).__name__}([{items}])"
        items = ", ".join(self.text(v, nodes) for v in value)
        if isinstance(value, torch.Size):
            return f"torch.Size([{items}])"
        if hasattr(value, "_fields"):
            return f"{self.callable(type(value))}({items})"
        if isinstance(value, list):
            return f"[{items}]"
        return f"({items},)" if len(value) == 1 else f"({items})"

    def callable(self, target: Callable[..., Any]) -> str:
        """Source that finds a function, operator or class again.

        Raises:
            Unreproducible: it lives in `__main__`, in a function's body, or cannot be found under its name.
        """
        if (known := operator_of(target)) is not None:
            return self._operator(known)
        name = getattr(target, "__name__", "")
        for path, holder in PUBLIC:
            if name and getattr(holder, name, None) is target:
                self.imports.add(path if isinstance(holder, ModuleType) else "torch")
                return f"{path}.{name}"
        module, qualname = getattr(target, "__module__", None), getattr(target, "__qualname__", name)
        owner = getattr(target, "__objclass__", None)
        if module is None and owner is not None:
            module, qualname = owner.__module__, f"{owner.__qualname__}.{name}"
        shown = f"{module}.{qualname}"
        if module in (None, "__main__") or "<" in str(qualname):
            raise Unreproducible(f"{shown} exists only in the process that compiled it")
        if not _finds(str(module), str(qualname), target):
            raise Unreproducible(f"{shown} is not found under its own name")
        if str(module).split(".")[0] != "torch":
            self.notes.append(f"needs {shown}")
        return self.imported(str(module), str(qualname))

    def _operator(self, known: Operator) -> str:
        namespace, name, overload, _ = known
        if namespace == "higher_order":
            return self.higher_order(name)
        if namespace not in BUILT_IN_NAMESPACES:
            self.notes.append(f"needs the library that registers {namespace}::{name}; give it with --import MODULE")
            return self.registered(namespace, name, overload)
        of_inductor = "inductor" in name or (namespace == "prims" and (name[0] == "_" or name in INDUCTOR_PRIMS))
        if namespace in NEEDS_IMPORT or of_inductor:
            self.imports.add(NEEDS_IMPORT.get(namespace, NEEDS_IMPORT["inductor"]))
        path = name if overload is None else f"{name}.{overload}"
        if all(part.isidentifier() and not keyword.iskeyword(part) for part in path.split(".")):
            return f"torch.ops.{namespace}.{path}"
        return self.registered(namespace, name, overload)


def _finds(module: str, qualname: str, target: object) -> bool:
    try:
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return False
    return found is target or found == target
