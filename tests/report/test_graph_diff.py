import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphprobe.report.graph_diff import GraphDiff, NodeDiff
from graphprobe.report.graph_nodes import lines_of, shown_source
from report.printed_graphs import printed
from report.samples import diff_texts

HEAD = 'class GraphModule(torch.nn.Module):\n    def forward(self, a: "f32[2, 3][3, 1]cpu", b: "f32[3, 4][4, 1]cpu"):\n'
MM = '        mm: "f32[2, 4][4, 1]cpu" = torch.ops.aten.mm.default(a, b);  a = b = None\n'
SOURCE = "        # File: x.py:12 in forward, code: y = torch.relu(x @ w)\n"
RELU = '        relu: "f32[2, 4][4, 1]cpu" = torch.ops.aten.relu.default(mm);  mm = None\n'
MUL = '        mul: "f32[2, 4][4, 1]cpu" = torch.ops.aten.mul.Tensor(relu, 2);  relu = None\n'
BASE = (
    HEAD
    + SOURCE
    + MM
    + RELU
    + "\n        # File: x.py:13 in forward, code: return y * 2\n"
    + MUL
    + "        return (mul,)\n"
)


def one(diff: GraphDiff) -> NodeDiff:
    assert diff.kind == "graphs"
    assert len(diff.graphs) == 1
    return diff.graphs[0]


def names(nodes: object) -> list[str]:
    return [node.name for node in nodes]  # type: ignore[attr-defined]


def pairs(found: object) -> list[tuple[str, str]]:
    return [(pair.before.name, pair.after.name) for pair in found]  # type: ignore[attr-defined]


def test_nodes_of_a_printed_graph() -> None:
    (graph,) = printed(BASE)
    mm = graph.nodes[2]
    assert (mm.type, mm.expression()) == ("f32[2, 4][4, 1]cpu", "torch.ops.aten.mm.default(a, b)")
    assert shown_source(mm.source) == "File: x.py:12 in forward, code: y = torch.relu(x @ w)"
    assert list(lines_of(BASE, (graph,))) == [2, 2, 4, 5, 8, 9]


def test_equal_graphs_differ_in_nothing() -> None:
    assert not diff_texts(BASE, BASE).different
    assert one(diff_texts(BASE, BASE)).unchanged == 6
    # What is freed when, comments and indentation are no part of a node.
    plain = BASE.replace(";  a = b = None", "").replace("x.py:12", "x.py:99")
    assert not diff_texts(BASE, plain).different


def body(*lines: str) -> str:
    return HEAD + textwrap.indent("\n".join(lines) + "\n", " " * 8)


WITHOUT_RELU = (
    BASE.replace(RELU, "")
    .replace("Tensor(relu, 2);  relu", "Tensor(mm, 2);  mm")
    .replace("return (mul,)", "neg = torch.ops.aten.neg.default(mul)\n        return (mul, neg)")
)
RENAMED = BASE.replace("mm:", "mm_7:").replace("(mm)", "(mm_7)").replace("relu:", "r:").replace("(relu,", "(r,")
IN_STRINGS = body("p = f(a)", "s = g(p, mode='p', op=torch.p)", "return s")
SUBTRACTED = body("p = f(a)", "q = g(a)", "s = sub(p, q)", "return s")
CALLS = [f"n{i} = f{i}(a)" for i in range(6)]
DIFFS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "removed, added, changed": (
        BASE,
        WITHOUT_RELU,
        {"removed": ["relu"], "added": ["neg"], "changed": [("mul", "mul"), ("output", "output")], "unchanged": 3},
    ),
    "another type": (
        BASE,
        BASE.replace('relu: "f32[2, 4][4, 1]cpu"', 'relu: "f16[2, 4][4, 1]cpu"'),
        {"changed": [("relu", "relu")], "unchanged": 5},
    ),
    "renames are followed downstream": (BASE, RENAMED, {"renamed": [("mm", "mm_7"), ("relu", "r")], "unchanged": 4}),
    "renumbered after a removal": (
        body("mul = f(a)", "mul_1 = f(b)", "mul_2 = g(mul_1)", "mul_3 = h(mul_2)", "return mul_3"),
        body("mul = f(b)", "mul_1 = g(mul)", "mul_2 = h(mul_1)", "return mul_2"),
        {"renamed": [("mul_1", "mul"), ("mul_2", "mul_1"), ("mul_3", "mul_2")], "removed": ["mul"], "unchanged": 3},
    ),
    "swapped arguments": (
        SUBTRACTED,
        body("p = f(a)", "q = g(a)", "s = sub(q, p)", "return s"),
        {"changed": [("s", "s")], "unchanged": 5},
    ),
    "swapped names": (
        SUBTRACTED,
        body("q = f(a)", "p = g(a)", "s = sub(q, p)", "return s"),
        {"renamed": [("p", "q"), ("q", "p")], "unchanged": 4},
    ),
    "names in strings and operators are no nodes": (
        IN_STRINGS,
        IN_STRINGS.replace("p = f(a)", "r = f(a)").replace("g(p,", "g(r,"),
        {"renamed": [("p", "r")], "unchanged": 4},
    ),
    "another order is told as few moves": (
        body(*CALLS, "return n5"),
        body(CALLS[4], *CALLS[:4], CALLS[5], "return n5"),
        {"moved": [("n4", "n4")], "unchanged": 9},
    ),
}


