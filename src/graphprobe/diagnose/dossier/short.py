"""Writes the short `repro.py`: the failing graph as a plain function, or the program as text with its calls."""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import itertools
import keyword
import logging
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

import torch

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.check_case import allowed, reference_of
from graphprobe.diagnose.dossier.long import assignments, compilation_text, is_aten, own_lines, repeats_for, state_lines
from graphprobe.diagnose.dossier.plain import FILE, FUNCTION, Form, PlainFunction, PlainInputs, values_of
from graphprobe.diagnose.dossier.report import title_of
from graphprobe.diagnose.dossier.template import (
    ENDING,
    HANG_S,
    RAISING,
    RAMP,
    WEIGHTED,
    Repro,
    check_text,
    compares_values,
    limit_of,
    repeated,
    run_text,
    script_of,
)
from graphprobe.diagnose.program import Program
from graphprobe.diagnose.settings import Compilation
from graphprobe.engine.reference import is_noisy
from graphprobe.engine.values import CapturedValues, capture, tensor_file, why_not
from graphprobe.findings import STAGES, Finding
from graphprobe.internals.aot_backends import is_higher_order
from graphprobe.judge.uncompiled import Reference
from graphprobe.probe.formats.literals import Unreproducible
from graphprobe.program_text.objects import INSTANCE_CALL, INSTANCE_TEXT
from graphprobe.program_text.plain_values import MOST_INLINE, Unwritable
from graphprobe.program_text.text import ProgramText, program_text

log = logging.getLogger(__name__)

OURS = re.compile(r"^(?:(?:def|class) +)?(?:f|run|raised|status|facts|saved|expected|actual)\b *[=(:]", re.MULTILINE)
"""A line at the top level that defines a name of the script's own."""

IMPORTED = ("import os", "import sys", "import torch")
"""What every script imports."""

MODULES = {name: importlib.import_module(name) for name in ("faulthandler", "os", "re", "runpy", "signal", "sys")}
"""What the lines around a program may import: in its own text the names have to mean the same."""

ENTRIES = ("run", "run_program")
"""What the function is called that runs the program: the first name that the program does not use."""

Made = Literal["new", "drawn", "exact"]
"""`new`: the module is made by its class. `drawn`: so are modules of torch, and tensors of more than a few values are
drawn anew. `exact`: all is as it is."""
RTOL = 1e-4
"""Of values of a program, whose noise was measured where it is wrong only."""
LEAVES = "torch.utils._pytree.tree_leaves({})"
AS_TENSORS = "[torch.as_tensor(np.array(v)) if isinstance(v, np.ndarray | np.generic) else v for v in {}]"
_ARGUMENT = re.compile(r"argument (\w+)")

AFTER_DYNAMO = frozenset(STAGES) - {"dynamo", "runtime", "unknown"}
"""Stages that the backend `eager` does not have."""


