"""What `diagnose` says: findings, and the diagnosis that holds them. `to_json` is what the file of a result holds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeVar, get_args

import msgspec

from graphprobe.faces import ShowsItself

T = TypeVar("T")

Kind = Literal[
    "wrong_value",
    "wrong_dtype",
    "wrong_shape",
    "wrong_stride",
    "lost_mutation",
    "aliasing",
    "nonfinite",
    "wrong_gradient",
    "missing_exception",
    "extra_exception",
    "crash_compile",
    "crash_runtime",
    "segfault",
    "hang",
    "side_effect",
    "unsupported",
    "not_bitwise",
    "wrong_registration",
]

Stage = Literal[
    "dynamo",
    "trace",
    "pass",
    "backend",
    "aot",
    "decomposition",
    "pre_grad",
    "joint",
    "post_grad",
    "lowering",
    "codegen",
    "runtime",
    "unknown",
]

STAGES: tuple[Stage, ...] = get_args(Stage)[:-1]
"""From the first to the last."""

NOTHING = 1e-30
"""A bound below this is that of a zero, which may become a subnormal number."""

DIAGNOSIS_SCHEMA = 1
"""Version of the document of a script."""

MOST_NUMBERS = 6
"""Of calls that are listed."""


def kind_of_death(signal: str | None) -> Kind:
    """The kind of a process's end: by its time limit (None), by `SIGABRT`, which is what uncaught C++ exceptions and
    failed assertions raise, or by another signal."""
    if signal is None:
        return "hang"
    return "crash_runtime" if signal == "SIGABRT" else "segfault"


def told_more(reason: str, more: str) -> str:
    """A reason with one more sentence behind it."""
    end = "" if not reason or reason.endswith((".", "!", "?")) else "."
    return f"{reason}{end} {more}".strip()


class Worst(msgspec.Struct, kw_only=True, frozen=True):
    """The worst element of a difference.

    Attributes:
        label: of what it is an element: `output 0`, `gradient 1`, `input 0 after the call`.
        index: one number a dimension; empty for a single value.
        expected, actual: uncompiled and compiled. A complex number is text; so are NaN and infinities once read.
        off: the absolute difference; NaN or infinity if one of the two is no finite number.
        legitimate: how far rounding may move this element, in the same unit; None if that is not known.
        wrong, of: how many elements are out of bounds, and how many there are.
    """

    label: str
    index: tuple[int, ...] = ()
    expected: bool | int | float | str
    actual: bool | int | float | str
    off: float
    legitimate: float | None = None
    wrong: int = 1
    of: int = 1


def expected_in_words(worst: Worst) -> tuple[str, str]:
    """The two values as text, with as many digits as it takes to see how far they are apart."""
    e, a = worst.expected, worst.actual
    numbers = [v for v in (e, a) if isinstance(v, float) and math.isfinite(v)]
    for digits in range(3, 18):
        texts = _number(e, digits), _number(a, digits)
        if len(numbers) < 2 or abs(abs(float(texts[0]) - float(texts[1])) - worst.off) <= 0.1 * worst.off:
            break
    return texts


def place_in_words(worst: Worst) -> str:
    """`at (5, 7) of output 0`, `at index 5 of output 0`; `in output 0` for a single value."""
    if not worst.index:
        return f"in {worst.label}"
    index = f"index {worst.index[0]}" if len(worst.index) == 1 else str(tuple(worst.index))
    return f"at {index} of {worst.label}"


def size_in_words(worst: Worst) -> str:
    """How far it is off, what rounding explains, and how many elements are wrong; empty if there is nothing to say."""
    parts = []
    if math.isfinite(worst.off) and not isinstance(worst.expected, bool):
        explained = worst.legitimate or 0.0
        amount = "nothing" if explained < NOTHING else f"{explained:.2g}"
        rounding = f", where rounding explains {amount}" if 0 < explained < worst.off else ""
        parts.append(f"off by {_number(worst.off, 3)}{rounding}")
    if worst.of > 1 and worst.wrong:
        verb = "is" if worst.wrong == 1 else "are"
        what = f"{verb} wrong" if worst.legitimate is not None else "differ" + "s" * (worst.wrong == 1)
        parts.append(f"{worst.wrong} of {worst.of} elements {what}")
    return "; ".join(parts)


def in_words(worst: Worst) -> str:
    """The worst element as a sentence without its period: what was expected, what came, where, and how bad that is."""
    expected, actual = expected_in_words(worst)
    parts = (f"expected {expected}, got {actual} {place_in_words(worst)}", size_in_words(worst))
    return "; ".join(part for part in parts if part)


def _number(value: bool | int | float | str, digits: int) -> str:
    text = f"{value:.{digits}g}" if isinstance(value, float) else str(value)
    return {"nan": "NaN", "inf": "infinity", "-inf": "-infinity", "-0": "0"}.get(text, text)


class Workaround(msgspec.Struct, kw_only=True, frozen=True):
    """A change of the program with which it was seen to be right, tried as text in a process of its own.

    Attributes:
        kind: `setting` of torch; `fallback`: an operation runs as torch's own kernel; `uncompiled`: a piece of the
            program does; `backend`: another one for the whole program.
        code: what to write.
        place: `file.py:line` where; None where the program is in no file.
        call_time: of a call, as a multiple of what it takes as the program is compiled now; None where that does not
            run, or nobody measured.
        uncompiled_time: the same as a multiple of an uncompiled call.
        graphs: that are compiled with the change; 0: nothing of the program is compiled then.
        graph_breaks: how many more there are.
        tried: changes that were tried until this one.
    """

    kind: Literal["setting", "fallback", "uncompiled", "backend"]
    code: str
    place: str | None = None
    call_time: float | None = None
    uncompiled_time: float | None = None
    graphs: int | None = None
    graph_breaks: int = 0
    tried: int = 1

    @property
    def price(self) -> str:
        """What it costs, in words; empty where nobody measured."""
        times = ((self.call_time, "now"), (self.uncompiled_time, "uncompiled"))
        told = [f"{time:.2g} times as long as {than}" for time, than in times if time is not None]
        costs = [f"a call takes {' and '.join(told)}"] if told else []
        costs += [f"{self.graph_breaks} graph break{'s' * (self.graph_breaks > 1)} more"] if self.graph_breaks else []
        costs += ["nothing of the program is compiled then"] if self.graphs == 0 else []
        return ", ".join(costs)


class KnownIssue(msgspec.Struct, kw_only=True, frozen=True):
    """A fault of torch's tracker that a finding looks like.

    Attributes:
        issue: such as `pytorch#198364`; None of a fault that has no issue.
        there, gone: versions of torch with which the proof of the known fault fails, and with which it does not.
    """

    issue: str | None = None
    there: list[str]
    gone: list[str]

    @property
    def in_words(self) -> str:
        """`looks like pytorch#198364: there with torch 2.12, 2.13, not with 2.15`."""
        what = self.issue or "a fault that is known, and has no issue"
        gone = f", not with {', '.join(self.gone)}" if self.gone else ""
        return f"looks like {what}: there with torch {', '.join(self.there)}{gone}"


class Finding(msgspec.Struct, kw_only=True):
    """One fault.

    Attributes:
        kind: what is wrong, as the program shows it.
        stage: where it comes from; `backend` is the whole of a backend other than Inductor; `unknown` where the ladder
            could not tell.
        backend: of the stage `backend`: its name, and for one of the program `(file.py:line)` behind it.
        direction: of the graph that it is in.
        pass_: the graph pass, as torch names it, or one of the program with `(file.py:line)` behind it; None of others.
        op: aten name (torch name at Dynamo level) of the best suspect; None if no op could be named.
        also: other suspects of the same fault, the likeliest first.
        node: FX node of `op` in the graph of the stage.
        kernel: name of the generated kernel.
        source: `file.py:line` of the innermost line outside of torch.
        called_from: `file.py:line` of the user's program, where `source` is a line of a library, or None; else None.
        module: dotted path of the nn.Module.
        within: the same with classes, `7 (Block) of Sequential`.
        places: all that are wrong for the same cause, the best suspect's first: `file.py:line`, `in module` behind it.
        local_z: largest error of the op in units of its legitimate noise, given the inputs that it got; 0 where the
            fault is no number.
        accumulated_z: the same for the output of the whole graph.
        flaky_rate: how often it failed when repeated, 0 to 1.
        dossier: folder with repro and report; None when there is none.
        proof: what the repro is made of: a `piece` of the program, or the `program` itself; None when there is none.
        relation: what compiled code does not follow, where that is to blame and no op: the title behind "Compiled, ".
        reason: one or two sentences, with figures.
        worst: the worst element of what the user can observe; None where no values were compared: dtypes, shapes,
            strides, crashes.
        workarounds: what to change until it is mended: all of them together, and this is right for all findings.
        tried: changes that were tried and do not help, or cost too much, where no workaround was found.
        known: the fault of torch's tracker that it looks like; None where it looks like none that is known.
    """

    kind: Kind
    stage: Stage
    direction: Literal["forward", "backward"] = "forward"
    backend: str | None = None
    pass_: str | None = msgspec.field(default=None, name="pass")
    op: str | None = None
    also: list[str] = []
    node: str | None = None
    kernel: str | None = None
    source: str | None = None
    called_from: str | None = None
    module: str | None = None
    within: str | None = None
    places: list[str] = []
    local_z: float = 0.0
    accumulated_z: float = 0.0
    flaky_rate: float = 1.0
    dossier: str | None = None
    proof: Literal["piece", "program"] | None = None
    relation: str | None = None
    reason: str = ""
    worst: Worst | None = None
    workarounds: list[Workaround] = []
    tried: list[str] = []
    known: KnownIssue | None = None

    @property
    def line(self) -> str | None:
        """The user's line, or a library's where no other is known."""
        return self.called_from or self.source

    @property
    def module_in_words(self) -> str:
        """`module 7 (Block) of Sequential`; empty where it is in none."""
        return f"module {self.within or self.module}" if self.module else ""

    @property
    def stage_name(self) -> str:
        """The stage, as people call it; of a backend with its pass that is to blame."""
        if self.stage in ("pass", "trace") and self.pass_:
            return f"{self.stage} {self.pass_}"
        return self.stage if self.backend is None else ", ".join(filter(None, (self.backend, self.pass_)))

    @property
    def backend_in_words(self) -> str:
        """``your backend `name` (file.py:line)``, and the backend's pass that is to blame; of the stage `backend`."""
        name, bracket, place = (self.backend or "").partition(" (")
        by, _, line = (self.pass_ or "").partition(" (")
        within = f", in its pass `{by}`{f' ({line}' if line else ''}" if by else ""
        return f"{'your' if bracket else 'the'} backend `{name}`{bracket}{place}{within}"


