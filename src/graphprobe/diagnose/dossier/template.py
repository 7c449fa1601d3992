"""The template of every repro: head, body, check. Checks are five short texts, and a long one that compares all."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from graphprobe.diagnose.dossier import case_check, seen
from graphprobe.engine import replay
from graphprobe.internals.caches import cache_folder
from graphprobe.probe.formats import GUARD, assembled
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
TORCH, CACHE = "\nimport torch\n", "cache"
CACHED = f'os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath(os.path.join(__file__, "..", "{CACHE}"))'
"""A script that has a copy of torch's caches beside it says so behind this import."""

WEIGHTED = "(t * torch.linspace(0.5, 1.5, t.numel()).view(t.shape)).sum()"
RAMP = f"sum({WEIGHTED} for t in {{tensors}} if {{which}})"
"""A number with other gradients for each element."""

_VALUES = """\
expected, actual = {eager}, {compiled}
for i, (want, have{more}) in enumerate(zip(expected, actual{bounds})):{other}
    try:
        torch.testing.assert_close(have, want{bound}, equal_nan=True)
    except AssertionError as error:
        bad = ~torch.isclose(have, want{bound}, equal_nan=True)
        print(f"value {{i}} at {{bad.nonzero()[0].tolist()}}: expected {{want[bad][0]}}, actual {{have[bad][0]}}")
        sys.exit(str(error).split("\\n\\n")[-1])
print("compiled and uncompiled agree")"""

_BRIEF = """\
expected, actual = {eager}, {compiled}
for i, (want, have{more}) in enumerate(zip(expected, actual{bounds})):{other}
    bad = ~torch.isclose(have, want{bound}, equal_nan=True)
    if bad.any():
        sys.exit(f"value {{i}} at {{bad.nonzero()[0].tolist()}}: expected {{want[bad][0]}}, actual {{have[bad][0]}}")"""

_OTHER = """
    if isinstance(want, str | None) or have is None:
        if want != have:
            sys.exit(f"value {i}: expected {want}, actual {have}")
        continue"""
"""Between two values, of which either can be None or a text."""

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

_RULE = "# " + "-" * 100
_LONG_USAGE = (
    "Run it with `python repro.py`; it needs torch, what is imported below, and the files beside it.",
    "It exits 1 while the fault is there, 0 when it is gone, 125 when it cannot tell.",
)
_LONG = """\
keep({look})
expected = apart(__file__, {kind!r})
found = differences(expected, apart(__file__, {kind!r}, COMPILED{limit}), {limits})
sys.exit(reported({kind!r}, found, {unsaved!r}))"""

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


