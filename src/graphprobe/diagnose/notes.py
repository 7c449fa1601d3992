"""What a diagnosis notes, in words, and where that is so."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from itertools import chain

import msgspec
import torch

from graphprobe.diagnose.evidence import RAISED
from graphprobe.diagnose.rungs import RungReport
from graphprobe.engine.naming import short_place
from graphprobe.errors import Raised
from graphprobe.findings import BitDifference, Finding, Kind, Latent, Rung, in_words, told_more
from graphprobe.judge.judging import Difference
from graphprobe.judge.refusals import user_line
from graphprobe.judge.stage_table import GRAPHS, Graphs
from graphprobe.judge.uncompiled import Reference
from graphprobe.judge.verdict import state_of
from graphprobe.report.diagnosis import NUMERIC, in_short

LEFT_OUT = "With the pass left out, the graphs compute what they should."

NOTHING = (
    "nothing was compiled: torch.compile made no graph of it, so nothing was checked; `graphprobe explain` tells why. "
    "Modules of torch's own, such as Linear, are not compiled inside of DistributedDataParallel and FSDP, nor by their "
    "own method compile()"
)
"""Of a program whose calls gave Dynamo nothing."""

LEFT_AS_IT_IS = (
    "torch.compile makes no graph of it and runs it uncompiled ({reason}), so it is right because nothing is compiled; "
    "`graphprobe explain` tells how to have it compiled"
)
"""Of a program that Dynamo has tried and left as it is."""

CUT_OFF = "these files in torch's cache were cut off, as a killed compiler leaves them, and are deleted now: {files}"
"""Each ended every program that has such a kernel, with `file too short`; torch makes it anew."""

KEPT = (
    "Compiled afresh, it is right. torch's caches on disk return what was compiled for another program, or before this "
    "one was edited. Delete these folders: {entries}."
)
"""Of a program that is wrong with entries of torch's caches alone."""

ALONE = (
    "each of the {ranks} ranks was diagnosed alone: a collective gave back what this rank had put in, so that what the "
    "ranks do together was not checked"
)
"""Of a program of several ranks, in a child that has none of the threads through which they talk."""

NO_FORK = (
    "this program has {ranks} ranks, and this process cannot be forked, so that the ranks would wait for each other"
)

OWN_BACKWARD = "the function runs a backward itself: none was run from what it returns"
NO_BACKWARD = "a backward from what it returns raises uncompiled, too ({why}): the calls were compared without one"
RAN_BEFORE = "backward through the graph a second time"
"""In torch's own words: of a graph that a backward has freed."""

APART = "Each result had a backward of its own; compiled, all may be parts of one, which the first of them frees."

ONE_THREAD = (
    "torch had one thread: what goes wrong only where a loop is shared out among threads was not looked into; "
    "OMP_NUM_THREADS=2 gives it two, unless the program sets their number itself"
)
"""Of a healthy verdict for kernels on CPU: the number of threads is part of the code that Inductor writes."""

UNWATCHED = "not every pass was looked into: this torch lacks {names}"
"""Of a torch that announces its passes in another way."""

NOT_LOOKED_INTO = "{rung} could not be looked into: {why}"

SPARED = "dynamo and aot were not run by themselves: passes, which runs all that they do, is right"
"""Of a large program."""

KERNELS_FIRST = "dynamo, aot and passes were not run by themselves, as a kernel was proven wrong; `deep` runs them"
"""Of a large program that is far off."""

ROUNDING = "emulate_precision_casts"
"""Inductor's switch that makes kernels round narrow values where the uncompiled program does."""

UNSEEN = "it was not held against the uncompiled program"
UNJUDGED = "it differs, and it is not known whether rounding explains that"
"""Of what is no difference where float64 cannot tell, or where no time, or no memory, was left to look."""

LOOKING = "looking for the smallest case …"
"""Behind the first fact."""

FACT_LENGTH = 300
"""Characters of the first fact, which is one line."""

BITS_UNSEEN = "it is right within rounding, and could not be compared bit for bit"
"""Of `exact`, where there was no time or memory to look, or the uncompiled program was not at hand."""

GRAPHS_IN_WORDS: dict[Graphs, str] = {
    "dynamo": "Dynamo's graphs",
    "aot": "AOTAutograd's graphs",
    "decomposition": "the decomposed graphs",
    "partition": "the parts of the joint graph",
    "pre_grad": "the graphs after the pre-grad passes",
    "joint": "the graphs after the joint passes",
    "post_grad": "the graphs after the post-grad passes",
}


def first_fact(certain: Sequence[Difference], report: RungReport | None = None) -> str:
    """What a user of the compiled program sees, in one line, before anything is known of its cause.

    `report`: has the origin of an exception, if the parts of the compiler are known; else torch's words have the line.
    """
    first, more = certain[0], len(certain) - 1
    raises = first.kind in RAISED and first.log
    what = in_words(first.worst) if first.worst is not None else first.text
    what = f"it raises {what}" if raises else f"{first.where}: {what}" if first.where and first.worst is None else what
    others = f"; {more} more differ" if more and not raises else ""
    origin = report.origin if report is not None else None
    line = (origin is not None and (origin.called_from or origin.source)) or user_line(first.log)
    at = f", at {short_place(*line.rsplit(':', 1))}" if line else ""
    return f"compiled, {' '.join(what.split())[:FACT_LENGTH]}{at}{others}"