class Latent(msgspec.Struct, kw_only=True, frozen=True):
    """What disagrees inside of the compiled program and shows in nothing that its user can observe, or not for sure.

    Attributes:
        kind, stage, direction, op, node, source: as in a Finding.
        reason: one sentence.
    """

    kind: Kind
    stage: Stage
    direction: Literal["forward", "backward"] = "forward"
    op: str | None = None
    node: str | None = None
    source: str | None = None
    reason: str = ""


class LargestZ(msgspec.Struct):
    """The largest local error seen, in units of noise, and its node; `node` is None when nothing was compared."""

    node: str | None = None
    z: float = 0.0


class BitDifference(msgspec.Struct, kw_only=True, frozen=True):
    """How one observable of a program that is right differs from the uncompiled one's.

    Attributes:
        observable: `outputs[0]`, `gradients[1]`, `inputs[0]`, which is an input after the call.
        call: number of the call.
        elements: share of the elements that differ, above 0, at most 1. −0 equals 0, and any NaN any other.
        max_ulp: the largest difference in units in the last place of the value's dtype; of whole numbers in ones.
        max_abs: the largest difference.
        worst: the element that has it; None of a value that is no tensor.
        repeats: whether the uncompiled program gives the same bits each time it runs. False: nothing can be said.
    """

    observable: str
    call: int
    elements: float
    max_ulp: float
    max_abs: float
    worst: Worst | None = None
    repeats: bool = True