@pytest.mark.parametrize("name", DIFFS)
def test_what_differs_between_two_graphs(name: str) -> None:
    before, after, expected = DIFFS[name]
    diff = one(diff_texts(before, after))
    found: dict[str, Any] = {kind: names(getattr(diff, kind)) for kind in ("removed", "added")}
    found |= {kind: sorted(pairs(getattr(diff, kind))) for kind in ("changed", "renamed", "moved")}
    assert {kind: nodes for kind, nodes in found.items() if nodes} | {"unchanged": diff.unchanged} == expected
    assert diff.different


def test_removed_and_added_nodes_have_their_sources() -> None:
    diff = one(diff_texts(BASE, WITHOUT_RELU))
    assert diff.removed[0].source.startswith("File: x.py:12")
    assert diff.added[0].source.startswith("File: x.py:13")


def test_nested_graphs_are_compared_by_path() -> None:
    body = "        def forward(self, c):\n            d = f(c)\n            return d\n"
    inner = "    class body_0(torch.nn.Module):\n" + body
    diff = diff_texts(BASE + "\n" + inner, BASE + "\n" + inner.replace("f(c)", "g(c)"))
    assert [graph.graph for graph in diff.graphs if graph.different] == ["GraphModule/body_0"]
    diff = diff_texts(BASE, BASE + "\n" + inner)
    assert names(diff.graphs[1].added) == ["c", "d", "output"]


def test_texts_without_graphs_are_compared_by_line() -> None:
    diff = diff_texts("a\nb\n", "a\nc\n", before_name="one", after_name="two")
    assert diff.kind == "text"
    assert diff.lines == ("--- one", "+++ two", "@@ -1,2 +1,2 @@", " a", "-b", "+c")
    assert diff_texts(BASE, "no graph").kind == "text"
    assert not diff_texts("", "").different


@st.composite
def graphs(draw: st.DrawFn) -> str:
    text, known = HEAD, ["a", "b"]
    for number in range(draw(st.integers(0, 8))):
        function = draw(st.sampled_from(["f", "g"]))
        arguments = draw(st.lists(st.sampled_from(known), min_size=1, max_size=2))
        text += f"        n{number} = {function}({', '.join(arguments)})\n"
        known.append(f"n{number}")
    return text + f"        return {known[-1]}\n"


@given(graphs(), graphs())
def test_every_node_is_told_exactly_once(before: str, after: str) -> None:
    diff = one(diff_texts(before, after))
    paired = len(diff.changed) + len(diff.renamed) + diff.unchanged
    assert len(diff.removed) + paired == len(printed(before)[0].nodes)
    assert len(diff.added) + paired == len(printed(after)[0].nodes)
    assert diff.different == (before != after)
    back = one(diff_texts(after, before))
    assert back.different == diff.different


@given(graphs())
def test_new_names_alone_are_only_renames(text: str) -> None:
    renamed = text.replace("n", "m").replace("returm", "return").replace(".mm.", ".nn.").replace("torch.mm", "torch.nn")
    diff = one(diff_texts(text, renamed))
    assert (diff.removed, diff.added, diff.changed) == ((), (), ())
