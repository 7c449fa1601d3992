"""The ladder: the same program on backends that add one stage at a time; the first that fails points at its stage."""

from __future__ import annotations

import msgspec

from graphprobe.errors import UsageError

UNCOMPILED = "uncompiled"
"""The ground under the ladder: the program without torch.compile."""


class BackendRung(msgspec.Struct, frozen=True):
    """One backend of the ladder.

    Attributes:
        backend: its name.
        adds: the stage that it has and the rung below has not.
        passes: what is proven when the program is right on this rung.
        fails: what is proven when it is right on the rung below and wrong on this one.
        side: whether it adds no stage, and only tells two causes apart when the rung below fails.
    """

    backend: str
    adds: str
    passes: str
    fails: str
    side: bool = False


LADDER: tuple[BackendRung, ...] = (
    BackendRung(
        "eager",
        "Dynamo's capture",
        "Dynamo's graphs and guards compute what the Python code does.",
        "Dynamo captured something else than the Python code does, or its guards let it run where it must not.",
    ),
    BackendRung(
        "aot_eager",
        "AOTAutograd: functionalisation, the joint graph, the min-cut partitioner",
        "The functionalised forward and backward graphs are right, and so is what is put back: mutations and aliases.",
        "AOTAutograd made a wrong graph of a right one, in functionalising, differentiating or partitioning; or an"
        " operator has a wrong schema, fake kernel or gradient. aot_eager_default_partitioner tells the partitioner"
        " apart, eager_debug checks schemas.",
    ),
    BackendRung(
        "aot_eager_default_partitioner",
        "no stage: AOTAutograd with the partitioner that recomputes nothing",
        "AOTAutograd is right where it need not recompute in the backward.",
        "The partitioner that recomputes nothing splits the joint graph wrongly, and min-cut hides it.",
        side=True,
    ),
    BackendRung(
        "aot_eager_decomp_partition",
        "Inductor's decompositions",
        "The graphs that Inductor is given are right when each op runs by itself.",
        "A decomposition does not do what its op does, beyond rounding; aot_eager_decomp_partition_crossref checks the"
        " fake kernels that it was traced with.",
    ),
    BackendRung(
        "inductor",
        "Inductor: its graph passes, lowering, fusion, scheduling and generated kernels",
        "The program is right as compiled by Inductor.",
        "A pass, a lowering or a kernel of Inductor is wrong: the graphs that it was given are right op by op.",
    ),
)
"""From the least compiled to the most. Right on one rung and wrong on the next: the fault is in what that one adds."""

_SIDE = "aot_eager_default_partitioner"

_EXTRA = {
    (_SIDE, "aot_eager"): "The min-cut partitioner is at fault: it cuts or recomputes wrongly, for instance a random op"
    " or a mutated value; AOTAutograd is right without recomputation.",
    ("eager", _SIDE): "AOTAutograd is at fault, whatever the partitioner: functionalisation, the joint graph, or an"
    " operator's schema, fake kernel or gradient.",
    ("aot_eager", "aot_eager_decomp_partition"): LADDER[3].fails,
}


def between(passes: str, fails: str) -> str:
    """What is proven when the program is right on the rung `passes` and wrong on the rung `fails` above it.

    Args:
        passes: a rung, or `uncompiled`.
        fails: a rung further up; for rungs that are not neighbours, the stages in between are suspects together.

    Raises:
        UsageError: a name is no rung, or the second is not above the first.
    """
    if (passes, fails) in _EXTRA:
        return _EXTRA[passes, fails]
    rungs = [UNCOMPILED, *(rung.backend for rung in LADDER)]
    for name in (passes, fails):
        if name not in rungs:
            raise UsageError(f"{name!r} is no rung of the ladder", hint=f"the rungs are {', '.join(rungs)}")
    lower, upper = rungs.index(passes), rungs.index(fails)
    if upper <= lower:
        raise UsageError(f"{fails!r} is not above {passes!r} on the ladder", hint=f"the order is {', '.join(rungs)}")
    suspects = [rung for rung in LADDER[lower:upper] if not rung.side or rung.backend == fails]
    if len(suspects) == 1:
        return suspects[0].fails
    return "One of these is at fault: " + "; ".join(rung.adds for rung in suspects) + "."