def bits_in_words(differences: Sequence[BitDifference]) -> str:
    """By how much the first one differs, and how many more do, as a sentence."""
    first, more = differences[0], len(differences) - 1
    label = first.worst.label if first.worst is not None else first.observable
    units = "unit" if first.max_ulp == 1 else "units"
    amount = f", by up to {_number(first.max_ulp, 3)} {units} in the last place" if first.max_ulp else ""
    size = f" ({_number(first.max_abs, 2)})" if first.max_abs else ""
    others = f" So do {more} more observables." if more > 1 else " So does one more observable." if more else ""
    share = "All" if first.elements == 1.0 else f"{_number(100 * first.elements, 2)}%"
    return f"{share} of the elements of {label} differ{amount}{size}.{others}"


class Rung(msgspec.Struct, kw_only=True):
    """One way of running the program, held against the uncompiled one.

    Attributes:
        name: `dynamo`, `aot`, `passes`, `kernels`, or `plain`: compiled, and not watched. Of what is exported or traced
            without `torch.compile`, what has made each graph: `fold (passes.py:31)`.
        state: `right`; `wrong`, whoever is to blame; `unsure` where numbers differ and could not be judged; `not_run`.
        difference: the first one, in words; empty where there is none.
    """

    name: str
    state: Literal["right", "wrong", "unsure", "not_run"]
    difference: str = ""


