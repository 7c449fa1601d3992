"""The last lines of a short repro: run uncompiled and compiled, compare, and exit with 1, 0 or 125."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from graphprobe.program_text.text import FUTURE

RAISING = ("crash_compile", "crash_runtime", "extra_exception")
ENDING = ("segfault", "hang")
FACTS = {
    "wrong_dtype": "[t.dtype for t in map(torch.as_tensor, seen)]",
    "wrong_shape": "[tuple(t.shape) for t in map(torch.as_tensor, seen)]",
    "wrong_stride": "[t.stride() for t in map(torch.as_tensor, seen)]",
    "aliasing": "[[a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for b in seen] for a in seen]",
}
"""What is compared of the tensors `seen` where it is not their values."""

HANG_S = 60.0
HANG_FACTOR, HANG_LEAST_S = 3.0, 30.0
"""A repro of a hang waits so many times what took longest of what ended, and long enough for a first compile."""

USAGE = "Exit code 1: the fault is there. 0: it is gone. 125: this script cannot tell."
HOOK = "sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(125))  # else it would be 1"
RAMP = "sum((t * torch.linspace(0.5, 1.5, t.numel()).view(t.shape)).sum() for t in {tensors} if {which})"
"""A number with other gradients for each element."""

_VALUES = """\
expected, actual = {eager}, {compiled}
for i, (want, have{more}) in enumerate(zip(expected, actual{bounds})):{missing}
    try:
        torch.testing.assert_close(have, want{bound}, equal_nan=True)
    except AssertionError as error:
        bad = ~torch.isclose(have, want{bound}, equal_nan=True)
        print(f"value {{i}} at {{bad.nonzero()[0].tolist()}}: expected {{want[bad][0]}}, actual {{have[bad][0]}}")
        sys.exit(str(error).split("\\n\\n")[-1])
print("compiled and uncompiled agree")"""

_BRIEF = """\
expected, actual = {eager}, {compiled}
for i, (want, have{more}) in enumerate(zip(expected, actual{bounds})):{missing}
    bad = ~torch.isclose(have, want{bound}, equal_nan=True)
    if bad.any():
        sys.exit(f"value {{i}} at {{bad.nonzero()[0].tolist()}}: expected {{want[bad][0]}}, actual {{have[bad][0]}}")"""

_MISSING = """
    if want is None or have is None:
        if want is not have:
            sys.exit(f"value {i}: expected {want}, actual {have}")
        continue"""
"""Between two values, of which either can be None."""

_ONCE = """\
        faulthandler.dump_traceback_later({limit}, exit=True)  # seconds, after which it tells where it hangs
        run()"""
_HUNG = """\
print(f"expected: it ends. actual: {{'it does not end' if actual == 1 else 'it ends'}}.")
sys.exit(125 if expected else actual)"""
_OFTEN = """\
        for _ in range(20):  # memory that is overwritten does not always end the process at once
            run()"""

MOST_LINES, FULL_LINES = 40, 60
"""Of a script: a longer one compares in fewer lines; one longer than the second has no empty lines in any case."""

_EQUAL = """\
expected, actual = {eager}, {compiled}
print(f"expected {{expected}}\\nactual   {{actual}}")
sys.exit(actual != expected)"""

_RAISED = """\
def raised(run):
    try:
        run()
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"[:2000]

expected, actual = raised(lambda: {eager}), raised(lambda: {compiled})
print(f"expected: {{expected or 'no exception'}}\\nactual: {{actual or 'no exception'}}")
if expected is {unexpected}None:
    sys.exit(125)
sys.exit(actual is {wrong}None)"""

_ENDED = """\
def status(run):
    if (child := os.fork()) == 0:
{run}
        sys.exit()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

