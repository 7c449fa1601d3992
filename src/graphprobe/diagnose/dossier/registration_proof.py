"""The proof that an operator of the program is registered wrongly: its definition, its arguments and torch's check."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from graphprobe.diagnose.dossier.plain import PlainInputs
from graphprobe.diagnose.dossier.short import Short
from graphprobe.diagnose.dossier.template import check_text, script_of
from graphprobe.diagnose.dossier.writer import first_shown, write_proof
from graphprobe.diagnose.prove import free_folder
from graphprobe.engine.values import capture
from graphprobe.errors import GraphprobeError
from graphprobe.findings import Finding
from graphprobe.internals.operators.operators import Overload
from graphprobe.internals.operators.registrations import name_of
from graphprobe.probe.formats.literals import Unreproducible
from graphprobe.program_text.plain_values import Unwritable
from graphprobe.program_text.program import TextProgram
from graphprobe.program_text.text import program_text

RESERVED = dict.fromkeys(("expected", "actual", "sys", "os", "runpy"))
TESTS = '("test_schema", "test_faketensor")'


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


def _scripts(finding: Finding, fn: Any, op: Overload, args: list[Any], kwargs: dict[str, Any]) -> Iterator[Short]:
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
) -> Short:
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
    return Short(text, text.replace(actual, expected))