class NamedStep(str):
    """The name of a step, and how far it is.

    Attributes:
        seconds: since it began; 0 when it begins.
        doing: what it does right now, e.g. `op 34 of 512`; empty where it does not say.
        fact: what is known from now on, in one line: that the compiled program raises, dies or differs, and how; empty
            of a step that brings nothing to light.
    """

    seconds: float
    doing: str
    fact: str

    def __new__(cls, name: str, seconds: float = 0.0, doing: str = "", fact: str = "") -> NamedStep:
        """All of it together."""
        made = super().__new__(cls, name)
        made.seconds, made.doing, made.fact = seconds, doing, fact
        return made


class Diagnosis(ShowsItself, msgspec.Struct, kw_only=True):
    """The answer.

    Attributes:
        verdict: `fault`: compiled as its user compiles it, the program differs beyond legitimate noise. `healthy`: it
            does not. `undecided`: it could not be run, torch refuses it, it compiled nothing, or the difference cannot
            be judged.
        seconds: wall time.
        graphs: what torch.compile made of the program as its user compiles it; None where nobody counted.
        compiles: graphs that were compiled to kernels in order to look inside.
        findings: the faults, the earliest stage first.
        ruled_out: what was checked and is right, one sentence each.
        latent: what disagrees inside and shows in nothing that the user can observe; it decides nothing.
        differences: of a program that is right: the observables that are not what they are uncompiled to the last bit.
        largest_z: the largest local error seen.
        notes: what could not be checked and why; of an undecided verdict the reason stands first.
        raises: the exception in which the program ends, uncompiled and compiled; empty where it returns.
        rungs: the ladder, first rung first; of a backend that is not Inductor `dynamo` and `plain` only.
        unfinished: the budget ended it before all was looked into.
    """

    verdict: Literal["fault", "healthy", "undecided"]
    seconds: float = 0.0
    graphs: int | None = None
    compiles: int = 0
    findings: list[Finding] = []
    ruled_out: list[str] = []
    latent: list[Latent] = []
    differences: list[BitDifference] = []
    largest_z: LargestZ = msgspec.field(default_factory=LargestZ)
    notes: list[str] = []
    raises: str = ""
    rungs: list[Rung] = []
    unfinished: bool = False

    @property
    def exit_code(self) -> int:
        """0 healthy, 1 fault, 2 nothing was compiled, 125 undecided otherwise."""
        code = {"healthy": 0, "fault": 1, "undecided": 125}[self.verdict]
        return 2 if self.compiled_nothing else code

    @property
    def compiled_nothing(self) -> bool:
        """Whether torch.compile made no graph of the program, so that there was nothing to check."""
        return self.verdict == "undecided" and self.graphs == 0 and not self.findings

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as plain values; infinities become the string `"inf"`."""
        result: dict[str, Any] = _finite(msgspec.to_builtins(self))
        return result


class FunctionDiagnosis(Diagnosis, kw_only=True):
    """A diagnosis and whose it is: `function` is `name (file:line)`, and `, call N` behind it for a later call."""

    function: str

    @classmethod
    def of(cls, function: str, diagnosis: Diagnosis) -> FunctionDiagnosis:
        """The diagnosis of a function."""
        return cls(function=function, **{name: getattr(diagnosis, name) for name in Diagnosis.__struct_fields__})


class CallsLookedAt(msgspec.Struct, frozen=True):
    """What a verdict on a function of a script is about.

    Attributes:
        function: `name (file:line)`.
        calls: how many there were.
        looked_at: numbers of the calls, from 1, that were held against the uncompiled function.
        not_finite, gradient_not_finite: numbers of the first calls whose result, or whose gradient, holds a NaN or an
            infinity; None where there is none. The results and gradients of all calls are looked at for that.
    """

    function: str
    calls: int
    looked_at: list[int]
    not_finite: int | None = None
    gradient_not_finite: int | None = None

    @property
    def in_words(self) -> str:
        """`10 of 300 calls (1, 2, 3, 4, 8, …, 256)`"""
        shown = [str(number) for number in self.looked_at]
        shown = shown if len(shown) <= MOST_NUMBERS else [*shown[: MOST_NUMBERS - 1], "…", shown[-1]]
        return f"{len(self.looked_at)} of {self.calls} calls" + (f" ({', '.join(shown)})" if shown else "")


def extent_in_words(calls: Sequence[CallsLookedAt]) -> str:
    """What a verdict is about, ` on 10 of 300 calls`; empty where it is about all calls."""
    if all(len(one.looked_at) == one.calls for one in calls):
        return ""
    if len(calls) == 1:
        return f" on {calls[0].in_words}"
    return f" on {sum(len(one.looked_at) for one in calls)} of {sum(one.calls for one in calls)} calls"


class ScriptDocument(msgspec.Struct, kw_only=True):
    """What `graphprobe diagnose --json` writes for a script.

    Attributes:
        schema: version of this format.
        target: the script.
        ended: how the script ended, where it did not end well; None where it did, or has not ended yet.
        diagnoses: in the order in which they were made.
        calls: of each function, which of its calls the diagnoses are about.
        unfinished: the script has not come to its end, or something was not looked into for want of time.
    """

    schema: int = DIAGNOSIS_SCHEMA
    target: str
    ended: str | None = None
    diagnoses: list[FunctionDiagnosis] = []
    calls: list[CallsLookedAt] = []
    unfinished: bool = False

    def to_json(self) -> dict[str, Any]:
        """The document as plain values, each diagnosis as its own `to_json` gives it, behind its function."""
        made = [{"function": d.function} | d.to_json() for d in self.diagnoses]
        return {"schema": self.schema, "target": self.target, "ended": self.ended, "diagnoses": made} | {
            "calls": msgspec.to_builtins(self.calls),
            "unfinished": self.unfinished,
        }


def read_document(document: Any, kind: type[T]) -> T:
    """A `Finding`, a `FunctionDiagnosis` or a `ScriptDocument` from plain values, infinities as `to_json` writes them.

    Raises:
        msgspec.ValidationError: a field is missing or is of another type; the message says which.
    """
    return msgspec.convert(document, kind, strict=False)  # "inf" is a number then


def finding_json(finding: Finding) -> bytes:
    """A finding as the dossier keeps it."""
    plain = Diagnosis(verdict="fault", findings=[finding]).to_json()["findings"][0]
    return (json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value