expected, actual = status(lambda: {eager}), status(lambda: {compiled})
{end}"""
_DIED = """\
print(f"expected: it ends. actual: {{f'killed by {{signal.Signals(-actual).name}}' if actual < 0 else 'it ends'}}.")
sys.exit(125 if expected < 0 else 1 if actual < 0 else 0 if actual == expected else 125)"""


def limit_of(took_s: float) -> int:
    """After how many seconds something hangs, if what took longest of what ended took `took_s`, 0: unknown."""
    return math.ceil(max(HANG_LEAST_S, HANG_FACTOR * took_s) if took_s else HANG_S)


def check_text(
    kind: str,
    eager: str,
    compiled: str,
    *,
    bounds: Sequence[float] = (),
    rtol: float = 0.0,
    limit_s: int = 0,
    text: bool = False,
    optional: bool = False,
    brief: bool = False,
) -> str:
    """Statements that end the script.

    Args:
        kind: of the fault.
        eager, compiled: expressions that run the program and give what is compared.
        bounds, rtol: how far each value may be off, absolute and relative; bounds empty: as
            `torch.testing.assert_close` has it.
        limit_s: after which something hangs.
        text: what is compared is no tensors.
        optional: what is compared can be None.
        brief: in fewer lines, which say less.
    """
    names = {"eager": eager, "compiled": compiled}
    if kind in ENDING:
        hangs = kind == "hang"
        end = (_HUNG if hangs else _DIED).format()
        return _ENDED.format(run=_ONCE.format(limit=limit_s) if hangs else _OFTEN, end=end, **names)
    if kind in RAISING:
        return _RAISED.format(unexpected="not ", wrong="not ", **names)
    if kind == "missing_exception":
        return _RAISED.format(unexpected="", wrong="", **names)
    if kind in FACTS or text:
        return _EQUAL.format(**names)
    values, names["missing"] = _BRIEF if brief else _VALUES, _MISSING if optional or kind == "wrong_gradient" else ""
    if not bounds:
        return values.format(more="", bounds="", bound="", **names)
    if len(set(bounds)) == 1:
        return values.format(more="", bounds="", bound=f", rtol={rtol:g}, atol={bounds[0]:.2g}", **names)
    listed = f", [{', '.join(f'{bound:.2g}' for bound in bounds)}]"
    return values.format(more=", atol", bounds=listed, bound=", rtol=0, atol=atol", **names)


def compares_values(kind: str) -> bool:
    """Whether a fault of this kind is one of values."""
    return kind not in {*FACTS, *RAISING, *ENDING, "missing_exception"}


def repeated(text: str, times: int) -> str:
    """Statements that compare values, tried again: for a fault that does not always show."""
    loop, agreed, end = text.partition("\nprint(")
    body = "\n".join(f"    {line}" for line in loop.splitlines())
    return f"for _ in range({times}):  # it does not always show\n{body}{agreed}{end}"


def script_of(
    parts: Sequence[str], check_of: Callable[[bool], str], notes: Sequence[str], modules: Sequence[str], *lines: str
) -> str:
    """A whole script: its head, what it consists of, and the check, in fewer lines where it is long.

    Args:
        parts: the program, and the function that runs it; annotations in them stay as they are.
        check_of: the text of the check, in fewer lines if it is given True.
        notes, modules, lines: of the head.
    """
    script = ""
    for check in map(check_of, (False, True)):
        head = head_of(notes, modules, "\n".join(parts), check, *lines)
        script = "\n\n".join(part for part in (head, *parts, check) if part) + "\n"
        if script.count("\n") <= MOST_LINES:
            break
    return condensed(script)


def condensed(script: str) -> str:
    """A script that is too long without its empty lines, if that makes it short enough, or it is very long."""
    dense = re.sub(r"\n{2,}", "\n", script)
    lines = script.count("\n")
    return dense if lines > FULL_LINES or lines > MOST_LINES >= dense.count("\n") else script


def head_of(notes: Sequence[str], modules: Sequence[str], defined: str, check: str, *lines: str) -> str:
    """The first lines of a script: comments, imports, what makes an exception no fault, and more lines.

    Args:
        modules: import statements, beside those of the standard library that the check names.
        defined: the program's own text, whose annotations stay as they are.
    """
    used = {name for name in ("faulthandler", "os", "signal", "runpy") if f"{name}." in HOOK or f"{name}." in check}
    imports = {*modules, "import sys", "import torch", *(f"import {name}" for name in used)}
    ordered = sorted(imports, key=lambda line: ("torch" in line, line.startswith("from"), line))
    comments = [f"# {line}" for note in notes for line in note.splitlines()]
    future = [FUTURE] if re.search(r"def .*(->|\w: )", defined) else []
    return "\n".join([*comments, *future, *ordered, "", HOOK, *lines])


def facts_text(kind: str) -> str:
    """The function that takes from tensors what is compared of them; empty where their values are."""
    return f"def facts(seen):\n    return {FACTS[kind]}\n\n" if kind in FACTS else ""
