"""A graph and recorded values as one writes them by hand: a function, and lines that make its arguments."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal

import torch
from torch import fx
from torch.fx.graph import inplace_methods, magic_methods

from graphprobe.engine.values import CapturedValues
from graphprobe.probe.formats.literals import PUBLIC, Literals, Unreproducible
from graphprobe.program_text.plain_values import FEW, FreeNames, contiguous_of, dense_text, drawn_text

Form = Literal["inline", "drawn", "recorded"]
"""`inline`: every value is written out. `drawn`: larger tensors are drawn anew, in the recorded shape, strides, dtype
and range. `recorded`: larger tensors come from a file."""

FILE = "inputs.safetensors"

FUNCTION = "f"
"""Name of the function; those that it hands to higher-order operators have names of their own."""

RESERVED = frozenset(
    "torch math operator sys os signal run expected actual want have error out seen saved backend check".split()
)

SIGNS: dict[Any, str] = {
    getattr(operator, name): text
    for name, text in {**magic_methods, **inplace_methods}.items()
    if hasattr(operator, name) and not name.endswith("item")
}
"""How a function of `operator` is written: `{} + {}`."""

PUBLIC_HIGHER_ORDER = {"cond": "torch.cond"}
_WRAPPING = re.compile(r"^[lL]_|(?<![a-z])(self|modules|parameters|buffers|args|kwargs|stack\d+)_|_+$")


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
        self._memory: dict[str, str] = {}

    def call(self, captured: CapturedValues, names: Sequence[str]) -> list[str]:
        """Assign the values of a call to `names`; returns the names of all tensors among them, in order.

        Raises:
            Unreproducible: a value has no text.
        """
        if captured.opaque:
            raise Unreproducible(captured.opaque[0])
        names_of = [record["storage"] for record in _leaves(captured.doc["values"]) if 0 not in record["shape"]]
        shared = {storage for storage in names_of if names_of.count(storage) > 1}
        memory: dict[str, str] = {}
        tensors: list[str] = []
        for name, record, value in zip(names, captured.doc["values"], captured.restore(), strict=True):
            text = self._value(name, record, value, shared, memory, tensors)
            if text != name:
                self.lines.append(f"{name} = {text}")
        return tensors

    def tensor(self, name: str, value: torch.Tensor, *, as_view: bool = False) -> None:
        """Assign a tensor: of its own memory, or with `as_view` of all the memory that it is a view of."""
        plain = value.detach()
        is_view = as_view and (memory := plain.untyped_storage()).nbytes() > plain.nbytes > 0
        text = self._view(name, str(memory.data_ptr()), plain, self._memory) if is_view else self._tensor(name, plain)
        self._assign(name, text, value.requires_grad)

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
        text = self._tensor(name, plain) if alone else self._view(name, record["storage"], plain, memory)
        self._assign(name, text, record["requires_grad"], bool(record.get("computed")))
        tensors.append(name)
        return name

    def _view(self, name: str, storage: str, value: torch.Tensor, memory: dict[str, str]) -> str:
        """A view of memory that several values share."""
        size = value.untyped_storage().nbytes() // value.element_size()
        key = f"{storage} {value.dtype}"
        if key not in memory:
            if any(known.startswith(f"{storage} ") for known in memory):
                raise Unreproducible("memory that values of several dtypes share")
            memory[key] = f"{name}_memory"
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
    return sum(math.prod(record["shape"]) for call in captured for record in _leaves(call.doc["values"]))


def _leaves(records: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for record in records:
        if record["kind"] == "tensor":
            found.append(record)
        elif record["kind"] in ("list", "tuple"):
            found += _leaves(record["items"])
    return found


class Spelled(Literals):
    """Targets and arguments as one writes them by hand."""

    def sized(self, expression: str, number: float | bool) -> str:
        return repr(number)

    def imported(self, module: str, qualname: str) -> str:
        self.imports.add(module)
        return f"{module}.{qualname}"

    def higher_order(self, name: str) -> str:
        return PUBLIC_HIGHER_ORDER.get(name, f"torch.ops.higher_order.{name}")

    def registered(self, namespace: str, name: str, overload: str | None) -> str:
        raise Unreproducible(f"operator {namespace}::{name} is registered by the program")


class PlainFunction:
    """The text of a graph and of the graphs it calls.

    Attributes:
        functions: one text each, in the order in which they have to be defined; the last is `f`.
        arguments: names of the arguments of `f` that stand for the graph's own.
        constants: tensors that the graph holds, by the name of the argument of `f` behind those, one for each.
        imports: modules beside torch.

    Raises:
        Unreproducible: something in it has no text.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        self.literals = Spelled()
        self.functions: list[str] = []
        self.constants: dict[str, torch.Tensor] = {}
        self._names = FreeNames([FUNCTION, *RESERVED])
        self.arguments = self._define(gm, FUNCTION)

    @property
    def imports(self) -> list[str]:
        there = {path for path, holder in PUBLIC if path.startswith("torch") and isinstance(holder, ModuleType)}
        return sorted(self.literals.imports - there)

    def _define(self, gm: fx.GraphModule, function: str) -> list[str]:
        names: dict[fx.Node, str] = {}
        arguments: list[str] = []
        lines: list[str] = []
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                names[node] = self._name(str(node.target))
                arguments.append(names[node])
            elif node.op == "get_attr":
                names[node] = self._attribute(gm, str(node.target), names, function)
            elif node.op == "output":
                result = node.args[0]
                if function == FUNCTION and isinstance(result, (tuple, list)) and len(result) == 1:
                    result = result[0]
                lines.append(f"return {self.literals.text(result, names)}")
            elif (line := self._line(node, names)) is not None:
                lines.append(line)
        body = "\n".join(f"    {line}" for line in lines)
        held = list(self.constants) if function == FUNCTION else []
        self.functions.append(f"def {function}({', '.join([*arguments, *held])}):\n{body}")
        return arguments

    def _line(self, node: fx.Node, names: dict[fx.Node, str]) -> str | None:
        """The statement of a call; None where it needs none."""
        args, target = node.args, node.target

        def say(value: Any) -> str:
            return self.literals.text(value, names)

        if target is operator.setitem:
            return f"{say(args[0])}[{self._index(args[1], names)}] = {say(args[2])}"
        if target in SIGNS and getattr(target, "__name__", "") in inplace_methods and isinstance(args[0], fx.Node):
            names[node] = names[args[0]]
            return SIGNS[target].format(names[node], say(args[1]))
        text = self._expression(node, names)
        if not node.users:
            return text
        names[node] = self._name(node.name)
        return f"{names[node]} = {text}"

    def _expression(self, node: fx.Node, names: dict[fx.Node, str]) -> str:
        args, target = node.args, node.target
        if node.op == "call_module":
            raise Unreproducible(f"{node.name} calls a module")
        if target in SIGNS:
            return SIGNS[target].format(*(self._operand(value, names) for value in args))
        if target is operator.getitem:
            return f"{self.literals.text(args[0], names)}[{self._index(args[1], names)}]"
        texts = [self.literals.text(value, names) for value in args]
        texts += [f"{key}={self.literals.text(value, names)}" for key, value in node.kwargs.items()]
        if node.op == "call_method":
            return f"{texts[0]}.{target}({', '.join(texts[1:])})"
        name = self.literals.callable(target).removeprefix("builtins.")  # type: ignore[arg-type]
        return f"{name}({', '.join(texts)})"

    def _operand(self, value: Any, names: dict[fx.Node, str]) -> str:
        text = self.literals.text(value, names)
        return f"({text})" if text.startswith("-") else text

    def _index(self, value: Any, names: dict[fx.Node, str]) -> str:
        if isinstance(value, tuple) and value:
            inner = ", ".join(self._index(item, names) for item in value)
            return f"{inner}," if len(value) == 1 else inner
        if isinstance(value, slice):
            ends = ["" if part is None else self.literals.text(part, names) for part in (value.start, value.stop)]
            step = "" if value.step is None else f":{self.literals.text(value.step, names)}"
            return f"{ends[0]}:{ends[1]}{step}"
        return "..." if value is Ellipsis else self.literals.text(value, names)

    def _attribute(self, gm: fx.GraphModule, target: str, names: dict[fx.Node, str], function: str) -> str:
        found: Any = gm
        for part in target.split("."):
            found = getattr(found, part)
        name = next((name for name, value in self.constants.items() if value is found), None)
        if name is not None:
            return name
        if isinstance(found, fx.GraphModule):  # a global with Dynamo's name for it breaks Dynamo
            name = self._name(f"{FUNCTION}{len(self.functions)}")
            self._define(found, name)
            return name
        name = self._name(target.replace(".", "_"))
        if isinstance(found, torch.Tensor):
            if function != FUNCTION:
                raise Unreproducible(f"{function} holds a tensor")
            self.constants[name] = found
        else:
            return self.literals.text(found, names)
        return name

    def _name(self, wanted: str) -> str:
        return self._names.free(_WRAPPING.sub("", _WRAPPING.sub("", re.sub(r"\W", "_", wanted))) or "x")
