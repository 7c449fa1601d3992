"""Does a piece fail, and how? Runs it uncompiled and compiled, the cheapest sufficient way, in the process it is in."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from graphprobe.diagnose.case import Case
from graphprobe.diagnose.check_case import program_of, reference_of, settings_of
from graphprobe.diagnose.dossier.case_check import directly
from graphprobe.diagnose.reduction import signature as sign
from graphprobe.errors import Raised, raised_from
from graphprobe.internals.caches import bypassed
from graphprobe.judge.judging import Difference, compare, identical
from graphprobe.judge.observation import Observation, read
from graphprobe.judge.uncompiled import Reference
from graphprobe.reduce.outcome import Answer, OracleVerdict

UNSUPPORTED = "torch._dynamo.exc.Unsupported"


class Question(msgspec.Struct, frozen=True):
    """What is asked of a piece."""

    wanted: str = ""  # signature of the failure that is looked for; empty: any
    fail_regex: str | None = None  # what the text of a failure must match to be the one that is looked for


def judge(
    case: Case, question: Question, compiling: Callable[[], object], *, backend: Callable[[], Any] | None = None
) -> Answer:
    """Run the case and say whether it fails.

    Args:
        compiling: is called before anything is compiled: what ends the process until then is no fault of the compiler.
        backend: makes what to compile with; None: the case's own.

    Never raises for what the case does; the process may still die of it.
    """
    try:
        eager = [read(r) for r in program_of(case).run(lambda fn: fn)]
    except Exception as error:  # values that cannot be saved, a backward that cannot be run
        return unresolved(f"uncompiled: {type(error).__name__}: {error}")
    broken = next((c.raised for c in eager if c.raised is not None), None)
    if broken is not None and question.wanted != "missing_exception" and question.wanted:
        return unresolved(f"uncompiled it raises {broken.short}")
    compiling()
    got, raised = compiled_calls(case, backend)
    raised = raised or next((c.raised for c, e in zip(got, eager, strict=False) if c.raised and not e.raised), None)
    if raised is not None:
        return _of_exception(raised, question)
    if question.wanted and not sign.needs_values(question.wanted):
        return Answer(OracleVerdict.PASSES)
    if broken is None and identical(Reference([eager]), got):
        return Answer(OracleVerdict.PASSES)
    try:
        reference = reference_of(case) if broken is None else Reference([eager, eager])
    except Exception as error:
        return unresolved(f"uncompiled: {type(error).__name__}: {error}")
    return _of_differences(compare(reference, got), question)


def compiled_calls(case: Case, backend: Callable[[], Any] | None) -> tuple[list[Observation], Raised | None]:
    """The compiled calls; or what ended them outside of any call.

    A graph that Dynamo does not trace again in one piece goes to the backend directly, as in a repro.
    """
    with contextlib.nullcontext() if case.caches else bypassed(), settings_of(case):
        calls, raised = _compiled(case, backend)
        refused = [r for r in (raised, *(c.raised for c in calls)) if r is not None and r.type == UNSUPPORTED]
        if refused:
            calls, raised = _compiled(case, backend, direct=True)
    return calls, raised


def _compiled(
    case: Case, backend: Callable[[], Any] | None, *, direct: bool = False
) -> tuple[list[Observation], Raised | None]:
    torch.compiler.reset()
    program = program_of(case)
    try:
        chosen = case.backend if backend is None else backend()
        compiled: Callable[..., Any]
        if direct:
            compiled = directly(program.fn, {"backend": chosen})  # type: ignore[arg-type]
        else:
            compiled = torch.compile(program.fn, backend=chosen, dynamic=case.dynamic, fullgraph=True)
        return [read(r) for r in program.run(lambda _: compiled)], None
    except Exception as error:
        return [], raised_from(error)


def _of_exception(raised: Raised, question: Question) -> Answer:
    found = sign.of_exception(raised, compiling=raised.while_compiling)
    if question.fail_regex is not None:
        found = _by_regex(question.fail_regex, found, f"{raised.type}: {raised.message}\n{raised.trace}")
    return Answer(OracleVerdict.FAILS, found, raised.short)


def _of_differences(differences: Sequence[Difference], question: Question) -> Answer:
    certain = [d for d in differences if d.certain]
    if not certain:
        return unresolved(differences[0].text) if differences else Answer(OracleVerdict.PASSES)
    wanted = sign.kind_of(question.wanted) if question.wanted else certain[0].kind
    shown = next((d for d in certain if d.kind == wanted), certain[0])
    found: str = shown.kind
    if question.fail_regex is not None:
        found = _by_regex(question.fail_regex, found, "\n".join(f"{d.kind} {d.where}: {d.text}" for d in certain))
    return Answer(OracleVerdict.FAILS, found, f"{shown.where or f'call {shown.call}'}: {shown.text}")


def _by_regex(pattern: str, found: str, text: str) -> str:
    """Failures whose text matches are the same one; what does not match stays what it is."""
    return f"{sign.kind_of(found)} matching {pattern}" if re.search(pattern, text) else found


def unresolved(reason: str) -> Answer:
    """The answer when nothing can be said."""
    return Answer(OracleVerdict.UNRESOLVED, "", reason)
