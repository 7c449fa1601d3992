import json
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from graphprobe.cli.main import main
from graphprobe.records import CompilerSettings, Where
from graphprobe.report.graph_diff import GraphDiff, NodeDiff
from graphprobe.report.graph_nodes import lines_of, shown_source
from graphprobe.report.run_diff import diff_runs, plain_text, verdict
from graphprobe.store import Run, layout
from report.printed_graphs import printed
from report.samples import diff_texts
from store.dump_helpers import new_run

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


GRAPH = (
    'class G(torch.nn.Module):\n    def forward(self, a: "f32[2]"):\n        # File: {file}:3 in f, code: y = a + 1\n'
)
START = GRAPH + '        add: "f32[2]" = f(a)\n        return add\n'
FUSED = GRAPH + '        fused: "f32[2]" = g(a)\n        return fused\n'
OTHER = FUSED.replace("g(a)", "h(a)")
KERNEL = "k = async_compile.cpp(''''void k() {1}'''')\n"
CODE = "# AOT ID: ['0_forward']\n# kernel path: /tmp/torchinductor_{user}/ab/c{hash}.py\nadd(a, {number})\n"
EPILOGUE = "torch._inductor.config.epilogue_fusion"


def record(
    root: Path,
    *,
    file: str = "/home/x.py",
    fused: str | None = FUSED,
    number: int = 1,
    function: str = "step",
    settings: Mapping[str, str] | None = None,
    own: Mapping[str, str] | None = None,
    user: str = "me",
    torch: str = "2.13.0",
    kernel: str = "",
) -> Run:
    """A run of one compile; `fused`: the graph after a pass, None where the pass did not run."""
    writer = new_run(root, torch=torch)
    known = {EPILOGUE: "True"} if settings is None else settings
    document = CompilerSettings(torch=torch, settings=dict(known))
    writer.write_bytes(layout.COMPILER_SETTINGS, msgspec.json.encode(document))
    facts = writer.write_text(layout.compile_file(0), json.dumps({"function": function, "settings": own or {}}))
    writer.event(where=Where(model=0), kind="compile", name="compile", file=facts)
    graph = writer.write_text(layout.dynamo_file(0), START.format(file=file))
    writer.event(where=Where(model=0, phase="dynamo"), kind="graph", name="dynamo_out_graph", file=graph)
    forward = Where(model=0, direction="forward", phase="post_grad_passes")
    graph = writer.write_text(layout.graph_file(Where(model=0, direction="forward"), number=0), START.format(file=file))
    writer.event(where=forward, kind="graph", name="aot_forward_graph", file=graph)
    if fused is not None:
        graph = writer.write_text(
            layout.pass_file(Where(model=0, direction="forward"), "fuse", number=1), fused.format(file=file)
        )
        where = msgspec.structs.replace(forward, pass_name="fuse")
        writer.event(where=where, kind="pass", name="fuse", file=graph, changed=True)
    text = kernel + CODE.format(user=user, hash=("a2" if user == "me" else "b3") * 25 + "x", number=number)
    code = writer.write_text(layout.code_file(Where(model=0, direction="forward")), text)
    where = Where(model=0, direction="forward", phase="codegen")
    writer.event(where=where, kind="code", name="output_code", file=code)
    writer.close("finished")
    return Run.open(writer.run_dir)


def invoke(*args: object) -> Result:
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_same_program_in_another_folder_of_another_user_is_the_same(tmp_path: Path) -> None:
    a = record(tmp_path / "a")
    b = record(tmp_path / "b", file="/srv/other/x.py", user="you")
    assert a.text(a.find("forward/code")) != b.text(b.find("forward/code"))
    diff = diff_runs(a, b)
    assert (diff.outcome, diff.compared, diff.differences) == ("same", 4, ())
    result = invoke("diff", a.run_dir, b.run_dir)
    assert result.exit_code == 0
    assert "SAME: at every stage, of 4" in result.output


@pytest.mark.parametrize(
    ("other", "stage", "what"),
    [
        ({"number": 2}, "forward/code", "the generated code differs"),
        ({"fused": None}, "forward/after:fuse", "the pass runs in A only, and changes the graph"),
        ({"fused": START}, "forward/after:fuse", "the graph differs after the pass"),
        ({"fused": OTHER, "number": 7}, "forward/after:fuse", "the graph differs after the pass"),
        ({"function": "another"}, "model__0", "only A compiles it"),
    ],
    ids=["code", "pass left out", "pass did nothing", "pass before code", "another program"],
)
def test_first_stage_is_named(tmp_path: Path, other: dict[str, str], stage: str, what: str) -> None:
    a, b = record(tmp_path / "a"), record(tmp_path / "b", **other)  # type: ignore[arg-type]
    first = diff_runs(a, b).differences[0]
    assert (first.stage, first.what) == (stage, what)
    result = invoke("diff", a.run_dir, b.run_dir)
    assert result.exit_code == 1
    assert f"differs first at {stage}: {what}" in result.output
    assert "next:" in result.output


