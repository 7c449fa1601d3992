"""Each row of the stage table is the first to hold for some evidence, and for what it is meant for."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphprobe.findings import STAGES, Kind, Stage
from graphprobe.judge import stage_table
from graphprobe.judge.stage_table import DIED, GRAPHS, LAID_OUT, RULES, Evidence, Graphs, Loops, stage_of

# In the order of the table: what holds for a row and for none above it.
ROWS: list[tuple[Stage, str, Evidence]] = [
    ("runtime", "kept from before", Evidence("wrong_value", cached=True)),
    ("runtime", "another backend dies", Evidence("segfault", inductor=False)),
    ("codegen", "another backend is one stage", Evidence("wrong_value", inductor=False)),
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


def first(evidence: Evidence) -> int:
    return next(i for i, rule in enumerate(RULES) if rule.holds(evidence))


def test_there_is_an_example_of_every_row() -> None:
    assert len(ROWS) == len(RULES)


@pytest.mark.parametrize("number", range(len(ROWS)), ids=[f"{stage}: {words}" for stage, words, _ in ROWS])
def test_a_row(number: int) -> None:
    stage, words, evidence = ROWS[number]
    assert first(evidence) == number, f"row {first(evidence)} holds first"
    assert RULES[number].stage == stage
    assert words in RULES[number].why
    assert stage_of(evidence) == (RULES[number].stage, RULES[number].why)


def test_no_row_is_there_twice() -> None:
    assert len({rule.why for rule in RULES}) == len(RULES)


def test_the_definitions_name_every_stage_in_the_order_of_the_pipeline() -> None:
    text = stage_table.__doc__ or ""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert [name.strip(" `") for row in rows for name in row.split(",")] == list(STAGES)


def test_every_stage_can_be_to_blame() -> None:
    assert {rule.stage for rule in RULES} == {*STAGES, "unknown"}
    assert {*GRAPHS} == {*get_args(Graphs)}


@pytest.mark.parametrize("kind", DIED)
def test_an_exception_or_a_death_at_run_time_is_no_layout(kind: Kind) -> None:
    assert kind not in LAID_OUT
    assert stage_of(Evidence(kind))[0] == "runtime"
    assert stage_of(Evidence(kind, loops="right"))[0] == "codegen", "the code of right loops kills the process"
    assert stage_of(Evidence(kind, "dynamo", inductor=False))[0] == "dynamo", "its graphs die without the backend"
    assert stage_of(Evidence(kind, "aot", inductor=False))[0] == "aot", "the backend runs AOTAutograd's graphs"


def test_where_a_check_is_lost_its_stage_is_the_one_that_lost_it() -> None:
    for point, stage in (("dynamo", "dynamo"), ("aot", "aot"), ("decomposition", "decomposition")):
        assert stage_of(Evidence("missing_exception", point))[0] == stage  # type: ignore[arg-type]
    assert stage_of(Evidence("missing_exception"))[0] == "lowering"
    assert stage_of(Evidence("missing_exception", loops="unknown"))[0] == "lowering"
    assert stage_of(Evidence("missing_exception", "aot", saved_check=True))[0] == "aot"
    assert stage_of(Evidence("wrong_gradient", loops="right", saved_check=True))[0] == "codegen"


def test_frames_count_only_where_the_compiler_raised() -> None:
    assert stage_of(Evidence("wrong_value", raised_in="aot"))[0] == "codegen"
    assert stage_of(Evidence("crash_runtime", raised_in="aot"))[0] == "runtime"


KINDS, POINTS, LOOPS = st.sampled_from(get_args(Kind)), st.sampled_from(GRAPHS), st.sampled_from(get_args(Loops))


@given(
    st.builds(
        Evidence,
        kind=KINDS,
        graphs_wrong=POINTS | st.none(),
        graphs_run=st.booleans(),
        loops=LOOPS | st.none(),
        raised_in=st.sampled_from(STAGES) | st.none(),
        traced_away=st.booleans(),
        dynamic=st.booleans(),
        alone=st.booleans(),
        cached=st.booleans(),
        saved_check=st.booleans(),
        inductor=st.booleans(),
    )
)
def test_any_evidence_has_a_stage(evidence: Evidence) -> None:
    stage, why = stage_of(evidence)
    assert stage in {*STAGES, "unknown"}
    assert why


def test_graphs_that_fail_come_before_what_is_made_of_them() -> None:
    """Whatever is known of the loops, a graph that is wrong already has spoilt them."""
    for point, loops in itertools.product(GRAPHS, (None, *get_args(Loops))):
        stage = stage_of(Evidence("wrong_value", point, loops=loops))[0]
        assert stage == ("joint" if point == "partition" else point)


def test_what_hangs_is_told_by_where_it_stands_as_what_raises_is() -> None:
    evidence = Evidence("hang", graphs_wrong="decomposition", raised_in="post_grad")
    assert stage_of(evidence)[0] == "post_grad"
