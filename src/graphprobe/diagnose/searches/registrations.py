"""The program's own operators, held against fake kernels and schemas on the arguments of its calls, with proofs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from graphprobe.diagnose import notes
from graphprobe.diagnose.dossier.plain import PlainInputs
from graphprobe.diagnose.dossier.template import Repro, check_text, script_of
from graphprobe.diagnose.dossier.whole_proof import PROGRAM_S
from graphprobe.diagnose.dossier.writer import first_shown, write_proof
from graphprobe.diagnose.ladder import Ladder
from graphprobe.diagnose.program import Program, tensors_of
from graphprobe.diagnose.prove import free_folder
from graphprobe.diagnose.rungs import RungReport, run_program
from graphprobe.diagnose.settings import Compilation, line_of_caller
from graphprobe.engine.values import capture, equal_bits
from graphprobe.errors import GraphprobeError
from graphprobe.findings import Finding, in_words, told_more
from graphprobe.internals.caches import caches_renewed
from graphprobe.internals.operators.eager_ops import in_backward
from graphprobe.internals.operators.operators import OpMode, Overload
from graphprobe.internals.operators.registrations import (
    Promise,
    fake_kernel_of,
    has_own,
    is_of_torch,
    kernel_of,
    name_of,
    without_fakes,
)
from graphprobe.internals.tensors import tree_leaves, tree_map
from graphprobe.judge.judging import Difference
from graphprobe.probe.formats.literals import Unreproducible
from graphprobe.program_text.plain_values import Unwritable
from graphprobe.program_text.program import TextProgram
from graphprobe.program_text.text import program_text

HINT = re.compile(r"This error most often comes from .*?opcheck to test your custom op", re.DOTALL)
"""What torch says where compiled code meets a result other than promised."""

MOST_OPERATORS = 4
"""Wrong registrations that a diagnosis tells."""

OF_SCHEMA = ("promises to leave", "promises memory of its own")
"""How promises begin that the schema makes, and not the fake kernel."""

RESERVED = dict.fromkeys(("expected", "actual", "sys", "os", "runpy"))
TESTS = '("test_schema", "test_faketensor")'


def disagreements(program: Program) -> list[tuple[Finding, OperatorCall]]:
    """A finding for each operator that the program's uncompiled calls show to be registered wrongly."""
    found: dict[str, tuple[Finding, OperatorCall]] = {}

    def around(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = tensors_of((args, kwargs))
        plain = all(type(t) in (torch.Tensor, torch.nn.Parameter) and t.layout is torch.strided for t in given)
        if is_of_torch(op.namespace) or name_of(op) in found or not plain:
            return op(*args, **kwargs)
        check = OperatorCall(op, args, kwargs)
        result = op(*args, **kwargs)
        text = check.against(result)
        if text is not None:
            found[name_of(op)] = check.finding(*text), check
        return result

    with OpMode(around):
        program.run(lambda fn: fn)
    return [*found.values()][:MOST_OPERATORS]


def held_against(program: Program, compilation: Compilation, first: Difference) -> list[Finding]:
    """The same with the stage that believes the registration first, what comes of it, and a proof.

    `first`: what the compiled program does otherwise.
    """
    found = disagreements(program)
    for finding, check in found:
        finding.stage = "aot" if compilation.is_inductor or compilation.is_aot_eager else "dynamo"
        seen = in_words(first.worst) if first.worst is not None else first.text
        finding.reason = told_more(finding.reason, f"Compiled, the program then has: {seen}.")
        if (hint := HINT.search(first.log)) is not None and hint[0] not in finding.reason:
            finding.reason = told_more(finding.reason, f"torch says: {' '.join(hint[0].split())}.")
        finding.reason = told_more(finding.reason, "`torch.library.opcheck` checks the operator by itself.")
        prove_registration(finding, compilation.folder, program.fn, check.op, *check.arguments())
    return [finding for finding, _ in found]


class OperatorCall:
    """One call of an operator: what is promised of it, and what it was given, before it runs."""

    def __init__(self, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.op = op
        self.promise = Promise(op, args, kwargs)
        names = [argument.name for argument in op._schema.arguments]
        passed = [*zip(names, args, strict=False), *kwargs.items()]
        self.given = [(name, tensor) for name, value in passed for tensor in tensors_of(value)]
        self.before = [tensor.detach().clone() for _, tensor in self.given]
        self.args, self.kwargs, self.line = args, kwargs, line_of_caller()
        self.backward = in_backward()

    def against(self, result: Any) -> tuple[str, str, str] | None:
        """What is promised, what the kernel makes instead, and the remedy; None if they agree."""
        promise, made = self.promise, tree_leaves(result)
        if promise.raised is not None:
            raised = f"{type(promise.raised).__name__}: {' '.join(str(promise.raised).split())[:200]}"
            return f"raises {raised}", "raises nothing", "Let the fake kernel take what the kernel takes."
        if (written := self._written()) is not None:
            promised, made_so = f"promises to leave the argument {written} as it is", "writes to it"
            remedy = f'Name it in the schema (mutates_args=("{written}",), or `Tensor(a!) {written}`)'
            return promised, made_so, f"{remedy}, or let the kernel write to a clone."
        if (shared := self._shared(made)) is not None:
            return shared
        if promise.result is None:
            return None
        fakes = tree_leaves(promise.result)
        if len(fakes) != len(made):
            return f"promises {len(fakes)} results", f"makes {len(made)}", f"Let the fake kernel return {len(made)}."
        for number, (fake, real) in enumerate(zip(fakes, made, strict=True)):
            where = "for the result" if len(made) == 1 else f"for result {number}"
            if isinstance(fake, torch.Tensor) and isinstance(real, torch.Tensor):
                if (found := self._layout(fake, real, where)) is not None:
                    return found
            elif isinstance(fake, torch.Tensor) != isinstance(real, torch.Tensor):
                kinds = ["a tensor" if isinstance(v, torch.Tensor) else type(v).__name__ for v in (fake, real)]
                return f"promises {kinds[0]} {where}", f"makes {kinds[1]}", f"Let the fake kernel return {kinds[1]}."
        return None

    def _layout(self, fake: torch.Tensor, real: torch.Tensor, where: str) -> tuple[str, str, str] | None:
        """A dtype, shape, device or strides that are not as promised."""
        shape = tuple(real.shape)
        if fake.dtype != real.dtype:
            made = str(real.dtype).removeprefix("torch.")
            remedy = f"Write dtype=torch.{made} where the fake kernel makes the tensor."
            return f"promises dtype {str(fake.dtype).removeprefix('torch.')} {where}", f"makes {made}", remedy
        if fake.dim() != real.dim() or not all(map(self.promise.fits, fake.shape, shape)):
            sizes = ", ".join(map(self.promise.shown, fake.shape)) + ("," if fake.dim() == 1 else "")
            remedy = f"Let the fake kernel compute the shape from its arguments so that it is {shape} for these."
            return f"promises the shape ({sizes}) {where}", f"makes {shape}", remedy
        if fake.device.type != real.device.type:
            remedy = f"Let the fake kernel make the tensor on {real.device.type}."
            return f"promises a tensor on {fake.device.type} {where}", f"makes one on {real.device.type}", remedy
        promised: list[object] = list(fake.stride())  # those of symbolic sizes are symbols, too
        steps = zip(promised, real.stride(), shape, strict=True)
        if real.numel() and any(isinstance(a, int) and a != b for a, b, size in steps if size > 1):
            remedy = (
                "Let the fake kernel return such a tensor (new_empty_strided, or the same permutation of new_empty), "
                "or the kernel one that is laid out as promised (.contiguous())."
            )
            return f"promises strides {tuple(fake.stride())} {where}", f"makes {tuple(real.stride())}", remedy
        return None

    def _written(self) -> str | None:
        """The argument that was changed although its schema does not say so."""
        writes = {a.name for a in self.op._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        for (name, tensor), before in zip(self.given, self.before, strict=True):
            if name not in writes and not (tensor.is_quantized or equal_bits(tensor.detach(), before)):
                return str(name)
        return None

    def _shared(self, made: Sequence[Any]) -> tuple[str, str, str] | None:
        """Memory that a result shares and should not, or should and does not."""
        declared = any(r.alias_info is not None for r in self.op._schema.returns)
        earlier = [(f"the argument {name}", tensor) for name, tensor in self.given]
        fakes = tree_leaves(self.promise.result) if self.promise.result is not None else []
        for number, real in enumerate(made):
            if not isinstance(real, torch.Tensor) or declared:
                continue
            label = "the result" if len(made) == 1 else f"result {number}"
            for other, tensor in earlier:
                if real.numel() and _memory(real) == _memory(tensor) != 0:
                    remedy = "Return a clone, or declare the view in the schema (`Tensor(a) x -> Tensor(a)`)."
                    return f"promises memory of its own for {label}", f"returns memory of {other}", remedy
            earlier.append((f"result {number}", real))
            fake = fakes[number] if number < len(fakes) else None
            for (name, _), argument in zip(self.given, self.promise.arguments, strict=False):
                if (
                    isinstance(fake, torch.Tensor)
                    and fake.untyped_storage()._cdata == argument.untyped_storage()._cdata
                ):
                    remedy = f"Let the fake kernel return a new tensor (torch.empty_like({name}))."
                    return f"promises memory of the argument {name} for {label}", "returns memory of its own", remedy
        return None

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Those of the call, as they were before it."""
        before = iter(self.before)
        args, kwargs = tree_map(lambda v: next(before) if isinstance(v, torch.Tensor) else v, (self.args, self.kwargs))
        return list(args), dict(kwargs)

    def finding(self, promise: str, made: str, remedy: str) -> Finding:
        """The disagreement with its line: of the fake kernel, of the kernel whose schema is wrong, or of the call."""
        schema = promise.startswith(OF_SCHEMA)
        function = kernel_of(self.op) if schema else fake_kernel_of(self.op)
        source = self.line
        if function is not None:
            source = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
        at = f" at {Path(source).name}" if source is not None else ""
        own = "The schema" if schema else "Your fake kernel" if function is not None else "The fake kernel"
        return Finding(
            kind="wrong_registration",
            stage="unknown",
            direction="backward" if self.backward else "forward",
            op=str(self.op),
            source=source,
            reason=f"{own}{at} {promise}, the kernel of {name_of(self.op)} {made}. {remedy}",
        )


class _Alone(TextProgram):
    told_alone = True  # a custom operator reads its annotations, which are its schema


def prove_registration(
    finding: Finding, parent: Path, fn: Any, op: Overload, args: list[Any], kwargs: dict[str, Any]
) -> None:
    """Write a script that holds the operator against its registration; the finding has its folder if it fails alone.

    `fn`: the program, which calls the operator with these arguments.
    """
    shown = first_shown(_scripts(finding, fn, op, args, kwargs))
    if shown is not None:
        folder = free_folder(parent, finding)
        finding.dossier, finding.proof = str(folder), "piece"
        write_proof(folder, finding, shown)


def _scripts(finding: Finding, fn: Any, op: Overload, args: list[Any], kwargs: dict[str, Any]) -> Iterator[Repro]:
    """Scripts with the program as text, and with the file that defines the operator."""
    for define in (partial(_as_text, fn), partial(_from_file, finding, op)):
        try:
            imports, definition = define()
            yield _script(finding, op, args, kwargs, imports, definition)
        except (GraphprobeError, Unwritable, Unreproducible, OSError, ValueError, TypeError, RuntimeError):
            continue


def _as_text(fn: Any) -> tuple[list[str], str]:
    text = program_text({"fn": type(fn) if isinstance(fn, torch.nn.Module) else fn}, reserved=RESERVED, program=_Alone)
    if text.files or text.stored:
        raise Unwritable("it needs more files")
    return sorted({*text.imports} - {"import torch"}), re.sub(r"\n{3,}", "\n\n", text.text.strip())


def _from_file(finding: Finding, op: Overload) -> tuple[list[str], str]:
    file = str(finding.source).rpartition(":")[0]
    if not Path(file).is_file():
        raise Unwritable("an operator that no file defines")
    lines = [f"sys.path.insert(0, {str(Path(file).parent)!r})", f"runpy.run_path({file!r})  # it defines {name_of(op)}"]
    return ["import runpy"], "\n".join(lines)


def _script(
    finding: Finding, op: Overload, args: list[Any], kwargs: dict[str, Any], imports: list[str], definition: str
) -> Repro:
    inputs = PlainInputs("drawn")
    values = [*args, *kwargs.values()]
    names = [argument.name for argument in op._schema.arguments][: len(args)] + list(kwargs)
    names = [name if name not in (*RESERVED, "torch") else f"{name}_" for name in names]
    inputs.call(capture(values, rng=False), names)
    given = ", ".join(names[: len(args)]) + ("," if len(args) == 1 else "")
    named = ", ".join(f"{key!r}: {name}" for key, name in zip(kwargs, names[len(args) :], strict=True))
    target = f"torch.ops.{op.namespace}.{op._schema.name.partition('::')[2]}.{op._overloadname}"
    checked = f"{target}, ({given}), {{{named}}}, test_utils={TESTS}, raise_exception=False"
    expected, actual = '{"SUCCESS"}', f"{{*map(str, torch.library.opcheck({checked}).values())}}"
    seed = ["torch.manual_seed(0)"] if inputs.drawn else []
    check = "\n".join([*seed, *inputs.lines, check_text(finding.kind, expected, actual, text=True)])
    text = script_of([finding.reason.partition(". ")[0]], imports, [definition], lambda brief: check, as_main=True)
    return Repro(text, text.replace(actual, expected))


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def registered_wrongly(ladder: Ladder) -> tuple[list[Finding], bool]:
    """The findings for operators of the program that are registered wrongly, and whether they explain the fault."""
    findings: list[Finding] = []
    if not has_own():
        return findings, False
    with ladder.in_time("whether the program's own operators are registered rightly"):
        ladder.runner.begin("own operators")
        findings = _held(ladder)
        return findings, bool(findings) and _explains(ladder, findings)
    return findings, bool(findings)


def _held(ladder: Ladder) -> list[Finding]:
    first = ladder.seen(ladder.top).certain[0]
    held = partial(held_against, ladder.program, ladder.compilation, first)
    findings = ladder.answer(held, list[Finding], least_s=PROGRAM_S) or []
    ladder.runner.tell(*notes.proven(findings))
    return findings


def _explains(ladder: Ladder, findings: Sequence[Finding]) -> bool:
    """Whether the program is right once these operators are left uncompiled, as far as they can be."""
    names = [str(f.op).replace(".", "::", 1).removesuffix(".default") for f in findings]
    report = ladder.answer(partial(left_uncompiled, ladder.program, ladder.compilation, names), RungReport)
    wrong = [] if report is None else ladder.differences(report)
    return all("crash" in d.kind or d.kind == "extra_exception" for d in wrong)


def left_uncompiled(program: Program, compilation: Compilation, names: Sequence[str]) -> RungReport:
    """The program as its user compiles it, with these operators between the graphs."""
    with caches_renewed(), without_fakes(names):
        return run_program(program, replace(compilation, fullgraph=False), compilation.backend)
