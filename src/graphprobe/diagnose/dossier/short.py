"""Writes the short `repro.py`: the failing FX graph as a plain Python function, which needs torch alone."""

from __future__ import annotations

import copy
import itertools
import logging
import operator
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch
from torch import fx

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.check_case import allowed, reference_of
from graphprobe.diagnose.dossier.plain_inputs import FILE, Form, PlainInputs, values_of
from graphprobe.diagnose.dossier.program_proof import assignments, own_lines
from graphprobe.diagnose.dossier.repro import is_aten, repeats_for
from graphprobe.diagnose.dossier.short_check import (
    FACTS,
    RAMP,
    USAGE,
    check_text,
    compares_values,
    facts_text,
    limit_of,
    repeated,
    script_of,
)
from graphprobe.diagnose.program import Program
from graphprobe.engine.reference import is_noisy
from graphprobe.engine.values import CapturedValues, capture
from graphprobe.findings import STAGES, Finding
from graphprobe.judge.uncompiled import Reference
from graphprobe.probe.formats.literals import PUBLIC, Literals, Unreproducible
from graphprobe.program_text.plain_values import MOST_INLINE, FreeNames

log = logging.getLogger(__name__)

OURS = re.compile(r"^(?:(?:def|class) +)?(?:f|run|raised|status|facts|saved|expected|actual)\b *[=(:]", re.MULTILINE)
"""A line at the top level that defines a name of the script's own."""

IMPORTED = ("import os", "import sys", "import torch")
"""What every script imports."""

AFTER_DYNAMO = frozenset(STAGES) - {"dynamo", "runtime", "unknown"}
"""Stages that the backend `eager` does not have."""

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


@dataclass(frozen=True)
class Short:
    """A short repro.

    Attributes:
        text: of `repro.py`.
        control: the same script with a program that is not compiled, or compiled by a backend that changes nothing;
            what shows the fault, too, shows nothing.
        tensors: what `inputs.safetensors` has to hold beside it; empty: no file.
    """

    text: str
    control: str
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


def short_repros(
    case: Case,
    reference: Reference,
    finding: Finding,
    *,
    parts: Collection[str],
    title: str,
    kind: str = "",
    took_s: float = 0.0,
) -> Iterator[Short]:
    """Short scripts that may show the fault of a case, the most readable first; each has yet to be run.

    Args:
        reference: what the case gives uncompiled.
        parts: what is looked at beside the outputs: `inputs` after the call, `gradients`.
        title: first line, as a comment.
        kind: how the case itself fails, where that is not the kind of the finding.
        took_s: how long the longest check of a piece took that ended.

    A case that cannot be told so gives none.
    """
    kind = kind or finding.kind
    flaky = finding.flaky_rate < 1 and not compares_values(kind)
    if case.caches or case.unsaved or not case.calls or flaky:
        return
    values = values_of(case.calls) + sum(tensor.numel() for tensor in Program(case.graph, []).state())
    forms: tuple[Form, ...] = ("inline",) if values <= MOST_INLINE else ("drawn", "recorded")
    kinds = (kind, "segfault") if kind == "crash_runtime" else (kind,)  # overwritten memory shows now so, now so
    for form, shown in itertools.product(forms, kinds):
        try:
            short = _Script(case, reference, finding, shown, parts, title, form, took_s).made()
        except Exception as reason:  # drawn inputs that the graph refuses, say: the long form is there all the same
            log.info("no short repro, %s: %r", form, reason)
            continue
        yield short


def control_of(finding: Finding) -> str:
    """What to give `torch.compile` in place of the backend, so that the fault must not show.

    Dynamo runs decompositions to learn what an operation returns: what one of them raises ends every backend's compile.
    """
    raised = finding.stage == "decomposition" and finding.kind == "crash_compile"
    return 'backend="eager"' if finding.stage in AFTER_DYNAMO and not raised else "disable=True"


