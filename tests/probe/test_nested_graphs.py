"""Each nested graph has a series of its own in every phase, and what the events count is what the files show."""

import re
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from graphprobe.records import Event
from graphprobe.store import Run

PROGRAM = Path(__file__).parent / "programs" / "nested_graphs.py"
COND, COND_IN_COND, REGIONS, FLEX, CHECKPOINTED, LOOP = range(6)

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def run(run_warm: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("nested")
    done = run_warm("-m", "graphprobe", "run", "-q", "--out", str(out), str(PROGRAM))
    assert done.code == 0, done.err
    assert done.out == run_warm(str(PROGRAM)).out
    found = Run.open(out)
    assert found.manifest.missing == [] and found.manifest.taps["nested_graphs"] == "on"
    return found


def series(run: Run) -> dict[tuple[int | None, str | None, str | None], list[Event]]:
    """The graphs of the run and those that a pass left changed, by model, direction and nested graph."""
    found: dict[tuple[int | None, str | None, str | None], list[Event]] = defaultdict(list)
    for event in run.events():
        if event.path is not None and (event.kind == "graph" or event.kind == "pass"):
            found[event.where.model, event.where.direction, event.where.subgraph].append(event)
    return found


def nested_names(run: Run, model: int, direction: str, phase: str | None = None) -> set[str | None]:
    return {
        event.where.subgraph
        for event in run.events()
        if event.kind == "pass" and event.where.model == model and event.where.direction == direction
        if phase is None or event.where.phase == phase
    }


@pytest.mark.parametrize(
    ("model", "nested"),
    [
        (COND, {"cond_true_0", "cond_false_0"}),
        (COND_IN_COND, {"cond_true_1", "cond_false_1", "cond_true_1.cond_true_0", "cond_true_1.cond_false_0"}),
        (REGIONS, {"subgraph_0", "subgraph_1"}),
        (FLEX, {"score_mod_0", "mask_fn_0"}),
        (CHECKPOINTED, {"wrap_body_0"}),
        (LOOP, {"cond_fn_0", "body_fn_0"}),
    ],
)
def test_before_aot_each_nested_graph_is_told_apart(run: Run, model: int, nested: set[str]) -> None:
    assert nested_names(run, model, "pre_grad") == nested | {None}
    (first, *later) = series(run)[model, "pre_grad", None]
    assert first.kind == "graph" and first.name == "pre_grad_graph" and later == []
    text = (run.tool_dir / str(first.path)).read_text()
    listed = next(line for line in text.splitlines() if line.startswith("# nested graphs: "))
    assert set(listed.removeprefix("# nested graphs: ").split(", ")) == nested, "the outer graph, which holds them all"


def test_joint_passes_name_the_regions_that_are_partitioned_by_themselves(run: Run) -> None:
    assert {"repeated_subgraph2", "repeated_subgraph3"} <= nested_names(run, REGIONS, "joint")
    assert "nested" not in nested_names(run, REGIONS, "joint")


def test_each_change_follows_upon_the_one_before_it_in_its_own_series(run: Run) -> None:
    changes = 0
    for (_, direction, _), events in series(run).items():
        if direction is None:
            continue
        for before, event in pairwise(events):
            assert event.before == before.path, (before, event)
            assert event.nodes_before == before.nodes_after, (before, event)
            changes += 1
    assert changes > 10


def test_counts_are_those_of_the_files(run: Run) -> None:
    checked = 0
    for event in (event for events in series(run).values() for event in events if event.kind == "pass"):
        assert event.nodes_before is not None and event.nodes_after is not None, event
        assert event.nodes_after - event.nodes_before == len(event.added) - len(event.removed), event
        for path, names in ((event.before, event.removed), (event.path, event.added)):
            text = (run.tool_dir / path).read_text() if path else ""
            own = [name.rpartition(".")[2] for name in names]
            missing = [name for name in own if name != "output" and not re.search(rf"\b{re.escape(name)}\b", text)]
            assert path and missing == [], event
        checked += bool(event.added or event.removed)
    assert checked > 5


def test_what_changed_inside_alone_is_no_unobserved_change(run: Run) -> None:
    joint = {event.name: event for event in series(run)[COND, "joint", None]}
    assert "unobserved_changes" not in joint
    inside = joint["changes_in_nested_graphs"]
    assert "true_graph_1.alias" in inside.removed and "true_graph_1.full_default" in inside.added
    # AOTAutograd puts the partitioned regions in place without telling anybody.
    regions = {event.name: event for event in series(run)[REGIONS, "joint", None]}
    stitched = regions["unobserved_changes"]
    assert {name.partition(".")[0] for name in stitched.added if "." in name} == {
        "partitioned_fw_subgraph_0_0",
        "partitioned_bw_subgraph_0_0",
        "partitioned_fw_subgraph_1_0",
        "partitioned_bw_subgraph_1_0",
    }


def test_lowering_names_nested_graphs_as_passes_do(run: Run) -> None:
    lowered = {
        event.where.subgraph: event.path or ""
        for event in run.events()
        if event.kind == "ir" and event.where.model == COND_IN_COND
    }
    passes = nested_names(run, COND_IN_COND, "forward", "post_grad_passes")
    assert set(lowered) == passes and "true_graph_0.true_graph_0" in passes
    assert all(path.endswith(f"__{name}.txt") for name, path in lowered.items() if name is not None)