def short_repros(
    case: Case, reference: Reference, finding: Finding, *, parts: Collection[str], kind: str = "", took_s: float = 0.0
) -> Iterator[Repro]:
    """Repro scripts that may show the fault of a case, the most readable first; each has yet to be run.

    Args:
        reference: what the case gives uncompiled.
        parts: what is looked at beside the outputs: `inputs` after the call, `gradients`.
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
            short = _Script(case, reference, finding, shown, parts, form, took_s).made()
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
        form: Form,
        took_s: float,
    ) -> None:
        self.case, self.reference, self.finding, self.parts = case, reference, finding, parts
        self.form, self.kind = form, kind
        self.limit_s = limit_of(took_s)
        self.plain = PlainFunction(case.graph)
        self.seen: list[tuple[int, str, int]] = []
        self.inputs = PlainInputs(form)
        state = Program(case.graph, []).state()
        self.held = {name: _position(value, state) for name, value in self.plain.constants.items()}

    def made(self) -> Repro:
        """The whole text."""
        run = self._run()
        compares = compares_values(self.kind)
        reference = reference_of(self._drawn()) if compares and self.form == "drawn" else self.reference
        measured = compares and (reference.wide is not None or reference.exact)
        bounds = [_bound(reference, *where) for where in self.seen if measured]  # none: torch's own
        modules = [f"import {name}" for name in self.plain.imports]
        modules += [f"import torch._{name}.config" for name, changes in self.case.configs.items() if changes]
        notes, lines = [title_of(self.finding), *self.case.unsaved_settings], self._setting_lines()
        if self.inputs.tensors:
            modules += ["from pathlib import Path", "from safetensors.torch import load_file"]
            notes.append(f"The fault needs the recorded values: they are in {FILE}, beside this file.")
            lines.append(f'saved = load_file(Path(__file__).with_name("{FILE}"))')
        parts = [*self._own(), *self.plain.functions, run]
        text = script_of(notes, modules, parts, partial(self._check, bounds), lines)
        control = text.replace(self._compiled(), self._call_of(control_of(self.finding)))
        files = {FILE: tensor_file(self.inputs.tensors)} if self.inputs.tensors else {}
        return Repro(text, control, files)

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
        return run_text(self.kind, f"run({FUNCTION})", lines, contexts=contexts, seed=self.inputs.drawn)

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
        nodes = output if isinstance(output, (tuple, list)) else [output]
        if given > count > 0 or any(is_higher_order(getattr(node, "target", None)) for node in nodes):  # one of several
            seen, count = [f"*{LEAVES.format(result)}"], given
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
        state = Program(graph, []).state()
        for name in held:
            with torch.no_grad():
                state[self.held[name]].copy_(space[name])
        return replace(self.case, graph=graph, calls=calls)


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


def short_program(program: Program, compilation: Compilation, finding: Finding, where: str) -> Iterator[Repro]:
    """Repro scripts that may show what the program does otherwise, each yet to be run; none where it has no text.

    `where`: what differs: `outputs[0]`, `gradients[1]`, `inputs[0]`, or the name of what a side effect is to.
    """
    single = finding.worst is None or finding.worst.of == 1  # one value, which may be a number or a text and no tensor
    is_value = single and finding.kind == "wrong_value" and where.startswith("outputs")
    plain = (False, True) if is_value else (False,)
    forms: tuple[Made, ...] = ("new", "drawn", "exact") if _can_be_made(program.fn) else ("drawn", "exact")
    known: set[str] = set()
    for made, of_plain in itertools.product(forms, plain):
        try:
            short = _ProgramScript(program, compilation, finding, where, made, plain=of_plain).made()
        except Exception as reason:  # a program without a text, say: the long form may have one
            log.info("no short repro of the program, %s: %r", made, reason)
            continue
        if short.text not in known:
            yield short
        known.add(short.text)


def _can_be_made(fn: Any) -> bool:
    """Whether it is a module whose class is made without arguments."""
    if not isinstance(fn, torch.nn.Module) or type(fn).__module__.partition(".")[0] == "torch":
        return False
    with contextlib.suppress(TypeError, ValueError):
        inspect.signature(type(fn)).bind()
        return True
    return False


def bound_of(finding: Finding) -> float | None:
    """A bound between the error that was seen and what rounding explains there; None where neither is known."""
    if finding.kind == "not_bitwise":
        return 0.0
    worst = finding.worst
    if worst is None or worst.legitimate is None or not math.isfinite(worst.off):
        return None
    bound = max(worst.legitimate, worst.off / 8)
    return bound if 0 < bound < worst.off else None


class _ProgramScript:
    """The script of a program; with `plain` it compares what the program returns beside tensors, as text."""

    def __init__(
        self, program: Program, compilation: Compilation, finding: Finding, where: str, made: Made, *, plain: bool
    ) -> None:
        self.program, self.compilation, self.finding, self.where = program, compilation, finding, where
        self.form, self.plain, self.kind, self.fn = made, plain, finding.kind, cast(Any, program.fn)
        self.calls = self._arguments()
        if len(self.calls) != len(program.calls):
            raise Unwritable("an argument whose name is none of Python's")

    def made(self) -> Repro:
        """The whole text."""
        new = self.form == "new"
        roots: dict[str, Any] = {"fn": type(self.fn) if new else self.fn}
        for call in self.calls:
            roots |= {key: value for key, (_, value) in call.items() if not _is_tensor(value)}
        if self.program.between is not None:
            roots["between"] = self.program.between
        draws = self.form == "drawn"
        texts = ((e, program_text(roots, reserved={e: None, **MODULES}, draws=draws)) for e in ENTRIES)
        entry, text = next(((e, text) for e, text in texts if not text.files and not text.stored), ("", ProgramText()))
        if not entry:
            raise Unwritable("it needs more files")
        given = dict(text.roots)
        if new:
            given["fn"] = f"{given['fn']}(){'' if self.fn.training else '.eval()'}"
        run = self._run(entry, given, "import numpy as np" in text.imports)
        options, own, settings = compilation_text(self.compilation)
        called = f'runpy.run_path(__file__)["{entry}"]'
        eager, compiled = f"{called}()", f"{called}({', '.join(f'{name}={value}' for name, value in options.items())})"
        used = [INSTANCE_TEXT] if INSTANCE_CALL.search(text.text + run) else []
        head = [*state_lines(self.program.grad), *settings, *(["torch.manual_seed(0)"] if text.drawn else [])]
        needed = {*text.imports, *(["import re"] if "re.sub(" in run else [])}
        bound = bound_of(self.finding)
        how: dict[str, Any] = {"bounds": () if bound is None else (bound,), "rtol": RTOL if bound else 0.0}
        how |= {"limit_s": int(HANG_S), "text": self.kind == "side_effect" or self.plain, "optional": True}
        check = partial(check_text, self.kind, eager, compiled, **how)
        parts = [*used, re.sub(r"\n{3,}", "\n\n", text.text.strip()), own, run]
        imports = sorted(needed - {"import torch", "import torch.nn"})
        script = script_of([title_of(self.finding)], imports, parts, check, head, as_main=True)
        return Repro(script, script.replace(compiled, f"{called}({control_of(self.finding)})"))

    def _arguments(self) -> list[dict[str, tuple[str, Any]]]:
        """For each call the key of each argument, with how it is passed and its value."""
        try:
            parameters = list(inspect.signature(self.fn).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        simple = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        known = [p.name for p in parameters if p.kind in simple]
        found = []
        for number, (args, kwargs) in enumerate(self.program.calls):
            suffix = f"_{number}" if len(self.program.calls) > 1 else ""
            call: dict[str, tuple[str, Any]] = {}
            for i, value in enumerate(args):
                name = known[i] if i < len(known) else f"arg{i}"
                call[f"{name if name not in (*MODULES, 'torch') else name + '_'}{suffix}"] = ("", value)
            for name, value in kwargs.items():
                if not name.isidentifier() or keyword.iskeyword(name):
                    return []
                call[f"{name}_given{suffix}"] = (f"{name}=", value)
            found.append(call)
        return found

    def _run(self, entry: str, roots: Mapping[str, str], uses_numpy: bool) -> str:
        """The function that calls the program and returns what differs."""
        tensors = {key: value for call in self.calls for key, (_, value) in call.items() if _is_tensor(value)}
        few = sum(value.numel() for value in tensors.values()) <= MOST_INLINE
        inputs = PlainInputs("inline" if few else "drawn")
        for key, value in tensors.items():
            inputs.tensor(key, value, as_view=self.form == "exact")
        made = {key: key for key in tensors}
        words = {*re.findall(r"\w+", " ".join([self.where, *roots.values(), *made, *inputs.lines]))}
        named = roots["fn"].isidentifier() and self.program.grad in (None, "own")
        fn, result, options = (name if name not in words else f"{name}_" for name in ("fn", "result", "options"))
        lines = [*([] if named else [f"{fn} = {roots['fn']}"]), *inputs.lines]
        fn = roots["fn"] if named else fn
        for key, value in ((key, value) for call in self.calls for key, (_, value) in call.items()):
            if not _is_tensor(value):
                keep = self._is_watched(key)
                made[key] = key if keep else roots[key]
                lines += [f"{key} = {roots[key]}"] if keep and roots[key] != key else []
        f = next(name for name in ("f", "g", "compiled_", "called_") if name not in words)
        lines.append(f"{f} = torch.compile({fn}, **{options}) if {options} else {fn}")
        several = len(self.calls) > 1
        lines += [f"{result} = []"] if several else []
        for i, call in enumerate(self.calls):
            passed = ", ".join(f"{how}{made[key]}" for key, (how, _) in call.items())
            lines += [f"{roots['between']}({fn}, {i})"] if i and self.program.between is not None else []
            lines.append(f"{result}.append({f}({passed}))" if several else f"{result} = {f}({passed})")
        which = "torch.is_tensor(t) and t.requires_grad"
        if self.program.grad == "apart":
            lines += [f"for t in {LEAVES.format(result)}:", f"    if {which}:"]
            lines.append(f"        {WEIGHTED}.backward()")
        elif self.program.grad is True:
            lines.append(f"loss = {RAMP.format(tensors=LEAVES.format(result), which=which)}")
            lines += ["if torch.is_tensor(loss):", "    loss.backward()"]
        lines += self._seen(fn, [made[key] for call in self.calls for key in call], result, uses_numpy)
        contexts = ["torch.no_grad()"] if self.program.grad is False else []
        seed = self.form == "new" or inputs.drawn
        return run_text(self.kind, f"{entry}(**{options})", lines, contexts=contexts, seed=seed)

    def _seen(self, fn: str, arguments: Sequence[str], result: str, uses_numpy: bool) -> list[str]:
        """The line that returns what differs; none where only an exception or an end is looked for."""
        is_module = isinstance(self.fn, torch.nn.Module)
        if self.plain:
            values = f"[value for value in {LEAVES.format(result)} if not torch.is_tensor(value)]"
            return [f'return re.sub(" at 0x[0-9a-f]+", "", repr({values}))']
        if self.kind in RAISING or self.kind in ENDING or self.kind == "missing_exception":
            return []
        if self.kind == "side_effect":
            found = _ARGUMENT.match(self.where)
            where = self.where
            if found is not None:
                own = [name for name in arguments if name == found[1] or name.startswith(f"{found[1]}_")]
                number = int(found[1]) if found[1].isdigit() else -1
                where = own[0] if own else arguments[number] if 0 <= number < len(arguments) else found[1]
                where += self.where[found.end() :]
            return [f"return repr({where.removeprefix('global ').removeprefix('class ')})"]
        values = LEAVES.format(result)
        if uses_numpy:
            values = AS_TENSORS.format(values)
        if self.where.startswith("gradients"):
            of = [f"[{', '.join(arguments)}]"] if arguments else []
            of += [f"list({fn}.parameters())"] if is_module else []
            values = f"[t.grad for t in {LEAVES.format(' + '.join(of))} if torch.is_tensor(t) and t.requires_grad]"
        elif self.where.startswith("inputs"):
            values = LEAVES.format(f"[{', '.join(arguments)}]") + (f" + list({fn}.buffers())" if is_module else "")
        return [f"return {values}"]

    def _is_watched(self, key: str) -> bool:
        found = _ARGUMENT.match(self.where)
        return found is not None and (found[1].isdigit() or key == found[1] or key.startswith(f"{found[1]}_"))


def _is_tensor(value: Any) -> bool:
    """Whether it is a tensor that lines of its own make."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.is_leaf and why_not(value) is None
