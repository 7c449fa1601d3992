"""Each row of the stage table is the first to hold for some evidence, and for what it is meant for."""

from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphprobe.findings import STAGES, Kind, Stage
from graphprobe.judge import stage_table
from graphprobe.judge.stage_table import DIED, GRAPHS, LAID_OUT, RULES, Evidence, Graphs, Loops, stage_of

# In the order of the table: what holds for a row and for none above it.
ROWS: list[tuple[Stage, str, Evidence]] = [
    ("runtime", "kept from before", Evidence("wrong_value", cached=True)),
    ("backend", "another backend is one stage", Evidence("wrong_value", inductor=False)),
    ("dynamo", "while Dynamo read", Evidence("crash_compile", raised_in="dynamo")),
    ("dynamo", "catches", Evidence("crash_compile", "dynamo", raised_in="decomposition", caught=True)),
    ("aot", "while AOTAutograd traced", Evidence("crash_compile", raised_in="aot")),
    ("decomposition", "in a decomposition", Evidence("crash_compile", raised_in="decomposition")),
    ("pre_grad", "in a pre-grad pass", Evidence("crash_compile", raised_in="pre_grad")),
    ("joint", "in a joint pass", Evidence("crash_compile", raised_in="joint")),
    ("post_grad", "in a post-grad pass", Evidence("crash_compile", raised_in="post_grad")),
    ("lowering", "while the graph was lowered", Evidence("crash_compile", raised_in="lowering")),
    ("codegen", "while code was written", Evidence("crash_compile", raised_in="codegen")),
    ("dynamo", "Dynamo's graphs", Evidence("side_effect", "dynamo")),
    ("decomposition", "decomposed while", Evidence("wrong_value", "aot", traced_away=True)),
    ("aot", "AOTAutograd's graphs", Evidence("lost_mutation", "aot")),
    ("decomposition", "the decomposed graphs", Evidence("wrong_value", "decomposition", traced_away=True)),
    ("joint", "the parts of the joint graph", Evidence("wrong_gradient", "partition")),
    ("pre_grad", "after the pre-grad passes", Evidence("wrong_value", "pre_grad")),
    ("joint", "after the joint passes", Evidence("wrong_value", "joint")),
    ("post_grad", "after the post-grad passes", Evidence("wrong_value", "post_grad")),
    ("runtime", "saved tensors", Evidence("missing_exception", loops="right", saved_check=True)),
    ("lowering", "still raise", Evidence("missing_exception", loops="right")),
    ("lowering", "evaluated in plain torch, is wrong", Evidence("wrong_value", loops="wrong")),
    ("lowering", "laid out", Evidence("wrong_stride", loops="right")),
    ("lowering", "for these sizes only", Evidence("wrong_value", loops="right", dynamic=True, alone=False)),
    ("codegen", "IR is right, and its code is wrong", Evidence("wrong_value", loops="right")),
    ("lowering", "a library or a template", Evidence("wrong_value", loops="unknown")),
    ("runtime", "the kernels die", Evidence("hang")),
    ("codegen", "and the kernels wrong", Evidence("wrong_value")),
    ("unknown", "nothing tells", Evidence("wrong_value", graphs_run=False)),
]


@pytest.mark.parametrize("number", range(len(ROWS)), ids=[f"{stage}: {words}" for stage, words, _ in ROWS])
def test_a_row(number: int) -> None:
    stage, words, evidence = ROWS[number]
    first = next(i for i, rule in enumerate(RULES) if rule.holds(evidence))
    assert first == number, f"row {first} holds first"
    assert RULES[number].stage == stage
    assert words in RULES[number].why
    assert stage_of(evidence) == (RULES[number].stage, RULES[number].why)


def test_every_stage_has_a_row_and_a_definition() -> None:
    assert len(ROWS) == len(RULES) == len({rule.why for rule in RULES})
    assert {rule.stage for rule in RULES} == {*STAGES, "unknown"} - {"trace", "pass"}, "whose graphs are all at hand"
    assert {*GRAPHS} == {*get_args(Graphs)}
    text = stage_table.__doc__ or ""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert [name.strip(" `") for row in rows for name in row.split(",")] == list(STAGES)
    for evidence, stage in (
        # Where a check is lost, its stage is the one that lost it.
        *((Evidence("missing_exception", point), point) for point in ("dynamo", "aot", "decomposition")),  # type: ignore[arg-type]
        (Evidence("missing_exception"), "lowering"),
        (Evidence("missing_exception", loops="unknown"), "lowering"),
        (Evidence("missing_exception", "aot", saved_check=True), "aot"),
        (Evidence("wrong_gradient", loops="right", saved_check=True), "codegen"),
        # Frames count only where the compiler raised, or hangs.
        (Evidence("wrong_value", raised_in="aot"), "codegen"),
        (Evidence("crash_runtime", raised_in="aot"), "runtime"),
        (Evidence("hang", graphs_wrong="decomposition", raised_in="post_grad"), "post_grad"),
        # Whatever is known of the loops, a graph that is wrong already has spoilt them.
        *(
            (Evidence("wrong_value", point, loops=loops), "joint" if point == "partition" else point)
            for point in GRAPHS
            for loops in (None, *get_args(Loops))
        ),
    ):
        assert stage_of(evidence)[0] == stage


@pytest.mark.parametrize("kind", DIED)
def test_an_exception_or_a_death_at_run_time_is_no_layout(kind: Kind) -> None:
    assert kind not in LAID_OUT
    assert stage_of(Evidence(kind))[0] == "runtime"
    assert stage_of(Evidence(kind, loops="right"))[0] == "codegen", "the code of right loops kills the process"
    assert stage_of(Evidence(kind, "dynamo", inductor=False))[0] == "dynamo", "its graphs die without the backend"
    assert stage_of(Evidence(kind, "aot", inductor=False))[0] == "aot", "the backend runs AOTAutograd's graphs"


@given(st.builds(Evidence, **dict.fromkeys(get_type_hints(Evidence), ...)))  # type: ignore[arg-type]
def test_any_evidence_has_a_stage(evidence: Evidence) -> None:
    stage, why = stage_of(evidence)
    assert stage in {*STAGES, "unknown"}
    assert why
