"""The short form of a repro that is the program itself: its text, the calls, and what differs."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import keyword
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch

from graphprobe.diagnose.dossier.plain_inputs import PlainInputs
from graphprobe.diagnose.dossier.short import Short
from graphprobe.diagnose.dossier.short_check import (
    ENDING,
    FACTS,
    HANG_S,
    RAISING,
    RAMP,
    USAGE,
    check_text,
    facts_text,
    script_of,
)
from graphprobe.diagnose.program import Program
from graphprobe.engine.values import why_not
from graphprobe.program_text.objects import INSTANCE, INSTANCE_TEXT
from graphprobe.program_text.plain_values import MOST_INLINE, Unwritable
from graphprobe.program_text.text import program_text

log = logging.getLogger(__name__)

RESERVED = dict.fromkeys(("run", "fn", "result", "expected", "actual", "raised", "status", "options", "sys", "os"))
Made = Literal["new", "drawn", "exact"]
"""`new`: the module is made by its class. `drawn`: so are modules of torch, and tensors of more than a few values are
drawn anew. `exact`: all is as it is."""
RTOL = 1e-4
"""Of values of a program, whose noise was measured where it is wrong only."""
_ARGUMENT = re.compile(r"argument (\w+)")


@dataclass(frozen=True)
class ShortProgram:
    """What a short repro of a program is made of."""

    program: Program
    options: Mapping[str, str]  # arguments of `torch.compile`, as text
    backend: str  # text that defines the backend; empty where torch knows it
    head: Sequence[str]  # statements before the program: the settings
    where: str  # what differs: `outputs[0]`, `gradients[1]`, `inputs[0]`, or the name of what a side effect is to
    kind: str
    title: str  # first line, as a comment
    control: str  # arguments of `torch.compile` with which the fault must not show, as text
    single: bool  # whether one value differs, which may be a number or a text and no tensor
    bound: float | None  # how far a value may be off beside what is relative; None: as `torch.testing.assert_close`


def short_program(told: ShortProgram) -> Iterator[Short]:
    """Short scripts that may show what the program does otherwise, each yet to be run; none where it has no text."""
    is_value = told.single and told.kind == "wrong_value" and told.where.startswith("outputs")
    plain = (False, True) if is_value else (False,)
    forms: tuple[Made, ...] = ("new", "drawn", "exact") if _can_be_made(told.program.fn) else ("drawn", "exact")
    known: set[str] = set()
    for made, of_plain in itertools.product(forms, plain):
        try:
            short = _script(told, made, of_plain)
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


def _script(told: ShortProgram, made: Made, plain: bool) -> Short:
    """The script.

    Args:
        plain: what is compared is what the program returns beside tensors, as text.
    """
    calls, fn = _arguments(told), cast(Any, told.program.fn)
    if len(calls) != len(told.program.calls):
        raise Unwritable("an argument whose name is none of Python's")
    new = made == "new"
    roots: dict[str, Any] = {"fn": type(fn) if new else fn}
    for call in calls:
        roots |= {key: value for key, (_, value) in call.items() if not _is_tensor(value)}
    if told.program.between is not None:
        roots["between"] = told.program.between
    text = program_text(roots, reserved=RESERVED, draws=made == "drawn")
    if text.files or text.stored:
        raise Unwritable("it needs more files")
    given = dict(text.roots)
    if new:
        given["fn"] = f"{given['fn']}(){'' if fn.training else '.eval()'}"
    run = _run(told, given, calls, draws=new, plain=plain)
    eager = 'runpy.run_path(__file__)["run"]()'
    compiled = (
        f'runpy.run_path(__file__)["run"]({", ".join(f"{name}={value}" for name, value in told.options.items())})'
    )
    shown = told.kind == "side_effect" or plain
    used = [INSTANCE_TEXT] if f"{INSTANCE}(" in text.text + run else []
    seed = ["torch.manual_seed(0)"] if text.drawn else []
    needed = {*text.imports, *(["import re"] if "re.sub(" in run else [])}
    imports = sorted(needed - {"import torch", "import torch.nn"})
    bounds = () if told.bound is None else (told.bound,)

    def check_of(brief: bool) -> str:
        check = check_text(
            told.kind,
            eager,
            compiled,
            bounds=bounds,
            rtol=RTOL if told.bound else 0.0,
            limit_s=int(HANG_S),
            text=shown,
            optional=True,
            brief=brief,
        )
        lines = [f"    {line}".rstrip() for line in check.splitlines()]
        return "\n".join(['if __name__ == "__main__":', *lines])

    body = re.sub(r"\n{3,}", "\n\n", text.text.strip())
    parts = [*used, body, told.backend.strip(), run]
    script = script_of(parts, check_of, [told.title, USAGE], imports, *told.head, *seed)
    return Short(script, script.replace(compiled, f'runpy.run_path(__file__)["run"]({told.control})'))


def _arguments(told: ShortProgram) -> list[dict[str, tuple[str, Any]]]:
    """For each call the key of each argument, with how it is passed and its value."""
    try:
        parameters = list(inspect.signature(told.program.fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    simple = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = [p.name for p in parameters if p.kind in simple]
    found = []
    for number, (args, kwargs) in enumerate(told.program.calls):
        suffix = f"_{number}" if len(told.program.calls) > 1 else ""
        call: dict[str, tuple[str, Any]] = {}
        for i, value in enumerate(args):
            name = known[i] if i < len(known) else f"arg{i}"
            call[f"{name if name not in (*RESERVED, 'torch') else name + '_'}{suffix}"] = ("", value)
        for name, value in kwargs.items():
            if not name.isidentifier() or keyword.iskeyword(name):
                return []
            call[f"{name}_given{suffix}"] = (f"{name}=", value)
        found.append(call)
    return found


def _run(
    told: ShortProgram,
    roots: Mapping[str, str],
    calls: Sequence[Mapping[str, tuple[str, Any]]],
    *,
    draws: bool,
    plain: bool,
) -> str:
    """The function that calls the program and returns what differs."""
    tensors = {key: value for call in calls for key, (_, value) in call.items() if _is_tensor(value)}
    few = sum(value.numel() for value in tensors.values()) <= MOST_INLINE
    inputs = PlainInputs("inline" if few else "drawn")
    for key, value in tensors.items():
        inputs.tensor(key, value)
    made = {key: key for key in tensors}
    lines = ["torch.manual_seed(0)"] if draws or inputs.drawn else []
    named = roots["fn"].isidentifier() and told.program.grad is None
    fn = roots["fn"] if named else "fn"
    lines += [] if named else [f"fn = {roots['fn']}"]
    lines += inputs.lines
    for call in calls:
        for key, (_, value) in call.items():
            if not _is_tensor(value):
                keep = _is_watched(told.where, key)
                made[key] = key if keep else roots[key]
                lines += [f"{key} = {roots[key]}"] if keep and roots[key] != key else []
    known = " ".join([*roots.values(), *made, *lines])
    f = next(name for name in ("f", "g", "compiled_", "called_") if not re.search(rf"\b{name}\b", known))
    lines.append(f"{f} = torch.compile({fn}, **options) if options else {fn}")
    several = len(calls) > 1
    lines += ["result = []"] if several else []
    for i, call in enumerate(calls):
        passed = ", ".join(f"{how}{made[key]}" for key, (how, _) in call.items())
        lines += [f"{roots['between']}({fn}, {i})"] if i and told.program.between is not None else []
        lines.append(f"result.append({f}({passed}))" if several else f"result = {f}({passed})")
    leaves = "torch.utils._pytree.tree_leaves({})"
    if told.program.grad:
        which = "torch.is_tensor(t) and t.requires_grad"
        lines.append(f"loss = {RAMP.format(tensors=leaves.format('result'), which=which)}")
        lines += ["if torch.is_tensor(loss):", "    loss.backward()"]
    if plain:
        values = f"[value for value in {leaves.format('result')} if not torch.is_tensor(value)]"
        lines.append(f'return re.sub(" at 0x[0-9a-f]+", "", repr({values}))')
    else:
        lines += _seen(told, fn, [made[key] for call in calls for key in call], leaves)
    if told.program.grad is False:
        lines = ["with torch.no_grad():", *(f"    {line}" for line in lines)]
    body = "\n".join(f"    {line}" for statement in lines for line in statement.splitlines())
    return f"{facts_text(told.kind)}def run(**options):\n{body}"


def _seen(told: ShortProgram, fn: str, arguments: Sequence[str], leaves: str) -> list[str]:
    """The line that returns what differs; none where only an exception or an end is looked for."""
    if told.kind in RAISING or told.kind in ENDING or told.kind == "missing_exception":
        return []
    if told.kind == "side_effect":
        found = _ARGUMENT.match(told.where)
        where = told.where
        if found is not None:
            own = [name for name in arguments if name == found[1] or name.startswith(f"{found[1]}_")]
            number = int(found[1]) if found[1].isdigit() else -1
            where = own[0] if own else arguments[number] if 0 <= number < len(arguments) else found[1]
            where += told.where[found.end() :]
        return [f"return repr({where.removeprefix('global ')})"]
    values = leaves.format("result")
    if told.where.startswith("gradients"):
        of = [f"[{', '.join(arguments)}]"] if arguments else []
        of += [f"list({fn}.parameters())"] if isinstance(told.program.fn, torch.nn.Module) else []
        values = f"[t.grad for t in {leaves.format(' + '.join(of))} if torch.is_tensor(t) and t.requires_grad]"
    elif told.where.startswith("inputs"):
        values = leaves.format(f"[{', '.join(arguments)}]")
        if isinstance(told.program.fn, torch.nn.Module):
            values += f" + list({fn}.buffers())"
    return [f"return facts({values})" if told.kind in FACTS else f"return {values}"]


def _is_tensor(value: Any) -> bool:
    """Whether it is a tensor that lines of its own make."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.is_leaf and why_not(value) is None


def _is_watched(where: str, key: str) -> bool:
    found = _ARGUMENT.match(where)
    return found is not None and (found[1].isdigit() or key == found[1] or key.startswith(f"{found[1]}_"))