@dataclass(frozen=True)
class Repro:
    """A script that may show a fault, with what it reads.

    Attributes:
        text: of `repro.py`.
        control: the same script with a program that is not compiled, or compiled by a backend that changes nothing;
            what shows the fault, too, shows nothing. Empty in the long form, which compares all there is to see.
        files: what lies beside it, by name.
        problems: why it cannot be run in another process, one line each.
        output: what it printed where it has shown its fault in a process of its own.
    """

    text: str
    control: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    output: str = ""

    def with_entries(self, entries: Sequence[str]) -> Repro:
        """The same with these folders of torch's caches beside it, in the place of the caches."""
        if not entries:
            return self
        files, cache = dict(self.files), cache_folder()
        for path in (path for folder in entries for path in Path(folder).iterdir() if path.is_file()):
            files[f"{CACHE}/{path.relative_to(cache).as_posix()}"] = path.read_bytes()
        text, control = (one.replace(TORCH, f"{TORCH}{CACHED}\n", 1) for one in (self.text, self.control))
        return replace(self, text=text, control=control, files=files)

    def written(self) -> dict[str, bytes]:
        """By name: `repro.py`, and what it reads."""
        return {**self.files, "repro.py": self.text.encode()}


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
    values, names["other"] = _BRIEF if brief else _VALUES, _OTHER if optional or kind == "wrong_gradient" else ""
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
    notes: Sequence[str],
    imports: Collection[str],
    body: Sequence[str],
    check_of: Callable[..., str],
    lines: Sequence[str] = (),
    *,
    as_main: bool = False,
) -> str:
    """A whole script, with a check in fewer lines where it is long.

    Args:
        notes: comments of the head, the title first.
        imports: statements, beside those that the check needs.
        body: the program, and the function that runs it; annotations in them stay as they are.
        check_of: the text of the check, in fewer lines if `brief`.
        lines: between the imports and the body.
        as_main: the check runs only where the file is the program: it loads itself again, or forks.
    """
    script = ""
    for brief in (False, True):
        end = check_of(brief=brief)
        used = {name for name in ("faulthandler", "signal", "runpy") if f"{name}." in end}
        known = {*imports, "import os", "import sys", "import torch", *(f"import {name}" for name in used)}
        future = [FUTURE] if re.search(r"def .*(->|\w: )", "\n".join(body)) else []
        parts = [*body, guarded(end) if as_main else end]
        script = assembled([notes[0], USAGE, *notes[1:]], known, parts, first=future, lines=["", HOOK, *lines])
        if script.count("\n") <= MOST_LINES:
            break
    dense, lines_of = re.sub(r"\n{2,}", "\n", script), script.count("\n")
    return dense if lines_of > FULL_LINES or lines_of > MOST_LINES >= dense.count("\n") else script


def guarded(text: str) -> str:
    """Statements that run only if the file is the program."""
    return "\n".join(['if __name__ == "__main__":', *(f"    {line}".rstrip() for line in text.splitlines())])


def long_script(
    notes: Sequence[str],
    imports: Collection[str],
    body: Sequence[str],
    *,
    kind: str,
    look: str,
    limits: str,
    first: Sequence[str] = (),
    recorded: bool = False,
    unsaved: str = "",
) -> str:
    """A whole script that compares all there is to see, in processes of its own.

    Args:
        kind: of the fault.
        look: an expression for a function that returns what is seen, compiled or not.
        limits: an expression for how far each of the `expected` values may be off.
        first: before the imports.
        recorded: it runs a graph with recorded values.
        unsaved: what it lacks, without which it cannot tell that the fault is gone.
    """
    files = [(replay, "replay"), (seen, "seen"), (case_check, "case")] if recorded else [(seen, "seen")]
    shared = [replay.embedded(file=one.__file__, mark=mark) for one, mark in files]
    shared[0] = f"{_RULE}\n# What follows runs the program above uncompiled and compiled, and compares.\n\n{shared[0]}"
    limit = f", limit_s={2 * HANG_S:g}" if kind == "hang" else ""
    end = guarded(_LONG.format(kind=kind, look=look, limit=limit, limits=limits, unsaved=unsaved))
    return assembled(
        [*notes, *_LONG_USAGE],
        {*imports, "import os", "import sys", "import torch"},
        [*body, *shared, end],
        first=["", FUTURE, "", GUARD, *first, ""],
        gap="\n\n\n",
    )


def run_text(
    kind: str, signature: str, lines: Sequence[str], *, contexts: Sequence[str] = (), seed: bool = False
) -> str:
    """The function that runs the program and returns what is compared, and before it what takes the facts of that."""
    if kind in FACTS:
        lines = [re.sub(r"(?<=return )(.+)", r"facts(\1)", line) for line in lines]
    if contexts:
        lines = [f"with {', '.join(contexts)}:", *(f"    {line}" for text in lines for line in text.splitlines())]
    if seed:
        lines = ["torch.manual_seed(0)", *lines]
    body = "\n".join(f"    {line}" for text in lines for line in text.splitlines())
    facts = f"def facts(seen):\n    return {FACTS[kind]}\n\n" if kind in FACTS else ""
    return f"{facts}def {signature}:\n{body}"