def proven(findings: Sequence[Finding]) -> list[str]:
    """A line for each finding that comes with a proof."""
    repros = [(f, os.path.relpath(os.path.join(f.dossier, "repro.py"))) for f in findings if f.proof and f.dossier]
    return [f"proven: {in_short(finding)} python {shlex.quote(repro)}" for finding, repro in repros]


def rung(name: str, found: Sequence[Difference] | None) -> Rung:
    """A rung as it is told, with the first difference that counts; None: it was not run, or could not be."""
    worst = next((d for d in found or () if d.certain), next(iter(found or ()), None))
    if worst is None:
        return Rung(name=name, state=state_of(found))
    place = f" in {worst.where}" if worst.where else ""
    return Rung(name=name, state=state_of(found), difference=f"{worst.kind}{place}: {worst.text}")


def unsure_of_numbers(found: Sequence[Difference]) -> list[Difference]:
    """Differences as they are to be taken where nobody has measured how far rounding may go: it may explain numbers.

    Something differs, or nothing would have had to be measured.
    """
    weighed = [msgspec.structs.replace(d, weight="unsure") if d.kind in NUMERIC else d for d in found]
    return weighed or [Difference("wrong_value", 0, "outputs", UNJUDGED, weight="unsure")]


def excused(found: Sequence[Difference]) -> list[str]:
    """Of a healthy program that differs only where that is no fault: a line for each reason."""
    lines = []
    if off := [d for d in found if d.weight == "better"]:  # the compiled program is nearer to float64
        more = f", and in {len(off) - 1} more places" if len(off) > 1 else ""
        lines.append(f"{off[0].where} differs{more}, and the uncompiled program is the one that is off: {off[0].text}")
    if undefined := [d for d in found if d.weight == "undefined"]:
        places = ", ".join(dict.fromkeys(d.where for d in undefined))
        verb = "differ" if "," in places else "differs"
        lines.append(f"{places} {verb} only where torch leaves the result undefined: {undefined[0].text}")
    return lines


def raised_in_both(eager: Raised, compiled: RungReport | None) -> str:
    """Of a program that raises either way; what it raises compiled may be of another class."""
    others = [call.raised for call in compiled.calls if call.raised is not None] if compiled is not None else []
    if not others or others[0].type == eager.type:
        return f"uncompiled and compiled it raises {eager.line}"
    return f"uncompiled it raises {eager.line}; compiled {others[0].line}"


def in_one_thread(reference: Reference) -> bool:
    """Whether loops on a CPU were run, and no second thread could have a part in one."""
    values = (v for call in reference.eager[0] for v in chain(call.outputs, call.inputs))
    return torch.get_num_threads() == 1 and any(isinstance(v, torch.Tensor) and v.device.type == "cpu" for v in values)


def keeps_wider(place: Latent | None, difference: Difference | None) -> str:
    """Of a program that differs only because a kernel keeps a narrow value wider; `place`: where that is, if known."""
    where = f" ({place.op} at {place.source or place.node})" if place is not None else ""
    what = f"{difference.where}: {difference.text}" if difference is not None else ""
    return (
        f"a kernel keeps a narrow value wider than the uncompiled program{where}, as torch means it to: {what}. "
        f"With torch._inductor.config.{ROUNDING} = True it rounds, and the two agree."
    )


def no_bits_to_hold_it_to(found: Sequence[BitDifference]) -> str:
    """Of `exact`, where the uncompiled program does not repeat its own bits."""
    names = ", ".join(dict.fromkeys(d.observable for d in found))
    return f"the uncompiled program gives other bits each time in {names}, so that there are none to hold it to"


def where_bits_begin(point: Graphs | None, op: str | None, *, all_run: bool, inductor: bool) -> str:
    """From where on the bits differ.

    Args:
        point: the first whose graphs, run op by op, give other bits; None: the kernels.
        op: the first operation there that rounds otherwise, if it is known.
        all_run: the graphs of each point before it could be run.
        inductor: the backend is Inductor, whose points are known.
    """
    if not all_run:
        return "Where that begins is not known: not all graphs could be run op by op."
    if not inductor and point is None:
        return f"{GRAPHS_IN_WORDS['dynamo']}, run as they are, give the same bits; the backend does not."
    if point is None:
        first = f"; {op} is the first operation in them that rounds otherwise" if op is not None else ""
        return f"All graphs, run op by op, give the same bits; the kernels do not{first}."
    first = f"; {op} is the first operation whose decomposition rounds otherwise" if op is not None else ""
    number = GRAPHS.index(point)
    earlier = f", and {GRAPHS_IN_WORDS[GRAPHS[number - 1]]} still give the same bits" if number else ""
    return f"They differ from {GRAPHS_IN_WORDS[point]} on{earlier}{first}."


def as_the_program_fails(findings: Sequence[Finding], kind: Kind, found: Sequence[Difference]) -> None:
    """Give findings about memory, which are of this kind, the kind of failure that the program makes of them."""
    worse = next((d for d in found if d.kind != kind), None)
    for finding in findings:
        if finding.kind == kind and worse is not None:
            finding.kind = worse.kind
            finding.reason = told_more(finding.reason, f"The program then has: {worse.text}.")
