"""The graph around the culprit: where nodes and edges are placed, what a dossier tells, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphprobe.report.html.graph_window import GAP_X, WINDOW, layout, window_section
from graphprobe.report.html.sources import Sources

HEIGHT = 50.0

GRAPH_TEXT = """# 4 nodes

class GraphModule(torch.nn.Module):
    def forward(self, view_7: "f32[2, 8][8, 1]cpu"):
        # File: model.py:3 in forward, code: y = x.relu()
        relu: "f32[2, 8][8, 1]cpu" = torch.ops.aten.relu.default(view_7);  view_7 = None
        add: "f32[2, 8][8, 1]cpu" = torch.ops.aten.add.Tensor(relu, relu);  relu = None
        return (add,)
"""


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[float], list[tuple[int, int]]]:
    count = draw(st.integers(1, 25))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] < pair[1])
    edges = draw(st.lists(pairs, unique=True, max_size=40)) if count > 1 else []
    return draw(st.lists(st.floats(60, 260), min_size=count, max_size=count)), edges


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_boxes_never_overlap_and_edges_go_down(graph: tuple[list[float], list[tuple[int, int]]]) -> None:
    widths, edges = graph
    placed = layout(widths, HEIGHT, edges)
    for a, (xa, ya) in enumerate(placed.centres):
        assert widths[a] / 2 - 0.2 <= xa <= placed.width - widths[a] / 2 + 0.2 and ya <= placed.height
        for b, (xb, yb) in enumerate(placed.centres[:a]):
            assert ya != yb or abs(xa - xb) >= (widths[a] + widths[b]) / 2 + GAP_X - 0.3
    for (a, b), line in zip(edges, placed.edges, strict=True):
        assert placed.centres[a][1] < placed.centres[b][1]
        assert line[0][1] == placed.centres[a][1] + HEIGHT / 2 and line[-1][1] == placed.centres[b][1] - HEIGHT / 2
        assert abs(line[0][0] - placed.centres[a][0]) <= widths[a] / 2
        assert [y for _, y in line] == sorted(y for _, y in line)


def test_two_chains_are_drawn_without_a_crossing_and_inputs_stand_by_their_users() -> None:
    # 0 → 2 → 4, 1 → 3 → 5, and an input, 6's only argument beside 5, that must not float at the top.
    placed = layout([100.0] * 8, HEIGHT, [(0, 2), (1, 3), (2, 4), (3, 5), (6, 7), (5, 7)])
    x = [place for place, _ in placed.centres]
    assert (x[0] < x[1]) == (x[2] < x[3]) == (x[4] < x[5])
    assert placed.centres[6][1] == placed.centres[5][1]


def test_a_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="topological"):
        layout([10.0, 10.0], HEIGHT, [(1, 0)])


def node(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": "call_function", "op": f"aten.{name}.default", "type": "float32[2, 8]", **more}


def dossier(folder: Path, **more: Any) -> Path:
    """A dossier whose relu is wrong."""
    code = folder / "model.py"
    code.write_text("def forward(x):\n    x = x + 1\n    return x.relu()\n")
    nodes = [
        node("x", kind="placeholder", op=""),
        node("add", answer="ok", z=0.5, source=f"{code}:2"),
        node("mul", answer="ok", z=2.5, involved=True),
        node("relu", answer="worse", z="inf", accused=True, reason="z is beyond measure", source=f"{code}:3"),
        node("sum", answer="worse", z=12.0, more_users=3),
        node("exp", answer="skipped", reason="random"),
    ]
    edges = [("x", "add"), ("x", "mul"), ("add", "relu"), ("mul", "relu"), ("relu", "sum"), ("relu", "exp")]
    window = {"schema": 1, "culprit": "relu", "graph_nodes": 145, "nodes": nodes, "edges": edges, **more}
    (folder / WINDOW).write_text(json.dumps(window))
    return folder


def test_an_older_dossier_is_shown_from_its_text(tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_text(GRAPH_TEXT)
    section = window_section(tmp_path, Sources(tmp_path), culprit="relu")
    assert section is not None and section.title == "The smallest graph that fails"
    data: Any = section.data
    assert [one["name"] for one in data["nodes"]] == ["view_7", "relu", "add", "output"]
    assert data["nodes"][1]["op"] == "aten.relu.default" and data["nodes"][1]["accused"] and data["culprit"] == 1
    assert [(edge["from"], edge["to"]) for edge in data["edges"]] == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize(
    "more",
    [{"schema": 2}, {"edges": [["sum", "relu"]]}, {"nodes": [node("a"), node("a")], "edges": []}, {"nodes": "none"}],
    ids=["newer", "backwards", "twice", "no list"],
)
def test_a_window_that_cannot_be_drawn_is_left_out(more: dict[str, Any], tmp_path: Path) -> None:
    assert window_section(dossier(tmp_path, **more), Sources(tmp_path)) is None


def test_the_size_of_the_window_is_told(tmp_path: Path) -> None:
    section = window_section(dossier(tmp_path), Sources(tmp_path))
    assert section is not None and section.summary == "6 of 145 nodes"


def test_without_a_dossier_there_is_no_graph(tmp_path: Path) -> None:
    assert window_section(None, Sources(tmp_path)) is None
    assert window_section(tmp_path, Sources(tmp_path)) is None