class _Script:
    def __init__(
        self,
        case: Case,
        reference: Reference,
        finding: Finding,
        kind: str,
        parts: Collection[str],
        title: str,
        form: Form,
        took_s: float,
    ) -> None:
        self.case, self.reference, self.finding, self.parts = case, reference, finding, parts
        self.title, self.form, self.kind = title, form, kind
        self.limit_s = limit_of(took_s)
        self.plain = PlainFunction(case.graph)
        self.seen: list[tuple[int, str, int]] = []
        self.inputs = PlainInputs(form)
        state = Program(case.graph, []).state()
        self.held = {name: _position(value, state) for name, value in self.plain.constants.items()}

    def made(self) -> Short:
        """The whole text."""
        run = self._run()
        bounds = self._bounds() if compares_values(self.kind) else []
        modules = [f"import {name}" for name in self.plain.imports]
        modules += [f"import torch._{name}.config" for name, changes in self.case.configs.items() if changes]
        notes, lines = [self.title, USAGE, *self.case.unsaved_settings], self._setting_lines()
        if self.inputs.tensors:
            modules += ["from pathlib import Path", "from safetensors.torch import load_file"]
            notes.append(f"The fault needs the recorded values: they are in {FILE}, beside this file.")
            lines.append(f'saved = load_file(Path(__file__).with_name("{FILE}"))')
        parts = [*self._own(), *self.plain.functions, run]
        text = script_of(parts, lambda brief: self._check(bounds, brief=brief), notes, modules, *lines)
        return Short(text, text.replace(self._compiled(), self._call_of(control_of(self.finding))), self.inputs.tensors)

    def _own(self) -> list[str]:
        """Text that defines the program's own backend and hooks, and puts the hooks where they belong."""
        case = self.case
        text = own_lines(case.own_backend, case.hooks)
        if text is None:
            raise Unreproducible("the backend and the hooks use one name for different things")
        text = "\n".join(line for line in text.splitlines() if line not in IMPORTED).strip()
        if OURS.search(text):
            raise Unreproducible("the backend or a hook defines a name that the script needs")
        return [re.sub(r"\n{3,}", "\n\n", text)] if text else []

    def _setting_lines(self) -> list[str]:
        lines = assignments(self.case.configs)
        state = self.case.calls[0].doc["state"]
        if state["float32_matmul_precision"] != "highest":
            lines.append(f"torch.set_float32_matmul_precision({state['float32_matmul_precision']!r})")
        if state["deterministic"]:
            lines.append("torch.use_deterministic_algorithms(True)")
        return lines

    def _run(self) -> str:
        """The function that makes the inputs and calls."""
        calls = self.case.calls
        several = len(calls) > 1
        for name, value in self.plain.constants.items():
            self.inputs.tensor(name, value)
        for i, captured in enumerate(calls):
            tensors = self.inputs.call(captured, self.plain.arguments)
            self._called(i, tensors, several)
        lines = [*(["seen = []"] if several else []), *self.inputs.lines, *(["return seen"] if several else [])]
        contexts = [] if self.case.grad else ["torch.no_grad()"]
        for device, dtype in ({} if is_aten(self.case.graph) else calls[0].doc["state"]["autocast"]).items():
            contexts.append(f"torch.autocast({device!r}, torch.{dtype})")
        if contexts:
            lines = [f"with {', '.join(contexts)}:", *(f"    {line}" for line in lines)]
        if self.inputs.drawn:
            lines.insert(0, "torch.manual_seed(0)")
        if self.kind in FACTS:
            lines = [re.sub(r"(?<=return )(.+)", r"facts(\1)", line) for line in lines]
        body = "\n".join(f"    {line}" for line in lines)
        return f"{facts_text(self.kind)}def run({FUNCTION}):\n{body}"

    def _called(self, call: int, tensors: Sequence[str], several: bool) -> None:
        """Lines that call and gather what is looked at; `tensors`: names of those among the arguments."""
        lines = self.inputs.lines
        positions = {name: i for i, name in enumerate(tensors)}
        positions |= {name: len(tensors) + i for name, i in self.held.items()}
        result = f"{FUNCTION}({', '.join([*self.plain.arguments, *self.held])})"
        output = next(node for node in self.case.graph.graph.nodes if node.op == "output").args[0]
        count = len(output) if isinstance(output, (tuple, list)) else 0 if output is None else 1
        seen = [] if not count else [f"*{result}" if count > 1 else result]
        given = len(self.reference.eager[0][call].outputs)
        if given > count > 0:  # an op that gives several
            seen, count = [f"*torch.utils._pytree.tree_leaves({result})"], given
        looked = [("outputs", i) for i in range(count)]
        if self.case.grad and self.inputs.wants and "gradients" in self.parts:
            wants = [name for name in positions if name in self.inputs.wants]
            lines.append(f"out = [{', '.join(seen)}]")
            results = self.reference.eager[0][call].outputs
            whole = ".abs()" if any(torch.is_tensor(v) and v.is_complex() for v in results) else ""
            lines.append(f"loss = {RAMP.format(tensors='out', which='t.requires_grad')}{whole}")
            seen = ["*out", f"*torch.autograd.grad(loss, [{', '.join(wants)}], allow_unused=True)"]
            looked += [("gradients", positions[name]) for name in wants]
        elif not count:
            lines.append(result)
        if "inputs" in self.parts or self.kind == "aliasing" or not seen:
            seen += list(positions)
            looked += [("inputs", i) for i in positions.values()]
        self.seen += [(call, part, i) for part, i in looked]
        lines.append(f"{'seen +=' if several else 'return'} [{', '.join(seen)}]")

    def _compiled(self) -> str:
        own = self.case.own_backend
        backend = f'backend="{self.case.backend}"' if own is None else f"backend={own.name}"
        return self._call_of(backend)

    def _call_of(self, backend: str) -> str:
        dynamic = "" if self.case.dynamic is None else f", dynamic={self.case.dynamic}"
        return f"torch.compile({FUNCTION}, {backend}{dynamic})"

    def _check(self, bounds: Sequence[float], *, brief: bool) -> str:
        compiled = f"run({self._compiled()})"
        eager = f"run({FUNCTION})"
        text = check_text(self.kind, eager, compiled, bounds=bounds, limit_s=self.limit_s, brief=brief)
        repeats = repeats_for(self.finding.flaky_rate)
        return text if repeats == 1 else repeated(text, repeats)

    def _bounds(self) -> list[float]:
        """How far each value that is looked at may be off; empty where that was not measured: torch's own then."""
        reference = self.reference if self.form != "drawn" else reference_of(self._drawn())
        if reference.wide is None and not reference.exact:
            return []
        return [_bound(reference, *where) for where in self.seen]

    def _drawn(self) -> Case:
        """The case with the inputs that the script draws."""
        space: dict[str, Any] = {"torch": torch}
        names = self.plain.arguments
        held = [*self.plain.constants]
        graph = copy.deepcopy(self.case.graph)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            calls: list[CapturedValues] = []
            for line in self.inputs.lines:
                if line.startswith(("return ", "seen +=")):
                    calls.append(capture([space[name] for name in names], rng=False))
                elif not line.startswith(("out =", "loss =")):
                    exec(line, space)
        for new, old in zip(calls, self.case.calls, strict=True):
            new.doc["rng"], new.doc["state"] = old.doc["rng"], old.doc["state"]
            new.tensors.update({name: value for name, value in old.tensors.items() if name.startswith("rng.")})
        for name in held:
            with torch.no_grad():
                self._held_in(graph, name).copy_(space[name])
        return replace(self.case, graph=graph, calls=calls)

    def _held_in(self, graph: torch.fx.GraphModule, name: str) -> torch.Tensor:
        """The tensor of a copy of the graph that `name` stands for."""
        return Program(graph, []).state()[self.held[name]]


def _position(value: torch.Tensor, state: Sequence[torch.Tensor]) -> int:
    found = next((i for i, tensor in enumerate(state) if tensor is value), None)
    if found is None:
        raise Unreproducible("a tensor that is neither parameter nor buffer")
    return found


def _bound(reference: Reference, call: int, part: str, index: int) -> float:
    """The largest of what a finite element of this value may be off; infinite ones and NaN have to be what they are."""
    row = allowed(reference)[call]
    position = 0
    for name in ("outputs", "inputs", "gradients"):
        for i, value in enumerate(getattr(reference.eager[0][call], name)):
            if (name, i) == (part, index):
                limits = row[position] if is_noisy(value) else torch.zeros(1)
                finite = limits[limits.isfinite() & value.isfinite()] if is_noisy(value) else limits
                if limits.numel() and not limits.isfinite().any():
                    raise Unreproducible("a value that is not judged")
                return float(f"{float(finite.max()) * 1.05:.2g}") if finite.numel() else 0.0
            position += is_noisy(value)
    raise Unreproducible("a value that was not measured")


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
        return self._names.free(_WRAPPING.sub("", _WRAPPING.sub("", re.sub(r"\W", "_", wanted))) or "x")
