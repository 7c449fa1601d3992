"""Which stage of the compiler is to blame: evidence in, stage out.

A stage is to blame if it is the first point of the pipeline whose output, run by the most trusted executor, differs
from the uncompiled program:

| stage | its output | run by |
|---|---|---|
| `dynamo` | the graphs made of the Python code, and its side effects | Python, node by node |
| `trace` | the graph that `torch.export` or `make_fx` makes of the Python code | op by op |
| `pass` | the graph after a pass of the program's own that follows | op by op |
| `backend` | what a backend other than Inductor returns for these graphs | the backend |
| `aot` | forward and backward graphs without in-place changes, and what is saved in between | op by op |
| `decomposition` | the same in simpler operations, also where tracing carries them out | op by op |
| `pre_grad`, `joint`, `post_grad` | the graphs after these passes; `joint` splits off the backward | op by op |
| `lowering` | the loops and calls into libraries that Inductor chose: its IR | plain torch, loop by loop |
| `codegen` | the order and fusion of these loops, and their C++ or GPU code | the machine |
| `runtime` | what calls the kernels: guards, caches, buffers | torch itself |

A check that raised uncompiled and raises no more belongs to the first of these whose output has lost it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from graphprobe.findings import STAGES, Kind, Stage

Graphs = Literal["dynamo", "aot", "decomposition", "partition", "pre_grad", "joint", "post_grad"]
"""Points of the pipeline whose output is a graph. `partition`: the joint graph, split, before any pass."""

GRAPHS: tuple[Graphs, ...] = get_args(Graphs)
"""In the order of the pipeline."""

STAGE_OF: Mapping[Graphs, Stage] = {
    "dynamo": "dynamo",
    "aot": "aot",
    "decomposition": "decomposition",
    "partition": "joint",
    "pre_grad": "pre_grad",
    "joint": "joint",
    "post_grad": "post_grad",
}
"""The stage that makes these graphs."""

Loops = Literal["right", "wrong", "unknown"]
"""Inductor's IR, evaluated in plain torch; unknown where the evaluator does not know it, or a library computes."""

DIED: tuple[Kind, ...] = ("segfault", "hang", "crash_runtime")
LAID_OUT: tuple[Kind, ...] = ("wrong_stride", "wrong_shape", "wrong_dtype")


@dataclass(frozen=True)
class Evidence:
    """What is known of one failure, of the smallest program that has it.

    Attributes:
        kind: as in a Finding.
        graphs_wrong: the first point of the pipeline whose graphs, run op by op, fail; None: none does.
        graphs_run: the graphs of every point were run.
        loops: Inductor's IR of the last graphs; None where it was not looked at.
        raised_in: the stage whose frames an exception passed last; None without one.
        traced_away: the operation is decomposed while AOTAutograd traces.
        dynamic: sizes are symbols.
        alone: the operation is wrong when compiled by itself, for the sizes at hand.
        cached: it fails only with torch's caches.
        saved_check: uncompiled, autograd finds that a tensor saved for the backward was changed in place.
        caught: uncompiled, an operation raises, too, and the program goes on.
        inductor: the backend is Inductor, whose stages are known.
        lost: what could not be looked into, and why, as a sentence; empty where all was.
    """

    kind: Kind
    graphs_wrong: Graphs | None = None
    graphs_run: bool = True
    loops: Loops | None = None
    raised_in: Stage | None = None
    traced_away: bool = False
    dynamic: bool = False
    alone: bool = True
    cached: bool = False
    saved_check: bool = False
    caught: bool = False
    inductor: bool = True
    lost: str = ""


@dataclass(frozen=True)
class Rule:
    """One row: the stage where `holds`, and why."""

    stage: Stage
    why: str
    holds: Callable[[Evidence], bool]


