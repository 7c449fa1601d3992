"""Names and parents of calls as msprobe has them, given out as calls come."""

from __future__ import annotations

from collections import defaultdict

from graphprobe.store.calls import Call
from graphprobe.store.foreign.names import OPERATORS, foreign_from_api

_OPERATORS = {
    method: operator
    for operator, method in OPERATORS.items()
    if operator not in ("__radd__", "__rmul__", "__div__", "__idiv__")
}
"""By method. torch runs the same for both; the operator is what most programs use."""


class MsprobeNames:
    """`Functional.linear.0.forward`, `Module.layers.0.Linear.forward.0`; numbers count a name's forward calls."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = defaultdict(int)
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._backwards: dict[tuple[str, str, int], int] = {}

    def label(self, call: Call) -> str:
        """The name of the next call."""
        core = self._core(call)
        number = self._number(call, core)
        if call.kind == "module":
            return f"{core}.{call.direction}.{number}"
        return f"{core}.{number}.{call.direction}"

    def grads_label(self, call: Call) -> str:
        """The name of the record with the parameters' gradients of the module's backward that was named last."""
        core = self._core(call)
        return f"{core}.parameters_grad.{self._numbers.get((call.kind, core, call.index), 0)}"

    def _core(self, call: Call) -> str:
        if call.kind == "module":
            return ".".join(filter(None, ("Module", call.module, call.api)))
        kind, name = foreign_from_api(call.api)
        written_out = any(f".{name}(" in frame for frame in call.stack[:1])
        return f"{kind}.{_OPERATORS.get(name, name) if kind == 'Tensor' and not written_out else name}"

    def _number(self, call: Call, core: str) -> int:
        key = (call.kind, core, call.index)
        if call.direction == "backward":
            if call.index >= 0 and key in self._numbers:
                return self._numbers[key]
            key = (call.kind, core, -2 - self._seen[core])
        number = self._seen[core]
        self._seen[core] += 1
        self._numbers[key] = number
        return number


class Tree:
    """Which module's run is around each call, found out at the end: a dump may tell a module before or after it."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._children: list[tuple[str, str, str, int]] = []
        self._inside: set[tuple[str, str]] = set()
        self._module_first = False

    def add(self, call: Call, label: str) -> None:
        """Note a call, in the order of the dump."""
        if call.kind == "module":
            path = call.module.rpartition(".")[0]
            self._runs[call.direction, call.module].append(label)
        else:
            path = call.module
            key = (call.direction, path)
            if call.direction == "forward" and self._runs.get(key) and key not in self._inside:
                self._module_first = True
            self._inside.add(key)
        self._children.append((label, call.direction, path, len(self._runs.get((call.direction, path), ()))))

    def parents(self) -> dict[str, str | None]:
        """By name of a call, the name of the module's run around it; None at the top."""
        result: dict[str, str | None] = {}
        for label, direction, path, before in self._children:
            while path and (direction, path) not in self._runs:
                path = path.rpartition(".")[0]
            runs = self._runs.get((direction, path), [])
            number = before - 1 if self._module_first else before
            result[label] = runs[max(0, min(number, len(runs) - 1))] if path and runs else None
        return result