@pytest.mark.parametrize("kernel", [KERNEL, KERNEL.replace("1", "2")])
def test_a_wrapper_that_differs_is_told_from_kernels(kernel: str, tmp_path: Path) -> None:
    a, b = record(tmp_path / "a", kernel=KERNEL), record(tmp_path / "b", kernel=kernel, number=2)
    same = "the kernels are the same, the wrapper differs"
    assert diff_runs(a, b).differences[0].what == (same if kernel == KERNEL else "the generated code differs")


def test_next_command_shows_the_stage_node_by_node(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a"), record(tmp_path / "b", fused=OTHER)
    command = invoke("diff", a.run_dir, b.run_dir).output.rpartition("next:")[2].split()
    assert command[1:] == ["diff", str(a.run_dir), str(b.run_dir), "--at", "model__0/forward/after:fuse"]
    shown = invoke(*command[1:])
    assert shown.exit_code == 1
    assert "h(a)" in shown.output
    assert invoke("diff", a.run_dir, b.run_dir, "--at", "model__0/forward/graph").exit_code == 0


def test_settings_of_the_run_and_of_one_compile_are_named(tmp_path: Path) -> None:
    a = record(tmp_path / "a", settings={EPILOGUE: "True", "torch.x.old": "1"})
    b = record(tmp_path / "b", settings={EPILOGUE: "True", "torch.x.new": "1"}, own={EPILOGUE: "False"}, torch="2.15.0")
    diff = diff_runs(a, b)
    assert [(one.name, one.a, one.b) for one in diff.settings] == [(EPILOGUE, "True", "False")]
    assert (diff.settings_only_a, diff.settings_only_b) == (("torch.x.old",), ("torch.x.new",))
    assert verdict(diff).startswith("DIFFERENT: 1 setting")
    result = invoke("diff", a.run_dir, b.run_dir)
    assert result.exit_code == 1
    assert "torch: 2.13.0 in A, 2.15.0 in B" in result.output
    assert "no graph and no generated code differs" in " ".join(result.output.split())


def test_json_names_the_first_difference(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a"), record(tmp_path / "b", number=2)
    document = json.loads(invoke("diff", a.run_dir, b.run_dir, "--json").output)
    assert (document["outcome"], document["a"], document["compared"]) == ("different", str(a.run_dir), 4)
    assert document["differences"][0]["stage"] == "forward/code"
    assert document["differences"][0]["digest_a"] != document["differences"][0]["digest_b"]


@pytest.mark.parametrize(
    "name", [layout.code_file(Where(model=0, direction="forward")), layout.EVENTS, layout.COMPILER_SETTINGS]
)
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"\x00{")], ids=["gone", "damaged"])
def test_damaged_run_is_never_the_same(tmp_path: Path, name: str, damage: Callable[[Path], object]) -> None:
    a, b = record(tmp_path / "a"), record(tmp_path / "b")
    damage(b.tool_dir / name)
    result = invoke("diff", a.run_dir, b.run_dir)
    assert "SAME" not in result.output
    assert result.exit_code in (1, 125)
    if name != layout.code_file(Where(model=0, direction="forward")) or not (b.tool_dir / name).exists():
        assert "not compared:" in result.output


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    a = record(tmp_path / "a")
    assert invoke("diff", a.run_dir, tmp_path / "missing").exit_code == 2
    assert invoke("diff", tmp_path / "x", a.run_dir).exit_code == 2
    assert "--at goes with two runs" in invoke("diff", a.run_dir, "--at", "forward/code").output
    assert invoke("diff", a.run_dir, a.run_dir, "--at", "nowhere").exit_code == 2
    assert "exclude each other" in invoke("diff", a.run_dir, "--at", "x", "--pass", "fuse").output


def test_normalised_text_keeps_what_is_computed() -> None:
    assert plain_text("x0 // 8 + 0x10, a / b / c") == "x0 // 8 + 0x10, a / b / c"
    assert plain_text('File "/usr/lib/torch/nn.py", line 12, in f') == 'File "nn.py", in f'
    assert plain_text("# AOT ID: ['1_inference']") == plain_text("# AOT ID: ['0_inference']")
    assert plain_text("/a/b/nn.py:7: at 0x7f12ab34cd") == "nn.py: at <address>"