def _raised(stage: Stage, what: str) -> Rule:
    def holds(e: Evidence) -> bool:
        late = e.kind == "crash_compile" and e.graphs_wrong is not None and is_later(stage, STAGE_OF[e.graphs_wrong])
        return e.kind in ("crash_compile", "hang") and e.raised_in == stage and not late

    return Rule(stage, f"it was raised {what}", holds)


def is_later(stage: Stage, first: Stage) -> bool:
    """Whether what raises while `first` is at work cannot come from this stage.

    Dynamo asks decompositions what results look like, too.
    """
    if stage not in STAGES or first not in STAGES or (stage, first) == ("decomposition", "dynamo"):
        return False
    return STAGES.index(stage) > STAGES.index(first)


def _graphs(point: Graphs, what: str) -> Rule:
    return Rule(STAGE_OF[point], f"{what}, run op by op, fail", lambda e: e.graphs_wrong == point)


RULES: tuple[Rule, ...] = (
    Rule("runtime", "it fails only with what torch has kept from before", lambda e: e.cached),
    Rule("backend", "another backend is one stage", lambda e: not e.inductor and e.graphs_wrong is None),
    _raised("dynamo", "while Dynamo read the Python code"),
    Rule(
        "dynamo",
        "what the program catches uncompiled ends the compilation",
        lambda e: e.caught and e.raised_in == "decomposition" and e.graphs_wrong == "dynamo",
    ),
    _raised("aot", "while AOTAutograd traced"),
    _raised("decomposition", "in a decomposition"),
    _raised("pre_grad", "in a pre-grad pass"),
    _raised("joint", "in a joint pass"),
    _raised("post_grad", "in a post-grad pass"),
    _raised("lowering", "while the graph was lowered"),
    _raised("codegen", "while code was written or compiled"),
    _graphs("dynamo", "Dynamo's graphs"),
    Rule(
        "decomposition",
        "the operation is decomposed while AOTAutograd traces it",
        lambda e: e.graphs_wrong == "aot" and e.traced_away,
    ),
    _graphs("aot", "AOTAutograd's graphs"),
    _graphs("decomposition", "the decomposed graphs"),
    _graphs("partition", "the parts of the joint graph"),
    _graphs("pre_grad", "the graphs after the pre-grad passes"),
    _graphs("joint", "the graphs after the joint passes"),
    _graphs("post_grad", "the graphs after the post-grad passes"),
    Rule(
        "runtime",
        "what autograd checks of saved tensors is lost where the compiled function saves them",
        lambda e: e.kind == "missing_exception" and e.saved_check and e.graphs_wrong is None,
    ),
    Rule(
        "lowering",
        "the graphs still raise what the kernels do not",
        lambda e: e.kind == "missing_exception" and e.graphs_run,
    ),
    Rule("lowering", "Inductor's IR, evaluated in plain torch, is wrong", lambda e: e.loops == "wrong"),
    Rule(
        "lowering",
        "the graphs are right, and lowering decides how results are laid out",
        lambda e: e.kind in LAID_OUT and e.graphs_run,
    ),
    Rule(
        "lowering",
        "the IR is right for these sizes only, and lowering decides what hangs on the others",
        lambda e: e.loops == "right" and e.dynamic and not e.alone,
    ),
    Rule("codegen", "Inductor's IR is right, and its code is wrong", lambda e: e.loops == "right"),
    Rule("lowering", "its lowering chose what computes it: a library or a template", lambda e: e.loops == "unknown"),
    Rule("runtime", "the kernels die while they run", lambda e: e.kind in DIED),
    Rule("codegen", "the graphs that are lowered are right, and the kernels wrong", lambda e: e.graphs_run),
    Rule("unknown", "nothing tells", lambda e: True),
)
"""The first row that holds counts."""


def stage_of(evidence: Evidence) -> tuple[Stage, str]:
    """The stage to blame, and why, in a few words."""
    rule = next(rule for rule in RULES if rule.holds(evidence))
    return rule.stage, rule.why
