"""An FX graph as a plain Python function, as one would write it in a bug report."""

from __future__ import annotations

import builtins
import keyword
import operator
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import fx

from graphprobe.probe.formats.literals import PUBLIC, Literals, Unreproducible

FUNCTION = "f"
"""Name of the function; those that it hands to higher-order operators have names of their own."""

RESERVED = frozenset(
    "torch math operator sys os signal run expected actual want have error out seen saved backend check".split()
)

SIGNS: dict[Callable[..., Any], str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.matmul: "@",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
    operator.lshift: "<<",
    operator.rshift: ">>",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}
IN_PLACE: dict[Callable[..., Any], str] = {
    getattr(operator, f"i{name}"): SIGNS[getattr(operator, f"{name}_" if name in ("and", "or") else name)]
    for name in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()
}
PUBLIC_HIGHER_ORDER = {"cond": "torch.cond"}
_WRAPPING = re.compile(r"^[lL]_|(?<![a-z])(self|modules|parameters|buffers|args|kwargs|stack\d+)_|_+$")


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
        constants: tensors that the graph holds, by the name of the argument of `f` behind those that stands for each.
        imports: modules beside torch.

    Raises:
        Unreproducible: something in it has no text.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        self.literals = Spelled()
        self.functions: list[str] = []
        self.constants: dict[str, torch.Tensor] = {}
        self._taken = {FUNCTION, *RESERVED}
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
        if target in IN_PLACE and isinstance(args[0], fx.Node):
            names[node] = names[args[0]]
            return f"{names[node]} {IN_PLACE[target]}= {say(args[1])}"
        text = self._expression(node, names)
        if not node.users:
            return text
        names[node] = self._name(node.name)
        return f"{names[node]} = {text}"

    def _expression(self, node: fx.Node, names: dict[fx.Node, str]) -> str:
        args, target = node.args, node.target
        if node.op == "call_module":
            raise Unreproducible(f"{node.name} calls a module")
        if target in SIGNS and len(args) == 2:
            return f"{self._operand(args[0], names)} {SIGNS[target]} {self._operand(args[1], names)}"
        if target is operator.neg:
            return f"-{self._operand(args[0], names)}"
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
        if isinstance(found, fx.GraphModule):  # a global with the name that Dynamo gives it breaks Dynamo
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
        short = _WRAPPING.sub("", re.sub(r"\W", "_", wanted))
        short = _WRAPPING.sub("", short) or "x"
        name = short if short.isidentifier() else f"v_{short}"
        while name in self._taken or keyword.iskeyword(name) or hasattr(builtins, name):
            name += "_"
        self._taken.add(name)
        return name
